// Small widgets used by several views.
#pragma once
#include "tools/desktop/gui/icons.h"
#include "tools/desktop/words.h"
#include <QElapsedTimer>
#include <QLabel>
#include <QPushButton>
#include <QScrollArea>
#include <QTimer>
#include <QToolButton>
#include <QWheelEvent>

namespace kvrun::desktop {

inline QString text_of(const std::string& s) { return QString::fromStdString(s); }
inline QString size_text(uint64_t bytes) { return text_of(human_size(bytes)); }

// A tooltip with text of a user, a file or a model: marks of HTML in it are shown as they are.
QString plain_tip(const QString&);
// The same for text of a button: an ampersand is one.
QString plain_button(QString);

// A button that shows only its icon; its name is the tooltip and the text for screen readers.
QToolButton* new_tool(Icon, const char* name);

// A title of at most this width; the mark of a fork is not cut off.
QString elided_title(const QFontMetrics&, const QString& title, int width);

// A line of text, shortened by an ellipsis if it is too long; the tooltip has the whole text.
class ElidedLabel : public QLabel {
 public:
	explicit ElidedLabel(const char* role = "", Qt::TextElideMode mode = Qt::ElideRight);
	void set_text(const QString&);
	QSize minimumSizeHint() const override { return {0, QLabel::minimumSizeHint().height()}; }
	QSize sizeHint() const override;

 protected:
	void paintEvent(QPaintEvent*) override;

 private:
	Qt::TextElideMode mode_;
};

// A button over the whole row: two lines of text, the second in a fainter colour, both shortened by an ellipsis.
class RowButton : public QPushButton {
 public:
	RowButton(const QString& line, const QString& below);
	QSize sizeHint() const override;
	QSize minimumSizeHint() const override;

 protected:
	void paintEvent(QPaintEvent*) override;

 private:
	QString line_, below_;
};

// A dot that pulses while something is active; it is redrawn once per frame.
class Pulse : public QWidget {
 public:
	Pulse();

 protected:
	void paintEvent(QPaintEvent*) override;
	void showEvent(QShowEvent*) override { timer_.start(); }
	void hideEvent(QHideEvent*) override { timer_.stop(); }

 private:
	QTimer timer_;
	QElapsedTimer clock_;
};

// Ignores the mouse wheel, so that scrolling the page does not change a value by accident.
template <class T> class Calm : public T {
 public:
	Calm() { this->setFocusPolicy(Qt::StrongFocus); }

 protected:
	void wheelEvent(QWheelEvent* e) override { e->ignore(); }
};

QPushButton* new_button(Icon, const QString& text);
QLabel* new_label(const QString&, const char* role = "");
// A page that scrolls, with its content in the middle, at most `width` em wide and `above` em below the edge.
QScrollArea* new_page(const char* role, QWidget* content, double width, double above);
// Asks before an action that cannot be undone. The default answer is "no".
bool confirm(QWidget* parent, const QString& question, const QString& more, const char* yes, const char* no);

} // namespace kvrun::desktop
