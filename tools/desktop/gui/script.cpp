// A script that drives the window like a user: keys and text go through Qt's event handling.
#include "tools/desktop/gui/script.h"
#include "tools/desktop/gui/message_view.h"
#include "tools/desktop/gui/settings_page.h"
#include "tools/desktop/gui/start_page.h"
#include "tools/desktop/gui/window.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <QAbstractButton>
#include <QAction>
#include <QApplication>
#include <QClipboard>
#include <QDropEvent>
#include <QInputMethodEvent>
#include <QLabel>
#include <QListWidget>
#include <QMessageBox>
#include <QMimeData>
#include <QPainter>
#include <QPlainTextEdit>
#include <QScreen>
#include <QTextDocument>
#include <QWindow>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

// The function that Qt's own tests use to press keys: shortcuts, focus and text as from a keyboard. Qt6Gui exports it.
QT_BEGIN_NAMESPACE
Q_GUI_EXPORT bool qt_handleKeyEvent(QWindow* window, QEvent::Type t, int k, Qt::KeyboardModifiers mods,
                                    const QString& text, bool autorep, ushort count);
QT_END_NAMESPACE

namespace kvrun::desktop {
namespace {

constexpr size_t kLongestFile = size_t(16) << 20; // bytes
constexpr double kPatience = 300;                 // seconds
constexpr int kStepMs = 10;
constexpr int kSettleSteps = 3; // steps until widgets are laid out after input

QWidget* top_widget() {
	if (QWidget* w = QApplication::activePopupWidget()) return w;
	return QApplication::activeModalWidget();
}

} // namespace

Script::Script(const std::string& file, App& app, Window& window) : file_(file), app_(app), window_(window) {
	std::istringstream in(read_text_file(file, kLongestFile));
	std::string line;
	for (int number = 1; std::getline(in, line); ++number) {
		if (line.empty() || line[0] == '#') continue;
		const size_t end = std::min(line.find(' '), line.size());
		commands_.push_back({number, line.substr(0, end), line.substr(std::min(end + 1, line.size()))});
	}
	connect(&timer_, &QTimer::timeout, this, [this] { guard([this] { step(); }); });
	timer_.start(kStepMs);
}

void Script::guard(const std::function<void()>& f) {
	try {
		f();
	} catch (...) {
		failure_ = std::current_exception();
		timer_.stop();
		if (QWidget* w = QApplication::activeModalWidget()) w->close();
		QApplication::quit();
	}
}

void Script::bad(const Command& c, const std::string& why) const {
	fail_status(KVRUN_EINVALID, "{}:{}: {} {}: {}", file_, c.line, c.name, c.rest, why);
}

void Script::step() {
	if (pause_ > 0) return void(--pause_);
	if (commands_.empty()) return timer_.stop();
	// in case no window manager does it
	QWidget* top = QApplication::activeModalWidget() ? QApplication::activeModalWidget() : &window_;
	if (!top->isActiveWindow() && !QApplication::activePopupWidget()) top->activateWindow();
	const double now = App::clock();
	if (since_ < 0) since_ = now;
	const Command c = commands_.front();
	const bool waits = c.name == "wait";
	if (waits && !run(c, now)) return;
	commands_.pop_front();
	since_ = -1;
	pause_ = waits ? 0 : kSettleSteps;
	// deferred: a key may open a dialog, and this timer would not fire again before the dialog closes
	if (!waits) QTimer::singleShot(0, this, [this, c, now] { guard([&] { run(c, now); }); });
}

bool Script::wait(const Command& c, double now) {
	std::istringstream words(c.rest);
	std::string what;
	double seconds = kPatience;
	words >> what >> seconds;
	const State& s = app_.state;
	bool done = false;
	if (what == "loaded") {
		if (s.phase == EnginePhase::Failed) bad(c, s.problem);
		done = s.phase == EnginePhase::Ready;
	} else if (what == "failed") {
		done = s.phase == EnginePhase::Failed;
	} else if (what == "idle") {
		done = s.n_answering() == 0;
	} else if (what == "answering") {
		done = s.live(s.current_id).pieces > 0;
		if (!done && !s.answering(s.current_id)) bad(c, "there is no answer: " + s.problem);
	} else if (what == "reading") {
		done = s.live(s.current_id).read_share > 0;
	} else if (what == "planned") {
		done = !window_.settings().waiting();
	} else if (what == "models") {
		done = !window_.start().searching();
	} else {
		char* end = nullptr;
		const double pause = std::strtod(what.c_str(), &end);
		if (end == what.c_str() || *end) bad(c, "wait for what?");
		return now - since_ >= pause;
	}
	if (!done && now - since_ > seconds) bad(c, fmt::format("not within {} s", seconds));
	return done;
}

void Script::press_key(const Command& c) {
	const QKeySequence keys(QString::fromStdString(c.rest));
	if (keys.isEmpty() || keys[0].key() == Qt::Key_unknown) bad(c, "Qt knows no such key");
	const QWidget* top = top_widget();
	QWindow* to = top ? top->window()->windowHandle() : window_.windowHandle();
	const int key = keys[0].key();
	const Qt::KeyboardModifiers mod = keys[0].keyboardModifiers();
	QString text;
	if (key < 0x100 && !(mod & (Qt::ControlModifier | Qt::AltModifier)))
		text = mod & Qt::ShiftModifier ? QString(QChar(key)) : QString(QChar(key)).toLower();
	if (key == Qt::Key_Return) text = "\r";
	qt_handleKeyEvent(to, QEvent::KeyPress, key, mod, text, false, 1);
	qt_handleKeyEvent(to, QEvent::KeyRelease, key, mod, text, false, 1);
}

void Script::press_button(const Command& c) {
	const QString name = QString::fromStdString(c.rest);
	QWidget* where = top_widget() ? top_widget() : &window_;
	for (QAbstractButton* b : where->findChildren<QAbstractButton*>())
		if (b->isVisible() && b->isEnabled() && (b->text() == name || b->accessibleName() == name)) return b->click();
	bad(c, "no button of this name is seen");
}

void Script::type(const QString& text) {
	QInputMethodEvent e;
	e.setCommitString(text);
	if (QObject* to = QGuiApplication::focusObject()) QApplication::sendEvent(to, &e);
}

void Script::drop(const QString& path) {
	QMimeData data;
	data.setUrls({QUrl::fromLocalFile(path)});
	const QPoint at = window_.rect().center();
	QDragEnterEvent enter(at, Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
	QApplication::sendEvent(&window_, &enter);
	if (!enter.isAccepted()) return;
	QDropEvent drop(at, Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
	QApplication::sendEvent(&window_, &drop);
}

void Script::dump(const std::string& file) const {
	auto j = nlohmann::ordered_json::parse(app_.state.dump());
	j["page"] = window_.page_name();
	const QWidget* focus = QApplication::focusWidget();
	const auto* button = dynamic_cast<const QAbstractButton*>(focus);
	j["focus"] =
	    !focus ? ""
	           : (focus->accessibleName().isEmpty() && button ? button->text() : focus->accessibleName()).toStdString();
	if (const QWidget* top = top_widget()) {
		const auto* box = dynamic_cast<const QMessageBox*>(top);
		j["dialog"] = (box ? box->text() : top->windowTitle()).toStdString();
	}
	j["regions"] = nlohmann::ordered_json::object();
	const double pixels = window_.devicePixelRatioF();
	auto listed = nlohmann::ordered_json::array(), buttons = listed;
	const auto* list = window_.findChild<QListWidget*>();
	for (int i = 0; list && i < list->count(); ++i) listed.push_back(list->item(i)->text().toStdString());
	j["listed"] = std::move(listed);
	auto unnamed = nlohmann::ordered_json::array(); // widgets without a name for screen readers
	for (const QWidget* w : window_.findChildren<QWidget*>()) {
		if (!w->isVisible()) continue;
		const QVariant name = w->property("region");
		const QPoint at = w->mapTo(&window_, QPoint(0, 0));
		if (name.isValid())
			j["regions"][name.toString().toStdString()] = {at.x() * pixels, at.y() * pixels, w->width() * pixels,
			                                               w->height() * pixels};
		const auto* b = dynamic_cast<const QAbstractButton*>(w);
		if (b) buttons.push_back((b->accessibleName().isEmpty() ? b->text() : b->accessibleName()).toStdString());
		if (w->focusPolicy() & Qt::TabFocus && !w->focusProxy() && w->accessibleName().isEmpty() &&
		    (!b || b->text().isEmpty()))
			unnamed.push_back(std::string(w->metaObject()->className()));
	}
	j["buttons"] = std::move(buttons);
	auto in_view = nlohmann::ordered_json::array(); // numbers of messages
	for (const QWidget* w : window_.findChildren<QWidget*>())
		if (const auto* m = dynamic_cast<const MessageView*>(w); m && !m->visibleRegion().isEmpty())
			in_view.push_back(m->number());
	j["in_view"] = std::move(in_view);
	auto rich = nlohmann::ordered_json::array(); // texts that Qt reads as HTML
	for (const QLabel* l : window_.findChildren<QLabel*>())
		if (l->isVisible() && l->textFormat() != Qt::PlainText && Qt::mightBeRichText(l->text()))
			rich.push_back(l->text().toStdString());
	j["rich"] = std::move(rich);
	auto tips = nlohmann::ordered_json::array();
	for (const QWidget* w : window_.findChildren<QWidget*>())
		if (w->isVisible() && !w->toolTip().isEmpty()) tips.push_back(w->toolTip().toStdString());
	for (int i = 0; list && i < list->count(); ++i) tips.push_back(list->item(i)->toolTip().toStdString());
	j["tips"] = std::move(tips);
	if (const auto* edit = dynamic_cast<const QPlainTextEdit*>(focus)) j["typed"] = edit->toPlainText().toStdString();
	j["unnamed"] = std::move(unnamed);
	std::ofstream(file, std::ios::binary) << j.dump(1, '\t') << "\n";
}

void Script::screenshot(const std::string& file) const {
	QPixmap picture = window_.grab();
	if (QWidget* top = top_widget()) { // menus and dialogs are separate windows
		QPainter p(&picture);
		p.drawPixmap(top->mapToGlobal(QPoint(0, 0)) - window_.mapToGlobal(QPoint(0, 0)), top->grab());
		p.setPen(Qt::gray);
		p.drawRect(QRect(top->mapToGlobal(QPoint(0, 0)) - window_.mapToGlobal(QPoint(0, 0)), top->size()));
	}
	const QImage image = picture.toImage().convertToFormat(QImage::Format_RGB888);
	if (!image.save(QString::fromStdString(file))) fail_status(KVRUN_EIO, "{}: the picture could not be written", file);
}

bool Script::run(const Command& c, double now) {
	const QString rest = QString::fromStdString(c.rest);
	if (c.name == "wait") return wait(c, now);
	if (c.name == "type") {
		type(rest);
	} else if (c.name == "paste") {
		QApplication::clipboard()->setText(QString::fromStdString(read_text_file(c.rest, kLongestFile)));
		press_key({c.line, "key", "ctrl+V"});
	} else if (c.name == "paste-image") {
		const QImage image(rest);
		if (image.isNull()) bad(c, "the image cannot be read");
		QApplication::clipboard()->setImage(image);
		press_key({c.line, "key", "ctrl+V"});
	} else if (c.name == "key") {
		press_key(c);
	} else if (c.name == "press") {
		press_button(c);
	} else if (c.name == "drop") {
		drop(rest);
	} else if (c.name == "screenshot") {
		screenshot(c.rest);
	} else if (c.name == "dump") {
		dump(c.rest);
	} else if (c.name == "frames") {
		if (c.rest == "clear") app_.frames.clear();
		if (c.rest == "show") std::printf("%s\n", app_.frames.text().c_str()), std::fflush(stdout);
	} else if (c.name == "quit") {
		if (QWidget* w = QApplication::activeModalWidget()) w->close();
		timer_.stop();
		QApplication::quit();
	} else {
		bad(c, "no such command");
	}
	return true;
}

} // namespace kvrun::desktop
