// The field for the next question, which grows with its text, and the button that sends or stops.
#include "tools/desktop/gui/composer.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include <QDragEnterEvent>
#include <QHBoxLayout>
#include <QKeyEvent>
#include <QMimeData>
#include <QPlainTextEdit>
#include <QScrollBar>
#include <QStyle>
#include <QTextBlock>
#include <algorithm>

namespace kvrun::desktop {
namespace {

constexpr int kMostLines = 8; // visible lines

class Field : public QPlainTextEdit {
 public:
	explicit Field(Composer& c) : composer_(c) {}

 protected:
	static QStringList image_files(const QMimeData* m) {
		QStringList out;
		for (const QUrl& u : m->urls())
			if (u.isLocalFile() && looks_like_image(u.toLocalFile())) out.push_back(u.toLocalFile());
		return out;
	}
	bool canInsertFromMimeData(const QMimeData* m) const override {
		return m->hasImage() || !image_files(m).isEmpty() || (m->hasText() && !m->hasUrls());
	}
	void insertFromMimeData(const QMimeData* m) override {
		if (const QStringList files = image_files(m); !files.isEmpty()) return composer_.add_files(files);
		if (m->hasText()) return QPlainTextEdit::insertFromMimeData(m); // office programs add a picture of their text
		composer_.paste(qvariant_cast<QImage>(m->imageData()));
	}
	void dragEnterEvent(QDragEnterEvent* e) override { // the window handles files
		if (e->mimeData()->hasUrls()) return e->ignore();
		QPlainTextEdit::dragEnterEvent(e);
	}

 private:
	Composer& composer_;
};

} // namespace

Composer::Composer() {
	set_role(this, "composer");
	setProperty("region", "question");
	auto* column = new QVBoxLayout(this);
	column->setContentsMargins(em(0.6), em(0.3), em(0.3), em(0.3));
	column->setSpacing(em(0.3));
	images_ = new ImageRow(4, "Remove image %1", "Press to leave this out");
	images_->pressed = [this](size_t i) { remove_image(i); };
	column->addWidget(images_);
	auto* row = new QHBoxLayout;
	column->addLayout(row);
	attach_ = new_tool(Icon::Image, "Add images and sounds to the question (Ctrl+I)");
	attach_->hide();
	connect(attach_, &QToolButton::clicked, this, [this] { choose_images(); });
	row->addWidget(attach_, 0, Qt::AlignBottom);
	field_ = new Field(*this);
	field_->setAccessibleName("Your question");
	field_->setTabChangesFocus(true);
	field_->document()->setDocumentMargin(em(0.2));
	field_->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
	field_->installEventFilter(this);
	button_ = new QToolButton;
	button_->setProperty("round", true);
	button_->setIconSize({em(1), em(1)});
	row->addWidget(field_, 1);
	row->addWidget(button_, 0, Qt::AlignBottom);
	connect(field_->document(), &QTextDocument::contentsChanged, this, [this] { fit(); });
	connect(button_, &QToolButton::clicked, this, [this] { answering_ ? stop() : submit(); });
	setFocusProxy(field_);
	answering_ = true;
	set_answering(false);
	fit();
}

void Composer::set_answering(bool answering) {
	if (answering == answering_) return;
	answering_ = answering;
	button_->setIcon(icon(answering ? Icon::Stop : Icon::Send, theme().on_accent));
	button_->setToolTip(answering ? "Stop the answer (Esc)" : "Send (Enter)");
	button_->setAccessibleName(answering ? "Stop the answer" : "Send");
	fit();
}

void Composer::set_hint(const QString& hint) {
	if (field_->placeholderText() != hint) field_->setPlaceholderText(hint);
}

void Composer::set_images(const std::vector<std::string>& paths, bool reads_any) {
	attach_->setVisible(reads_any || !paths.empty());
	images_->show_files(paths);
	if (has_images_ == !paths.empty()) return;
	has_images_ = !paths.empty();
	fit();
}

void Composer::take_focus() { field_->setFocus(); }

void Composer::fit() {
	const int line = field_->fontMetrics().lineSpacing();
	int lines = 0;
	for (QTextBlock b = field_->document()->begin(); b.isValid() && lines < kMostLines; b = b.next())
		lines += std::max(1, b.layout() ? b.layout()->lineCount() : 1);
	field_->setFixedHeight(std::clamp(lines, 1, kMostLines) * line + 2 * em(0.2) + 4);
	field_->setVerticalScrollBarPolicy(lines < kMostLines ? Qt::ScrollBarAlwaysOff : Qt::ScrollBarAsNeeded);
	button_->setEnabled(answering_ || has_images_ || !field_->document()->isEmpty());
}

void Composer::submit() { send(field_->toPlainText()); }

bool Composer::eventFilter(QObject* o, QEvent* e) {
	if (e->type() == QEvent::FocusIn || e->type() == QEvent::FocusOut) {
		setProperty("focus", e->type() == QEvent::FocusIn);
		style()->unpolish(this);
		style()->polish(this);
	}
	if (e->type() == QEvent::Resize)
		QMetaObject::invokeMethod(
		    this, [this] { fit(); }, Qt::QueuedConnection);
	if (e->type() == QEvent::ShortcutOverride) { // the window handles Ctrl+K and other shortcuts
		const auto* k = static_cast<QKeyEvent*>(e);
		if (k->key() == Qt::Key_K && k->modifiers() & Qt::ControlModifier) return e->ignore(), true;
	}
	if (e->type() != QEvent::KeyPress) return QFrame::eventFilter(o, e);
	const auto* k = static_cast<QKeyEvent*>(e);
	if (k->key() == Qt::Key_PageUp || k->key() == Qt::Key_PageDown) {
		scroll(k->key() == Qt::Key_PageUp ? -1 : 1);
		return true;
	}
	if (k->key() != Qt::Key_Return && k->key() != Qt::Key_Enter) return false;
	if (k->modifiers() & (Qt::ControlModifier | Qt::ShiftModifier))
		field_->textCursor().insertBlock(), field_->ensureCursorVisible();
	else
		submit();
	return true;
}

void Composer::changeEvent(QEvent* e) {
	QFrame::changeEvent(e);
	if (e->type() == QEvent::FontChange && field_) fit();
}

} // namespace kvrun::desktop
