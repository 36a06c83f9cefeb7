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
	QColor tiers[4];                            // by kvrun_tier; told apart by the colour-blind, too
	QColor weights, work, cache, scales, other; // of bars
};
const Theme& theme();

// name: "light", "dark", or what the desktop has; scale: of text, 0: as the desktop has it. Changes all widgets.
void apply_theme(const std::string& name, double scale);
int em(double n = 1); // pixels of n heights of the text
// Before the first apply_theme(): what the desktop's font is.
void remember_desktop_font();

// Marks a widget for style sheets and for tests, which find it by this name.
void set_role(QWidget*, const char* role);

} // namespace kvrun::desktop
