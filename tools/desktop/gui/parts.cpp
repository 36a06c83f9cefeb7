// Small widgets used by several views.
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include <QHBoxLayout>
#include <QMessageBox>
#include <QPainter>
#include <QStyleOptionButton>
#include <QTextDocument>
#include <cmath>

namespace kvrun::desktop {

QString plain_tip(const QString& text) {
	return Qt::mightBeRichText(text) ? "<p style=\"white-space:pre-wrap\">" + text.toHtmlEscaped() + "</p>" : text;
}

QString plain_button(QString text) { return text.replace('&', "&&"); }

QToolButton* new_tool(Icon shape, const char* name) {
	auto* b = new QToolButton;
	b->setIcon(icon(shape));
	b->setIconSize({em(1), em(1)});
	b->setToolTip(name);
	b->setAccessibleName(QString(name).section(" (", 0, 0));
	b->setFocusPolicy(Qt::TabFocus);
	return b;
}

QString elided_title(const QFontMetrics& font, const QString& title, int width) {
	const qsizetype mark = title.endsWith(')') ? title.lastIndexOf(" (fork") : -1;
	if (mark < 0) return font.elidedText(title, Qt::ElideRight, width);
	const QString end = title.mid(mark);
	return font.elidedText(title.left(mark), Qt::ElideRight, width - font.horizontalAdvance(end)) + end;
}

ElidedLabel::ElidedLabel(const char* role, Qt::TextElideMode mode) : mode_(mode) {
	if (*role) set_role(this, role);
	setTextFormat(Qt::PlainText);
	setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Preferred);
}

void ElidedLabel::set_text(const QString& text) {
	if (text == this->text()) return;
	setText(text);
	setToolTip(plain_tip(text));
}

QSize ElidedLabel::sizeHint() const {
	return {fontMetrics().horizontalAdvance(text()) + em(0.3), QLabel::sizeHint().height()};
}

void ElidedLabel::paintEvent(QPaintEvent*) {
	QPainter p(this);
	p.setPen(palette().color(foregroundRole()));
	const int width = contentsRect().width();
	p.drawText(contentsRect(), int(Qt::AlignVCenter | Qt::AlignLeft),
	           mode_ == Qt::ElideRight ? elided_title(fontMetrics(), text(), width)
	                                   : fontMetrics().elidedText(text(), mode_, width));
}

RowButton::RowButton(const QString& line, const QString& below) : line_(line), below_(below) {
	setProperty("row", true);
	setAccessibleName(below.isEmpty() ? line : line + ", " + below);
	setToolTip(plain_tip(below.isEmpty() ? line : line + "\n" + below));
	setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
}

QSize RowButton::sizeHint() const { return {em(20), em(below_.isEmpty() ? 1.8 : 2.9)}; }
QSize RowButton::minimumSizeHint() const { return {em(6), sizeHint().height()}; }

void RowButton::paintEvent(QPaintEvent* e) {
	QPushButton::paintEvent(e);
	QPainter p(this);
	const QRect in = rect().adjusted(em(0.7), em(0.3), -em(0.7), -em(0.3));
	const int line = fontMetrics().height();
	p.setPen(theme().text);
	QRect at = in;
	if (!below_.isEmpty()) at.setHeight(line);
	p.drawText(at, int(Qt::AlignVCenter | Qt::AlignLeft), fontMetrics().elidedText(line_, Qt::ElideRight, in.width()));
	p.setPen(theme().dim);
	at = QRect(in.left(), in.bottom() - line + 1, in.width(), line);
	if (!below_.isEmpty())
		p.drawText(at, int(Qt::AlignVCenter | Qt::AlignLeft),
		           fontMetrics().elidedText(below_, Qt::ElideMiddle, in.width()));
}

Pulse::Pulse() {
	constexpr int kFrameMs = 16;
	setFixedSize(em(0.9), em(0.9));
	clock_.start();
	timer_.setTimerType(Qt::PreciseTimer);
	timer_.setInterval(kFrameMs);
	connect(&timer_, &QTimer::timeout, this, [this] { update(); });
}

void Pulse::paintEvent(QPaintEvent*) {
	constexpr double kBreath = 1400; // ms
	const double share = 0.5 + 0.5 * std::sin(double(clock_.elapsed()) / kBreath * 2 * M_PI);
	QPainter p(this);
	p.setRenderHint(QPainter::Antialiasing);
	QColor c = theme().accent;
	c.setAlphaF(float(0.35 + 0.65 * share));
	p.setPen(Qt::NoPen);
	p.setBrush(c);
	const double radius = width() * (0.3 + 0.15 * share);
	p.drawEllipse(QRectF(rect()).center(), radius, radius);
}

QPushButton* new_button(Icon i, const QString& text) {
	auto* b = new QPushButton(icon(i), "\u2002" + text); // space between icon and text
	b->setIconSize({em(1), em(1)});
	b->setAccessibleName(text);
	return b;
}

QLabel* new_label(const QString& text, const char* role) {
	auto* l = new QLabel(text);
	l->setTextFormat(Qt::PlainText);
	l->setWordWrap(true);
	if (*role) set_role(l, role);
	return l;
}

QScrollArea* new_page(const char* role, QWidget* content, double width, double above) {
	auto* scroll = new QScrollArea;
	scroll->setWidgetResizable(true);
	scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
	scroll->setFocusPolicy(Qt::NoFocus);
	auto* page = new QWidget;
	set_role(page, role);
	auto* centre = new QHBoxLayout(page);
	centre->setContentsMargins(em(), em(above), em(), em());
	content->setMaximumWidth(em(width));
	centre->addStretch(1);
	centre->addWidget(content, 100);
	centre->addStretch(1);
	scroll->setWidget(page);
	return scroll;
}

bool confirm(QWidget* parent, const QString& question, const QString& more, const char* yes, const char* no) {
	QMessageBox box(parent);
	box.setWindowTitle("kvrun");
	box.setTextFormat(Qt::PlainText);
	box.setText(question);
	box.setInformativeText(more);
	QPushButton* does = box.addButton(yes, QMessageBox::DestructiveRole);
	does->setProperty("bad", true);
	QPushButton* keeps = box.addButton(no, QMessageBox::RejectRole);
	box.setDefaultButton(keeps);
	box.setEscapeButton(keeps);
	keeps->setFocus();
	box.exec();
	return box.clickedButton() == does;
}

} // namespace kvrun::desktop
