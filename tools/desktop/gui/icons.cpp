// Line icons in the colours of the theme, drawn at any size.
#include "tools/desktop/gui/icons.h"
#include "tools/desktop/gui/theme.h"
#include <QIconEngine>
#include <QPainter>
#include <QPainterPath>
#include <sstream>

namespace kvrun::desktop {
namespace {

// On a grid of 16: M x y, L x y, C x y radius (a circle), R x y width height (a rectangle), F: filled.
const char* drawing(Icon s) {
	switch (s) {
	case Icon::New: return "M 8 3 L 8 13 M 3 8 L 13 8";
	case Icon::Search: return "C 7 7 4 M 10 10 L 14 14";
	case Icon::Settings: return "M 2 5 L 8 5 M 12 5 L 14 5 C 10 5 2 M 2 11 L 4 11 M 8 11 L 14 11 C 6 11 2";
	case Icon::Copy: return "R 5.5 5.5 8 8 M 10.5 3 L 10.5 2.5 L 2.5 2.5 L 2.5 10.5 L 3 10.5";
	case Icon::Done: return "M 3 8.5 L 6.5 12 L 13 4.5";
	case Icon::Retry:
		return "M 13 8 L 12.3 5.5 L 10.5 3.7 L 8 3 L 5.5 3.7 L 3.7 5.5 L 3 8 L 3.7 10.5 L 5.5 12.3 L 8 13 L 10.5 12.3 "
		       "M 13.5 4 L 13 8 L 9.5 7";
	case Icon::Edit: return "M 3 13 L 3.5 10 L 10.5 3 L 13 5.5 L 6 12.5 L 3 13";
	case Icon::Fork: return "C 4 3.5 1.5 C 12 3.5 1.5 C 8 12.5 1.5 M 4 5 L 4 7 L 8 8.5 L 8 11 M 12 5 L 12 7 L 8 8.5";
	case Icon::Delete:
		return "M 3 4.5 L 13 4.5 M 6 4.5 L 6 2.5 L 10 2.5 L 10 4.5 M 4 4.5 L 4.7 13.5 L 11.3 13.5 L 12 4.5 M 6.7 7 L "
		       "6.9 11 M 9.3 7 L 9.1 11";
	case Icon::Stop: return "F R 4.5 4.5 7 7";
	case Icon::Send: return "M 8 13 L 8 3 M 4 7 L 8 3 L 12 7";
	case Icon::More: return "F C 3.5 8 1.2 C 8 8 1.2 C 12.5 8 1.2";
	case Icon::Open: return "M 2 13 L 2 3.5 L 6 3.5 L 7.5 5 L 13 5 L 13 7 M 2 13 L 4.5 7 L 15 7 L 12.5 13 L 2 13";
	case Icon::Model:
		return "M 8 2 L 13.5 5 L 13.5 11 L 8 14 L 2.5 11 L 2.5 5 L 8 2 M 2.5 5 L 8 8 L 13.5 5 M 8 8 L 8 14";
	case Icon::Close: return "M 4 4 L 12 12 M 12 4 L 4 12";
	case Icon::Left: return "M 10 3 L 5 8 L 10 13";
	case Icon::Right: return "M 6 3 L 11 8 L 6 13";
	case Icon::Image: return "R 2.5 3 11 10 C 6 6.3 1.1 M 2.5 11.5 L 6 9 L 8 10.5 L 10.5 7.5 L 13.5 10.5";
	case Icon::Sound:
		return "M 3 6 L 5.5 6 L 9 3 L 9 13 L 5.5 10 L 3 10 L 3 6 M 11 6 L 12 8 L 11 10 M 13 4.5 L 14.3 8 L 13 11.5";
	case Icon::Play: return "M 5 3 L 13 8 L 5 13 L 5 3";
	case Icon::List: return "R 2 3 12 10 M 6 3 L 6 13";
	case Icon::Back: return "M 13 8 L 3 8 M 7 4 L 3 8 L 7 12";
	}
	return "";
}

class Engine : public QIconEngine {
 public:
	Engine(Icon s, const QColor& c) : shape_(s), colour_(c) {}
	QIconEngine* clone() const override { return new Engine(shape_, colour_); }
	QPixmap pixmap(const QSize& size, QIcon::Mode mode, QIcon::State state) override {
		QPixmap out(size);
		out.fill(Qt::transparent);
		QPainter p(&out);
		paint(&p, QRect({}, size), mode, state);
		return out;
	}
	void paint(QPainter* p, const QRect& r, QIcon::Mode mode, QIcon::State) override {
		std::istringstream words(drawing(shape_));
		QPainterPath path;
		bool filled = false;
		double a = 0, b = 0, c = 0, d = 0;
		for (char op = 0; words >> op;) {
			if (op == 'F') filled = true;
			if (op == 'M' && words >> a >> b) path.moveTo(a, b);
			if (op == 'L' && words >> a >> b) path.lineTo(a, b);
			if (op == 'C' && words >> a >> b >> c) path.addEllipse({a, b}, c, c);
			if (op == 'R' && words >> a >> b >> c >> d) path.addRoundedRect(a, b, c, d, 1, 1);
		}
		QColor colour = colour_;
		if (mode == QIcon::Disabled) colour.setAlphaF(0.4f);
		p->save();
		p->setRenderHint(QPainter::Antialiasing);
		p->translate(r.topLeft());
		p->scale(r.width() / 16., r.height() / 16.);
		p->setPen(filled ? Qt::NoPen : QPen(colour, 1.4, Qt::SolidLine, Qt::RoundCap, Qt::RoundJoin));
		p->setBrush(filled ? QBrush(colour) : Qt::NoBrush);
		p->drawPath(path);
		p->restore();
	}

 private:
	Icon shape_;
	QColor colour_;
};

} // namespace

QIcon icon(Icon s, const QColor& c) { return QIcon(new Engine(s, c)); }
QIcon icon(Icon s) { return icon(s, theme().text); }

} // namespace kvrun::desktop
