// Small widgets that several views have.
#pragma once
#include "tools/desktop/gui/icons.h"
#include <QElapsedTimer>
#include <QLabel>
#include <QPushButton>
#include <QTimer>
#include <QToolButton>
#include <QWheelEvent>

namespace kvrun::desktop {

// A button that shows only its icon; its name is a tooltip, and what a screen reader says.
QToolButton* new_tool(Icon, const char* name);

// A line of text with an ellipsis where it is too long, and all of it as a tooltip.
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

// A button over the whole row: a line, and another below it in a lesser colour, both with an ellipsis.
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

// A dot that breathes while something is under way, once a frame of the display.
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

// The wheel scrolls the page and does not change what lies under it by accident.
template <class T> class Calm : public T {
 public:
	Calm() { this->setFocusPolicy(Qt::StrongFocus); }

 protected:
	void wheelEvent(QWheelEvent* e) override { e->ignore(); }
};

QPushButton* new_button(Icon, const QString& text);
QLabel* new_label(const QString&, const char* role = "");
// Asks whether to do what cannot be undone. The answer "no" has the keyboard.
bool confirm(QWidget* parent, const QString& question, const QString& more, const char* yes, const char* no);

} // namespace kvrun::desktop
