// Fonts of the window, from those that systems have.
#pragma once
struct ImFont;

namespace kvrun::desktop {

struct Fonts {
	ImFont *text = nullptr, *bold = nullptr, *mono = nullptr; // the same one where a system has but one
};
// Into the current ImGui context; scale: of the display.
Fonts load_fonts(float scale);

} // namespace kvrun::desktop
