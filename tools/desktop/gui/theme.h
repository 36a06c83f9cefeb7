// Colours and sizes of the window, light and dark.
#pragma once
#include <QColor>
#include <QString>

class QWidget;

namespace kvrun::desktop {

struct Theme {
	bool dark;
	QColor page, side, card, text, dim, line, accent, on_accent, bubble, code, hover, chosen, bad, bad_page;
	QColor keyword, string, number, comment;    // of code
	QColor tiers[4];                            // by kvrun_tier; distinguishable for the colour-blind
	QColor weights, work, cache, scales, other; // of bars
};
const Theme& theme();

// name: "light", "dark", else the desktop's; scale: of text, 0: the desktop's. Changes all widgets.
void apply_theme(const std::string& name, double scale);
int em(double n = 1); // n text heights in pixels
// Call before the first apply_theme(): stores the desktop's font.
void remember_desktop_font();

// Names a widget for style sheets and tests.
void set_role(QWidget*, const char* role);

} // namespace kvrun::desktop
