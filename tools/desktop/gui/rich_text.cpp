// Text in any script, as high as needed: HTML, or plain text.
#include "tools/desktop/gui/rich_text.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include <QAbstractTextDocumentLayout>
#include <QDesktopServices>
#include <QFontDatabase>
#include <QFontInfo>
#include <QKeyEvent>
#include <QRegularExpression>
#include <QScrollBar>
#include <QTextBlock>
#include <QTextList>
#include <QTextTable>
#include <QWheelEvent>
#include <cmath>
#include <map>
#include <vector>

namespace kvrun::desktop {
namespace {

QString document_style() {
	const Theme& t = theme();
	QString s = QString(R"(
p, ul, ol, pre { margin-top: 0px; margin-bottom: @half; }
li { margin-bottom: @small; }
h1 { font-size: @h1; font-weight: 600; margin-top: @half; margin-bottom: @half; }
h2 { font-size: @h2; font-weight: 600; margin-top: @half; margin-bottom: @half; }
h3, h4, h5, h6 { font-size: @h3; font-weight: 600; margin-top: @half; margin-bottom: @small; }
blockquote { color: @dim; margin-left: @em; margin-right: @em; margin-top: 0px; margin-bottom: @half; }
code { background-color: @code; font-family: monospace; }
a { color: @accent; }
th { background-color: @code; font-weight: 600; }
table { border-color: @line; margin-bottom: @half; }
)");
	const std::pair<const char*, QString> values[] = {{"@half", QString::number(em(0.5)) + "px"},
	                                                  {"@small", QString::number(em(0.2)) + "px"},
	                                                  {"@em", QString::number(em()) + "px"},
	                                                  {"@h1", QString::number(em(1.25)) + "px"},
	                                                  {"@h2", QString::number(em(1.1)) + "px"},
	                                                  {"@h3", QString::number(em(0.9)) + "px"},
	                                                  {"@dim", t.dim.name()},
	                                                  {"@code", t.dark ? "#33363f" : "#ececf1"},
	                                                  {"@accent", t.accent.name()},
	                                                  {"@line", t.line.name()}};
	for (const auto& [name, value] : values) s.replace(name, value);
	return s;
}

// A paragraph begins on the side of its own script. The items of a list begin on the side of the first one. Numbers
// that are text (tools/desktop/markdown.cpp) stand in the margin, where Qt writes its own.
void arrange_lists(QTextDocument& d, const QFont& font) {
	static const QRegularExpression number("^\\d+\\.\u00a0 ");
	std::map<QTextList*, Qt::LayoutDirection> lists;
	for (QTextBlock b = d.begin(); b.isValid(); b = b.next()) {
		QTextList* list = b.textList();
		if (!list) continue;
		QTextBlockFormat f;
		f.setLayoutDirection(lists.try_emplace(list, b.textDirection()).first->second);
		const QRegularExpressionMatch m = number.match(b.text());
		if (m.hasMatch()) f.setTextIndent(-QFontMetricsF(font).horizontalAdvance(m.captured()));
		QTextCursor(b).mergeBlockFormat(f);
	}
}

// A table stands on the side of its script. Qt 6.4 always has the first column at the left: cells of tables of a script
// that is written from right to left change their order. Returns which tables these are.
std::vector<bool> mirror_tables(QString& html) {
	static const QRegularExpression table("<table.*?</table>", QRegularExpression::DotMatchesEverythingOption);
	static const QRegularExpression row("<tr>(.*?)</tr>", QRegularExpression::DotMatchesEverythingOption);
	static const QRegularExpression cell("<t[hd].*?</t[hd]>", QRegularExpression::DotMatchesEverythingOption);
	static const QRegularExpression no_text("<[^>]*>|&[^;]*;");
	std::vector<bool> right;
	qsizetype at = 0;
	for (QRegularExpressionMatch t = table.match(html); t.hasMatch(); t = table.match(html, at)) {
		QString rows = t.captured();
		right.push_back(QString(rows).remove(no_text).isRightToLeft());
		if (right.back()) {
			QString mirrored;
			for (const QRegularExpressionMatch& r : row.globalMatch(rows)) {
				QString cells;
				for (const QRegularExpressionMatch& c : cell.globalMatch(r.captured(1))) cells.prepend(c.captured());
				mirrored += "<tr>" + cells + "</tr>";
			}
			rows = rows.left(rows.indexOf('>') + 1) + mirrored + "</table>";
			html.replace(t.capturedStart(), t.capturedLength(), rows);
		}
		at = t.capturedStart() + rows.size();
	}
	return right;
}

void arrange_tables(const QTextDocument& d, const std::vector<bool>& right) {
	size_t n = 0;
	for (QTextFrame* f : d.rootFrame()->childFrames()) {
		auto* table = qobject_cast<QTextTable*>(f);
		if (!table) continue;
		const bool at_right = n < right.size() && right[n++];
		QTextCursor all = table->firstCursorPosition();
		all.beginEditBlock(); // laid out once
		QTextTableFormat format = table->format();
		format.setBorderCollapse(true);
		format.setBottomMargin(em(0.5));
		if (at_right) format.setAlignment(Qt::AlignRight);
		table->setFormat(format);
		for (int r = 0; r < table->rows(); ++r) // where borders collapse, Qt 6.8 draws only those of cells
			for (int c = 0; c < table->columns(); ++c) {
				QTextTableCellFormat cell = table->cellAt(r, c).format().toTableCellFormat();
				cell.setBorder(1);
				cell.setBorderBrush(theme().line);
				cell.setBorderStyle(QTextFrameFormat::BorderStyle_Solid);
				table->cellAt(r, c).setFormat(cell);
			}
		QTextBlockFormat cells;
		cells.setLayoutDirection(at_right ? Qt::RightToLeft : Qt::LeftToRight);
		const int end = table->lastPosition();
		for (QTextBlock b = table->firstCursorPosition().block(); b.isValid() && b.position() <= end; b = b.next())
			QTextCursor(b).mergeBlockFormat(cells);
		all.endEditBlock();
	}
}

} // namespace

RichText::RichText(QWidget* parent) : QTextBrowser(parent) {
	setFrameStyle(QFrame::NoFrame);
	setProperty("role", "text");
	setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
	setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
	setOpenLinks(false);
	document()->setDocumentMargin(0);
	document()->setIndentWidth(em(1.5));
	document()->setUndoRedoEnabled(false);
	setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
	setFocusPolicy(Qt::StrongFocus);
	connect(this, &QTextBrowser::anchorClicked, this, [](const QUrl& to) {
		if (to.scheme() == "http" || to.scheme() == "https" || to.scheme() == "mailto") QDesktopServices::openUrl(to);
	});
	connect(this, QOverload<const QUrl&>::of(&QTextBrowser::highlighted), this, [this](const QUrl& to) {
		setToolTip(plain_tip(to.toString()));
	}); // shows the target of a link before it is followed
	connect(document()->documentLayout(), &QAbstractTextDocumentLayout::documentSizeChanged, this, [this] { fit(); });
	connect(horizontalScrollBar(), &QScrollBar::rangeChanged, this, [this] { fit(); });
}

template <class F> void RichText::change(F&& f) {
	const QTextCursor before = textCursor();
	f();
	if (!before.hasSelection()) return;
	QTextCursor after(document());
	const int last = document()->characterCount() - 1;
	after.setPosition(std::min(before.anchor(), last));
	after.setPosition(std::min(before.position(), last), QTextCursor::KeepAnchor);
	setTextCursor(after);
}

void RichText::set_html(const QString& body) {
	change([&] {
		document()->setDefaultStyleSheet(document_style());
		QTextOption o = document()->defaultTextOption();
		o.setTextDirection(Qt::LayoutDirectionAuto);
		document()->setDefaultTextOption(o);
		QString html = body;
		const std::vector<bool> right = mirror_tables(html);
		setHtml(html);
		arrange_lists(*document(), font());
		arrange_tables(*document(), right);
		// no space below the last line
		QTextCursor end(document());
		end.movePosition(QTextCursor::End);
		QTextBlockFormat last = end.blockFormat();
		last.setBottomMargin(0);
		if (end.block().length() == 1 && end.block() != document()->begin()) // Qt adds one after a table
			last.setLineHeight(1, QTextBlockFormat::FixedHeight);
		end.setBlockFormat(last);
	});
	fit();
}

void RichText::set_plain(const QString& text, bool wraps) {
	setLineWrapMode(wraps ? QTextEdit::WidgetWidth : QTextEdit::NoWrap);
	if (!wraps) {
		setHorizontalScrollBarPolicy(Qt::ScrollBarAsNeeded);
		QFont mono = QFontDatabase::systemFont(QFontDatabase::FixedFont);
		mono.setFamilies(QStringList(QFontInfo(mono).family()) + font().families().mid(1));
		mono.setPointSizeF(font().pointSizeF() * 0.95);
		setFont(mono);
	}
	const int at = horizontalScrollBar()->value();
	change([&] { setPlainText(text); });
	horizontalScrollBar()->setValue(at);
	fit();
}

int RichText::natural_width() const {
	QTextDocument* copy = document()->clone();
	copy->setDefaultFont(font());
	copy->setDocumentMargin(0);
	copy->setTextWidth(-1);
	const int width = int(std::ceil(copy->idealWidth()));
	delete copy;
	return width + 2;
}

void RichText::resizeEvent(QResizeEvent* e) {
	QTextBrowser::resizeEvent(e);
	fit();
}

void RichText::fit() {
	if (lineWrapMode() != QTextEdit::NoWrap && viewport()->width() > 0) document()->setTextWidth(viewport()->width());
	int height = int(std::ceil(document()->size().height()));
	if (lineWrapMode() == QTextEdit::NoWrap && horizontalScrollBar()->maximum() > 0)
		height += horizontalScrollBar()->sizeHint().height();
	if (height != minimumHeight() || height != maximumHeight()) setFixedHeight(height);
}

void RichText::wheelEvent(QWheelEvent* e) {
	const bool sideways = std::abs(e->angleDelta().x()) > std::abs(e->angleDelta().y());
	if (sideways && horizontalScrollBar()->maximum() > 0) return QTextBrowser::wheelEvent(e);
	e->ignore(); // scrolls the conversation instead
}

void RichText::keyPressEvent(QKeyEvent* e) {
	if (e->key() == Qt::Key_PageUp || e->key() == Qt::Key_PageDown || e->key() == Qt::Key_Tab) return e->ignore();
	QTextBrowser::keyPressEvent(e);
}

} // namespace kvrun::desktop
