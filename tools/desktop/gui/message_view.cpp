// One message: its author, its text with code and tables, and its actions.
#include "tools/desktop/gui/message_view.h"
#include "tools/desktop/gui/highlighter.h"
#include "tools/desktop/gui/icons.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/rich_text.h"
#include "tools/desktop/gui/theme.h"
#include <QClipboard>
#include <QDesktopServices>
#include <QGuiApplication>
#include <QHBoxLayout>
#include <QKeyEvent>
#include <QLabel>
#include <QPlainTextEdit>
#include <QProgressBar>
#include <QPushButton>
#include <QTimer>
#include <QToolButton>
#include <QUrl>
#include <algorithm>

namespace kvrun::desktop {
namespace {

constexpr int kDoneMs = 1500; // how long a copy button shows that it has copied

// A copy button; `text` is called when it is pressed.
QToolButton* new_copy(const char* name, std::function<QString()> text) {
	QToolButton* b = new_tool(Icon::Copy, name);
	QObject::connect(b, &QToolButton::clicked, b, [b, text = std::move(text)] {
		QGuiApplication::clipboard()->setText(text());
		b->setIcon(icon(Icon::Done));
		QTimer::singleShot(kDoneMs, b, [b] { b->setIcon(icon(Icon::Copy)); });
	});
	return b;
}

} // namespace

MessageView::MessageView(int number, const MessageActions& actions) : number_(number), actions_(actions) {
	all_ = new QVBoxLayout(this);
	all_->setContentsMargins(0, 0, 0, em(0.6));
	all_->setSpacing(em(0.2));
	body_ = new QFrame;
	layout_ = new QVBoxLayout(body_);
	layout_->setSpacing(em(0.5));
	layout_->setContentsMargins(0, 0, 0, 0);
	all_->addWidget(body_);
	progress_ = new QWidget;
	auto* row = new QHBoxLayout(progress_);
	row->setContentsMargins(0, 0, 0, 0);
	progress_bar_ = new QProgressBar;
	progress_bar_->setRange(0, 10000);
	progress_bar_->setTextVisible(false);
	progress_bar_->setFixedWidth(em(12));
	progress_bar_->setAccessibleName("How much of the conversation has been read");
	progress_text_ = new QLabel;
	set_role(progress_text_, "dim");
	row->addWidget(new Pulse);
	row->addWidget(progress_bar_);
	row->addWidget(progress_text_);
	row->addStretch();
	all_->addWidget(progress_);
	progress_->hide();
	bar_ = new QWidget;
	auto* buttons = new QHBoxLayout(bar_);
	buttons->setContentsMargins(0, 0, 0, 0);
	buttons->setSpacing(em(0.1));
	copy_ = new_copy("Copy this message", [this] { return text_; });
	retry_ = new_tool(Icon::Retry, "Another answer (Ctrl+R)");
	go_on_ = new_tool(Icon::Play, "Continue this answer (Ctrl+G)");
	edit_ = new_tool(Icon::Edit, "Edit this question (Ctrl+E)");
	older_ = new_tool(Icon::Left, "The version before (Alt+Left)");
	newer_ = new_tool(Icon::Right, "The next version (Alt+Right)");
	place_ = new QLabel;
	place_->setTextFormat(Qt::PlainText);
	set_role(place_, "dim");
	note_ = new QLabel;
	note_->setTextFormat(Qt::PlainText);
	set_role(note_, "dim");
	note_->setWordWrap(true);
	connect(retry_, &QToolButton::clicked, this, [this] { actions_.retry(number_); });
	connect(go_on_, &QToolButton::clicked, this, [this] { actions_.go_on(number_); });
	connect(edit_, &QToolButton::clicked, this, [this] { begin_edit(); });
	const auto step = [this](int by) {
		const auto at = std::ranges::find(siblings_, number_);
		const auto to = at - siblings_.begin() + by;
		if (to >= 0 && to < int(siblings_.size())) actions_.show(siblings_[size_t(to)]);
	};
	connect(older_, &QToolButton::clicked, this, [step] { step(-1); });
	connect(newer_, &QToolButton::clicked, this, [step] { step(1); });
	for (QWidget* w : std::initializer_list<QWidget*>{copy_, go_on_, retry_, edit_, older_, place_, newer_})
		buttons->addWidget(w);
	buttons->addSpacing(em(0.5));
	buttons->addWidget(note_, 1);
	all_->addWidget(bar_);
}

void MessageView::update(const Conversation& c, const Live& live) {
	const Message& m = c.messages[size_t(number_)];
	const bool first = bytes_ == size_t(-1);
	if (first && m.user) {
		set_role(body_, "bubble");
		layout_->setContentsMargins(em(0.8), em(0.5), em(0.8), em(0.5));
		all_->setAlignment(body_, Qt::AlignRight);
		static_cast<QHBoxLayout*>(bar_->layout())->insertStretch(0);
		note_->hide();
	}
	setAccessibleName(m.user ? "Your question" : "Answer");
	const size_t bytes = m.text.size() + m.reasoning.size();
	if (bytes != bytes_ || m.unfinished != unfinished_) update_text(m);
	bytes_ = bytes;
	unfinished_ = m.unfinished;
	update_progress(m, live);
	update_buttons(c, m, live.answering != kNone);
	if (first) resizeEvent(nullptr);
}

void MessageView::update_text(const Message& m) {
	text_ = text_of(m.text);
	if (!m.reasoning.empty()) {
		if (!reasoning_) {
			reasoning_ = new RichText;
			reasoning_->setStyleSheet("color: " + theme().dim.name());
			reasoning_->setAccessibleName("What the model thought");
			layout_->insertWidget(0, reasoning_);
			thought_ = new QToolButton;
			thought_->setText("What the model thought");
			thought_->setToolButtonStyle(Qt::ToolButtonTextBesideIcon);
			thought_->setCheckable(true);
			thought_->setFocusPolicy(Qt::TabFocus);
			connect(thought_, &QToolButton::toggled, this, [this](bool open) {
				thought_->setArrowType(open ? Qt::DownArrow : Qt::RightArrow);
				reasoning_->setVisible(open);
			});
			connect(thought_, &QToolButton::clicked, this, [this] { thought_chosen_ = true; });
			thought_->setChecked(true);
			layout_->insertWidget(0, thought_, 0, Qt::AlignLeft);
		}
		reasoning_->set_plain(text_of(m.reasoning));
		if (!thought_chosen_) thought_->setChecked(m.unfinished && m.text.empty()); // the answer is what matters
	}
	if (!m.images.empty() && !images_) {
		std::vector<std::string> paths;
		for (const std::string& name : m.images) paths.push_back(actions_.images_folder + "/" + name);
		images_ = new ImageRow(8, "Image %1", "Press to open this file");
		images_->pressed = [paths](size_t i) { QDesktopServices::openUrl(QUrl::fromLocalFile(text_of(paths[i]))); };
		images_->show_files(paths);
		layout_->insertWidget(0, images_);
	}
	if (m.user) {
		if (widgets_.empty()) {
			widgets_.push_back(new RichText);
			layout_->addWidget(widgets_[0]);
			widgets_[0]->setAccessibleName("Your question");
		}
		static_cast<RichText*>(widgets_[0])->set_plain(text_);
		widgets_[0]->setVisible(!text_.isEmpty());
		return;
	}
	std::vector<Part> parts = parse_markdown(m.text);
	size_t same = 0; // number of unchanged parts: only the rest is laid out again
	while (same < parts.size() && same < parts_.size() && parts[same] == parts_[same]) ++same;
	for (size_t i = same; i < parts.size(); ++i) {
		const Part& p = parts[i];
		if (i < parts_.size() && parts_[i].code == p.code && parts_[i].language == p.language &&
		    parts_[i].indent == p.indent) {
			QWidget* w = p.code ? widgets_[i]->findChild<QTextBrowser*>() : widgets_[i];
			auto* text = static_cast<RichText*>(w);
			p.code ? text->set_plain(text_of(p.text), false) : text->set_html(text_of(p.text));
			continue;
		}
		while (widgets_.size() > i) {
			delete widgets_.back();
			widgets_.pop_back();
		}
		parts_.resize(std::min(parts_.size(), i));
		if (p.code) {
			widgets_.push_back(new_code(p));
		} else {
			auto* text = new RichText;
			text->setAccessibleName("Answer");
			text->set_html(text_of(p.text));
			widgets_.push_back(text);
		}
		layout_->addWidget(widgets_.back());
	}
	while (widgets_.size() > parts.size()) {
		delete widgets_.back();
		widgets_.pop_back();
	}
	parts_ = std::move(parts);
}

QWidget* MessageView::new_code(const Part& p) {
	auto* outer = new QWidget;
	auto* indented = new QVBoxLayout(outer);
	indented->setContentsMargins(em(1.5 * p.indent), 0, 0, 0);
	auto* frame = new QFrame;
	set_role(frame, "code");
	auto* column = new QVBoxLayout(frame);
	column->setContentsMargins(em(0.7), em(0.2), em(0.4), em(0.6));
	column->setSpacing(em(0.2));
	auto* head = new QHBoxLayout;
	auto* language = new QLabel;
	language->setTextFormat(Qt::PlainText);
	language->setText(p.language.empty() ? "text" : text_of(p.language));
	set_role(language, "dim");
	head->addWidget(language);
	head->addStretch();
	auto* code = new RichText;
	head->addWidget(new_copy("Copy this code", [code] { return code->toPlainText(); }));
	column->addLayout(head);
	code->setAccessibleName("Code");
	code->document()->setDefaultTextOption([] {
		QTextOption o(Qt::AlignLeft | Qt::AlignAbsolute); // code is left to right in any language
		o.setTextDirection(Qt::LeftToRight);
		return o;
	}());
	code->set_plain(text_of(p.text), false);
	new Highlighter(code->document(), text_of(p.language));
	column->addWidget(code);
	indented->addWidget(frame);
	return outer;
}

void MessageView::update_progress(const Message& m, const Live& l) {
	progress_->setVisible(m.unfinished);
	if (!m.unfinished) return;
	const bool reads = l.read_share < 1 && l.pieces == 0;
	progress_bar_->setVisible(reads);
	if (reads) {
		progress_bar_->setValue(int(l.read_share * 10000));
		progress_text_->setText(
		    QString("Reading, %1 %%2")
		        .arg(int(l.read_share * 100))
		        .arg(l.read_left >= 1 ? QString(", about %1 s left").arg(int(l.read_left)) : QString()));
	} else {
		progress_text_->setText(!l.pieces ? QString("Waiting for the model")
		                        : l.tokens_per_second > 0
		                            ? QString("Answering, %1 tokens/s").arg(l.tokens_per_second, 0, 'f', 1)
		                            : QString("Answering"));
	}
}

void MessageView::update_buttons(const Conversation& c, const Message& m, bool answering) {
	siblings_ = c.siblings(number_);
	bar_->setVisible(!m.unfinished && !editor_);
	retry_->setVisible(!m.user && !answering);
	go_on_->setVisible(m.cut && number_ == c.last && !answering);
	edit_->setVisible(m.user && !answering);
	const bool several = siblings_.size() > 1 && !answering;
	for (QWidget* w : std::initializer_list<QWidget*>{older_, place_, newer_}) w->setVisible(several);
	const auto at = std::ranges::find(siblings_, number_) - siblings_.begin();
	place_->setText(QString("%1/%2").arg(at + 1).arg(siblings_.size()));
	older_->setEnabled(at > 0);
	newer_->setEnabled(at + 1 < int(siblings_.size()));
	note_->setText(text_of(m.note));
}

void MessageView::resizeEvent(QResizeEvent* e) {
	if (e) QFrame::resizeEvent(e);
	if (body_->property("role") != "bubble" || widgets_.empty()) return;
	auto* text = static_cast<RichText*>(widgets_[0]);
	const int most = std::max(em(4), int(width() * 0.8) - em(1.6));
	text->setFixedWidth(std::min(most, text->natural_width()));
}

// ---- editing a question

void MessageView::begin_edit() {
	if (editor_) return void(focus_editor());
	open_editor(text_);
	actions_.typed(number_, text_);
	focus_editor();
}

bool MessageView::focus_editor() {
	if (editor_) editor_->setFocus();
	return editor_ != nullptr;
}

int MessageView::find_words(const QString& words) {
	for (QTextBrowser* text : findChildren<QTextBrowser*>()) {
		const QTextCursor at = text->document()->find(words);
		if (at.isNull()) continue;
		text->setTextCursor(at);
		return text->mapTo(this, text->cursorRect(at).topLeft()).y();
	}
	return 0;
}

void MessageView::open_editor(const QString& begun) {
	if (editor_) return;
	editor_frame_ = new QFrame;
	set_role(editor_frame_, "composer");
	editor_frame_->setSizePolicy(QSizePolicy::Preferred, QSizePolicy::Fixed);
	auto* column = new QVBoxLayout(editor_frame_);
	editor_ = new QPlainTextEdit(begun);
	editor_->setAccessibleName("The question, to be edited");
	editor_->setFixedHeight(em(1 + std::clamp(int(begun.count('\n')) + 1, 2, 10)));
	editor_->setTabChangesFocus(true);
	editor_->installEventFilter(this);
	column->addWidget(editor_);
	auto* buttons = new QHBoxLayout;
	auto* cancel = new QPushButton("Cancel");
	auto* send = new QPushButton("Ask this instead");
	send->setProperty("main", true);
	connect(cancel, &QPushButton::clicked, this, [this] { cancel_edit(); });
	connect(send, &QPushButton::clicked, this, [this] { send_edit(); });
	buttons->addStretch();
	buttons->addWidget(cancel);
	buttons->addWidget(send);
	column->addLayout(buttons);
	all_->addWidget(editor_frame_);
	body_->hide();
	bar_->hide();
	editor_->moveCursor(QTextCursor::End);
	connect(editor_, &QPlainTextEdit::textChanged, this, [this] { actions_.typed(number_, editor_->toPlainText()); });
}

void MessageView::cancel_edit() {
	if (!editor_) return;
	editor_frame_->deleteLater();
	editor_frame_->hide();
	editor_frame_ = nullptr;
	editor_ = nullptr;
	body_->show();
	bar_->show();
	actions_.typed(number_, std::nullopt);
	actions_.edited();
}

void MessageView::send_edit() {
	const QString text = editor_->toPlainText();
	if (text.trimmed().isEmpty()) return;
	cancel_edit();
	const auto edit = actions_.edit; // copied, because this view may be deleted with its branch
	const int number = number_;
	QTimer::singleShot(0, qApp, [edit, number, text] { edit(number, text); });
}

bool MessageView::eventFilter(QObject* o, QEvent* e) {
	if (o != editor_ || e->type() != QEvent::KeyPress) return QFrame::eventFilter(o, e);
	const auto* k = static_cast<QKeyEvent*>(e);
	const bool enter = k->key() == Qt::Key_Return || k->key() == Qt::Key_Enter;
	if (enter && !(k->modifiers() & (Qt::ShiftModifier | Qt::ControlModifier))) return send_edit(), true;
	if (k->key() == Qt::Key_Escape) return cancel_edit(), true;
	return false;
}

} // namespace kvrun::desktop
