// The window: the list of conversations, and beside it one of the pages; keys; dropped files.
#include "tools/desktop/gui/window.h"
#include "tools/desktop/gui/chat_page.h"
#include "tools/desktop/gui/composer.h"
#include "tools/desktop/gui/messages.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/settings_page.h"
#include "tools/desktop/gui/sidebar.h"
#include "tools/desktop/gui/start_page.h"
#include "tools/desktop/gui/theme.h"
#include "tools/desktop/models_found.h"
#include "tools/hub/names.h"
#include <QAbstractButton>
#include <QApplication>
#include <QClipboard>
#include <QDialog>
#include <QDragEnterEvent>
#include <QGridLayout>
#include <QHBoxLayout>
#include <QKeyEvent>
#include <QMimeData>
#include <QPlainTextEdit>
#include <QShortcut>
#include <QStackedWidget>
#include <algorithm>

namespace kvrun::desktop {
namespace {

constexpr double kScaleStep = 1.125;
constexpr double kNarrowEms = 40; // a window below this width folds the list of conversations

constexpr const char* kKeys[][2] = {
    {"Enter, Shift+Enter", "send; new line"},
    {"Esc", "stop the answer, leave settings, an edit or the search"},
    {"Ctrl+N", "new conversation"},
    {"Ctrl+B", "show or hide the list of conversations"},
    {"Ctrl+K", "search the conversations"},
    {"Ctrl+Tab, Ctrl+Shift+Tab", "next, previous conversation"},
    {"Ctrl+I", "add images and sounds to the question; they can also be pasted or dropped"},
    {"Ctrl+R", "another answer to the last question"},
    {"Ctrl+G", "continue the last answer, if it was stopped"},
    {"Ctrl+E", "edit the last question"},
    {"Alt+Left, Alt+Right", "other versions of the last answer"},
    {"Ctrl+Shift+C", "copy the last answer"},
    {"Ctrl+Shift+K", "fork: go on in a copy of the conversation"},
    {"F2", "rename the conversation"},
    {"Ctrl+Shift+Delete", "delete the conversation"},
    {"Ctrl+O, Ctrl+Shift+O", "choose a model; open a model's file"},
    {"Ctrl+,", "settings; Ctrl+Enter applies them"},
    {"Ctrl+L", "to the field for questions"},
    {"PageUp, PageDown", "scroll the conversation"},
    {"Ctrl++, Ctrl+-, Ctrl+0", "larger, smaller, usual text"},
    {"Ctrl+Shift+M", "show how the cache stores each token"},
    {"Tab, Shift+Tab, Space", "go through buttons and fields, press one"},
    {"Ctrl+Q", "leave the program"},
    {"F1", "this list"},
};

QStringList files_in(const QMimeData* m) { // dropped ones
	QStringList out;
	for (const QUrl& u : m->urls())
		if (u.isLocalFile()) out.push_back(u.toLocalFile());
	return out;
}

// A line of text above the pages, for buttons behind it: the whole, and its row.
std::pair<QWidget*, QHBoxLayout*> new_banner(const char* role, QLabel*& text) {
	auto* all = new QWidget;
	auto* around = new QHBoxLayout(all);
	around->setContentsMargins(em(), em(0.6), em(), 0);
	auto* box = new QFrame;
	set_role(box, role);
	auto* row = new QHBoxLayout(box);
	row->setContentsMargins(em(0.7), em(0.4), em(0.4), em(0.4));
	text = new_label("");
	row->addWidget(text, 1);
	around->addWidget(box);
	return {all, row};
}

} // namespace

Window::Window(App& app) : app_(app) {
	setWindowTitle("kvrun");
	setAcceptDrops(true);
	setMinimumSize(480, 360);
	download_.changed = [this] { start_->show_download(); };
	download_.finished = [this](const std::string& path) { offer(path); };
	build();
	add_keys();
	app_.state.model.empty() ? open_start() : open_chat();
}

void Window::build() {
	const Settings& s = app_.state.settings;
	theme_ = s.theme, scale_ = s.scale;
	if (chat_) chat_->keep_draft();
	const auto typed = settings_ ? settings_->typed() : std::nullopt;
	apply_theme(theme_, scale_);
	setWindowIcon(QIcon::fromTheme("org.kvrun.desktop", icon(Icon::Model, theme().accent)));
	auto* all = new QWidget;
	set_role(all, "page");
	auto* row = new QHBoxLayout(all);
	row->setContentsMargins(0, 0, 0, 0);
	row->setSpacing(0);
	State& state = app_.state;
	side_ = new Sidebar(
	    state, {[this] { create(); }, [this] { open_settings(); }, [this] { open_start(); }, [this] { fork(); },
	            [this] { remove(); },
	            [this](const std::string& id) {
		            app_.state.select(id);
		            if (pages_->currentWidget() != chat_) pages_->setCurrentWidget(chat_);
		            refresh();
	            },
	            [this](int message, const QString& words) { show_found(message, words); },
	            [this](const std::string& id, const std::string& title) { act([&] { app_.state.rename(id, title); }); },
	            [this] { open_chat(); }});
	row->addWidget(side_);
	auto* main = new QWidget;
	set_role(main, "page");
	auto* column = new QVBoxLayout(main);
	column->setContentsMargins(0, 0, 0, 0);
	column->setSpacing(0);
	column->addWidget(new_problem());
	column->addWidget(new_offer());
	pages_ = new QStackedWidget;
	start_ = new StartPage(state, download_);
	start_->chosen = [this](const std::string& path) { load(path); };
	chat_ =
	    new ChatPage(state, {[this] { refresh(); }, [this] { open_start(); }, [this] { open_settings(); },
	                         [this] { rename(); }, [this] { fork(); }, [this] { remove(); }, [this] { toggle_side(); },
	                         [this](const std::string& content, const std::string& extension) {
		                         return app_.keep_image(content, extension);
	                         }});
	settings_ = new SettingsPage(state, app_.planner);
	settings_->closed = [this](bool) { open_chat(); };
	settings_->refused = [this] { refresh(); };
	if (typed) settings_->keep(*typed);
	for (QWidget* p : std::initializer_list<QWidget*>{start_, chat_, settings_}) pages_->addWidget(p);
	column->addWidget(pages_, 1);
	row->addWidget(main, 1);
	if (QWidget* before = takeCentralWidget()) { // deleted later, because one of its buttons may be the caller
		before->hide();
		before->deleteLater();
	}
	setCentralWidget(all);
	fold_side();
}

QWidget* Window::new_problem() {
	const auto [around, row] = new_banner("problem", problem_text_);
	row->parentWidget()->setProperty("region", "problem");
	problem_text_->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
	auto* dismiss = new_tool(Icon::Close, "Close this message");
	connect(dismiss, &QToolButton::clicked, this, [this] { act([this] { app_.state.problem.clear(); }); });
	row->addWidget(dismiss, 0, Qt::AlignTop);
	return problem_ = around;
}

// A model that has come while another is in use.
QWidget* Window::new_offer() {
	const auto [around, row] = new_banner("card", offer_text_);
	offer_use_ = new QPushButton("Use this model");
	offer_use_->setProperty("main", true);
	connect(offer_use_, &QPushButton::clicked, this, [this] { load(app_.state.offered); });
	auto* later = new_tool(Icon::Close, "Not now");
	connect(later, &QToolButton::clicked, this, [this] { act([this] { app_.state.offered.clear(); }); });
	row->addWidget(offer_use_, 0, Qt::AlignTop);
	row->addWidget(later, 0, Qt::AlignTop);
	return offer_ = around;
}

void Window::add_keys() {
	const auto key = [this](const char* keys, const std::function<void()>& f) {
		auto* s = new QShortcut(QKeySequence(keys), this);
		connect(s, &QShortcut::activated, this, [f] { f(); });
	};
	key("Ctrl+N", [this] { create(); });
	for (const char* k : {"Ctrl+K", "Ctrl+F"})
		key(k, [this] {
			if (side_->isHidden()) toggle_side();
			side_->find();
		});
	key("Ctrl+O", [this] { open_start(); });
	key("Ctrl+Shift+O", [this] { start_->choose_file(); });
	key("Ctrl+,", [this] { open_settings(); });
	for (const char* k : {"Ctrl+Return", "Ctrl+Enter"}) {
		auto* s = new QShortcut(QKeySequence(k), this);
		connect(s, &QShortcut::activated, this, [this] {
			if (pages_->currentWidget() == settings_) settings_->close(true);
		});
	}
	key("Ctrl+L", [this] { open_chat(); });
	key("Ctrl+B", [this] { toggle_side(); });
	for (const char* k : {"Ctrl++", "Ctrl+="}) key(k, [this] { rescale(kScaleStep); });
	key("Ctrl+-", [this] { rescale(1 / kScaleStep); });
	key("Ctrl+0", [this] { rescale(0); });
	key("Ctrl+Q", [] { QApplication::quit(); });
	key("F1", [this] { show_keys(); });
	key("Esc", [this] { escape(); });
	add_chat_keys();
}

// Keys that act on a conversation do nothing in the settings.
void Window::add_chat_keys() {
	const auto key = [this](const char* keys, const std::function<void()>& f) {
		auto* s = new QShortcut(QKeySequence(keys), this);
		connect(s, &QShortcut::activated, this, [this, f] {
			if (pages_->currentWidget() != settings_) f();
		});
	};
	const auto next = [this](int by) {
		app_.state.select_next(by);
		open_chat();
	};
	key("Ctrl+Tab", [next] { next(1); });
	for (const char* k : {"Ctrl+Shift+Tab", "Ctrl+Shift+Backtab"}) key(k, [next] { next(-1); });
	key("Ctrl+I", [this] {
		if (at_chat()) chat_->choose_images();
	});
	key("Ctrl+R", [this] { retry(); });
	key("Ctrl+E", [this] { edit(); });
	key("Ctrl+G", [this] {
		const Conversation* c = app_.state.current();
		if (!c) return;
		open_chat();
		act([&] { app_.state.go_on(c->last); });
	});
	key("Alt+Left", [this] { step_sibling(-1); });
	key("Alt+Right", [this] { step_sibling(1); });
	key("Ctrl+Shift+C", [this] {
		const Conversation* c = app_.state.current();
		if (c && c->last != kNone)
			QApplication::clipboard()->setText(QString::fromStdString(c->messages[size_t(c->last)].text));
	});
	key("Ctrl+Shift+K", [this] { fork(); });
	key("F2", [this] { rename(); });
	key("Ctrl+Shift+Delete", [this] { remove(); });
	key("PgUp", [this] { chat_->messages().page(-1); });
	key("PgDown", [this] { chat_->messages().page(1); });
	key("Ctrl+Shift+M", [this] {
		act([this] {
			app_.state.settings.show_cache = !app_.state.settings.show_cache;
			app_.state.changed("");
		});
	});
}

bool Window::at_chat() const { return pages_->currentWidget() == chat_; }

// ---- pages

const char* Window::page_name() const {
	const QWidget* p = pages_->currentWidget();
	return p == start_ ? "start" : p == settings_ ? "settings" : "chat";
}

bool Window::waiting() const { return start_->searching() || settings_->waiting(); }

void Window::show_page(QWidget* page) {
	pages_->setCurrentWidget(page);
	refresh();
}

void Window::open_start() {
	start_->open();
	show_page(start_);
	start_->take_focus();
}

void Window::open_settings() {
	app_.state.pass_hint();
	show_page(settings_);
	settings_->open();
}

void Window::open_chat() {
	show_page(chat_);
	chat_->take_focus();
}

void Window::load(const std::string& chosen) {
	const std::string model = chosen; // `chosen` may be what load() clears
	if (app_.state.n_answering() && !confirm(this, "An answer is under way. Load the other model now?",
	                                         "The answer ends where it is.", "Load", "Keep"))
		return;
	app_.state.load(model);
	open_chat();
}

// A model that has come without a choice on the start page: by a download, or dropped on the window.
void Window::offer(const std::string& model) {
	const bool at_start = pages_->currentWidget() == start_;
	app_.state.offer(model);
	at_start&& app_.state.offered.empty() ? open_chat() : refresh();
}

void Window::show_found(int message, const QString& words) {
	const Conversation* c = app_.state.current();
	if (!c) return;
	if (std::ranges::count(c->branch(), message) == 0) app_.state.show(message);
	chat_->messages().show_words(message, words);
	refresh();
}

void Window::fold_side() {
	const bool narrow = width() < em(kNarrowEms);
	if (narrow != narrow_) wants_side_.reset();
	narrow_ = narrow;
	side_->setVisible(wants_side_.value_or(!narrow));
}

void Window::toggle_side() {
	wants_side_ = side_->isHidden();
	fold_side();
}

void Window::resizeEvent(QResizeEvent* e) {
	QMainWindow::resizeEvent(e);
	fold_side();
}

void Window::refresh() {
	const Settings& s = app_.state.settings;
	if (s.theme != theme_ || s.scale != scale_) {
		const QWidget* page = pages_->currentWidget();
		const bool at_start = page == start_, at_settings = page == settings_;
		build();
		return at_start ? open_start() : at_settings ? open_settings() : open_chat();
	}
	side_->refresh();
	const QWidget* page = pages_->currentWidget();
	if (page == chat_) chat_->refresh();
	start_->refresh();
	if (page == settings_) settings_->poll();
	problem_->setVisible(!app_.state.problem.empty());
	const QString text = QString::fromStdString(app_.state.problem);
	if (problem_text_->text() != text) problem_text_->setText(text), problem_text_->setAccessibleName(text);
	offer_->setVisible(!app_.state.offered.empty());
	offer_text_->setText(QString::fromStdString(model_name(app_.state.offered)) +
	                     " is on this computer now. It would take the place of the model in use.");
	const Conversation* c = app_.state.current();
	setWindowTitle(c ? QString::fromStdString(c->title) + " \u2013 kvrun" : QString("kvrun"));
}

// ---- what the user does

void Window::act(const std::function<void()>& f) {
	f();
	app_.listen(); // so that the window shows what has begun
	refresh();
}

void Window::create() {
	app_.state.create();
	open_chat();
}

void Window::fork() {
	if (!app_.state.current()) return;
	app_.state.fork(app_.state.current_id);
	open_chat();
}

void Window::remove() {
	const Conversation* c = app_.state.current();
	if (!c) return;
	const std::string id = c->id;
	const bool yes =
	    confirm(this,
	            QString("Delete \u201c%1\u201d?")
	                .arg(fontMetrics().elidedText(QString::fromStdString(c->title), Qt::ElideRight, em(20))),
	            "All its messages are lost. This cannot be undone.", "Delete", "Keep");
	if (yes) act([&] { app_.state.remove(id); });
	open_chat();
}

void Window::rename() {
	if (!app_.state.current()) return;
	show_page(chat_);
	if (side_->isHidden()) toggle_side();
	side_->begin_rename();
}

void Window::retry() {
	const Conversation* c = app_.state.current();
	if (!c || c->last == kNone) return;
	open_chat();
	bool begun = false;
	act([&] { begun = app_.state.retry(c->last); });
	if (!begun && app_.state.phase != EnginePhase::Ready && app_.state.last_model().empty()) return open_start();
	chat_->messages().to_end();
}

void Window::edit() {
	const Conversation* c = app_.state.current();
	if (!c || c->last == kNone || app_.state.answering(c->id)) return;
	const Message& m = c->messages[size_t(c->last)];
	open_chat();
	chat_->messages().begin_edit(m.user ? c->last : m.parent);
}

void Window::step_sibling(int by) {
	const Conversation* c = app_.state.current();
	if (!c || c->last == kNone) return;
	const std::vector<int> all = c->siblings(c->last);
	const auto to = std::ranges::find(all, c->last) - all.begin() + by;
	if (to >= 0 && to < int(all.size())) act([&] { app_.state.show(all[size_t(to)]); });
}

void Window::escape() {
	if (pages_->currentWidget() == settings_) return settings_->close(false);
	if (side_->leave_search() || chat_->messages().cancel_edit()) return;
	if (pages_->currentWidget() == start_) {
		if (app_.state.phase != EnginePhase::Off || app_.state.current()) open_chat();
		return;
	}
	act([this] { app_.state.stop(); });
}

void Window::rescale(double factor) {
	Settings& s = app_.state.settings;
	s.scale = factor > 0 ? std::clamp((s.scale > 0 ? s.scale : 1) * factor, 0.5, 4.) : 0;
	app_.state.changed("");
	refresh();
}

void Window::show_keys() {
	QDialog d(this);
	d.setWindowTitle("Keys");
	auto* column = new QVBoxLayout(&d);
	column->setContentsMargins(em(), em(), em(), em());
	auto* grid = new QGridLayout;
	grid->setHorizontalSpacing(em(1.5));
	int row = 0;
	for (const auto& [keys, what] : kKeys) {
		grid->addWidget(new QLabel(keys), row, 0);
		auto* l = new QLabel(what);
		set_role(l, "dim");
		grid->addWidget(l, row++, 1);
	}
	column->addLayout(grid);
	auto* close = new QPushButton("Close");
	close->setDefault(true);
	connect(close, &QPushButton::clicked, &d, &QDialog::accept);
	auto* buttons = new QHBoxLayout;
	buttons->addStretch();
	buttons->addWidget(close);
	column->addLayout(buttons);
	d.exec();
	if (at_chat()) chat_->take_focus();
}

// ---- events

bool Window::event(QEvent* e) {
	if (e->type() != QEvent::UpdateRequest) return QMainWindow::event(e);
	const double begun = App::clock();
	const bool done = QMainWindow::event(e);
	const double now = App::clock();
	if (framed_ > 0) app_.frames.add((now - framed_) * 1000, (now - begun) * 1000, true);
	framed_ = now;
	return done;
}

void Window::keyPressEvent(QKeyEvent* e) { // Enter also presses buttons
	const bool enter = e->key() == Qt::Key_Return || e->key() == Qt::Key_Enter;
	if (auto* button = dynamic_cast<QAbstractButton*>(focusWidget()); enter && button) return button->click();
	QMainWindow::keyPressEvent(e);
}

void Window::dragEnterEvent(QDragEnterEvent* e) {
	if (files_in(e->mimeData()).isEmpty()) return;
	e->acceptProposedAction();
	start_->show_drop(true);
}

void Window::dragLeaveEvent(QDragLeaveEvent*) { start_->show_drop(false); }

void Window::dropEvent(QDropEvent* e) {
	start_->show_drop(false);
	const QStringList files = files_in(e->mimeData());
	e->acceptProposedAction();
	const QString path = files.value(0);
	if (is_encoder(path.toStdString())) return act([&] { app_.state.use_encoder(path.toStdString()); });
	if (path.endsWith(".gguf", Qt::CaseInsensitive)) return offer(path.toStdString());
	if (looks_like_image(path)) {
		if (pages_->currentWidget() != chat_) open_chat();
		return chat_->add_images(files);
	}
	act([&] {
		app_.state.problem =
		    path.toStdString() + " is neither a model, a file that ends in .gguf, nor an image or a sound.";
	});
}

} // namespace kvrun::desktop
