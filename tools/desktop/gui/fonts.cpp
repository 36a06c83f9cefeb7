// Fonts of the window, from those that systems have.
#include "tools/desktop/gui/fonts.h"
#include <cmath>
#include <imgui.h>
#include <string>
#include <unistd.h>

namespace kvrun::desktop {
namespace {

constexpr float kPixels = 16; // of text, at scale 1

// Latin, Greek, Cyrillic, punctuation, arrows, mathematics, boxes; the glyphs that a font has of them.
constexpr ImWchar kRanges[] = {0x20,   0x17f,  0x370,  0x3ff,  0x400,  0x52f,  0x2010, 0x205e, 0x20a0,
                               0x20bf, 0x2190, 0x22ff, 0x2500, 0x25ff, 0xfffd, 0xfffd, 0};

struct Family {
	const char *text, *bold, *mono;
};
constexpr const char* kFolders[] = {"/usr/share/fonts/truetype/", "/usr/share/fonts/TTF/", "/usr/share/fonts/",
                                    "/usr/local/share/fonts/"};
constexpr Family kFamilies[] = {
    {"dejavu/DejaVuSans.ttf", "dejavu/DejaVuSans-Bold.ttf", "dejavu/DejaVuSansMono.ttf"},
    {"DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf"},
    {"dejavu-sans-fonts/DejaVuSans.ttf", "dejavu-sans-fonts/DejaVuSans-Bold.ttf",
     "dejavu-sans-mono-fonts/DejaVuSansMono.ttf"},
    {"noto/NotoSans-Regular.ttf", "noto/NotoSans-Bold.ttf", "noto/NotoSansMono-Regular.ttf"},
    {"liberation/LiberationSans-Regular.ttf", "liberation/LiberationSans-Bold.ttf",
     "liberation/LiberationMono-Regular.ttf"},
};

ImFont* load(const std::string& folder, const char* file, float pixels) {
	const std::string path = folder + file;
	return access(path.c_str(), R_OK) == 0
	           ? ImGui::GetIO().Fonts->AddFontFromFileTTF(path.c_str(), pixels, nullptr, kRanges)
	           : nullptr;
}

} // namespace

Fonts load_fonts(float scale) {
	ImGui::GetIO().Fonts->Clear();
	const float pixels = std::round(kPixels * scale);
	Fonts f;
	for (const char* folder : kFolders)
		for (const Family& family : kFamilies) {
			if (f.text) break;
			f.text = load(folder, family.text, pixels);
			if (!f.text) continue;
			f.bold = load(folder, family.bold, pixels);
			f.mono = load(folder, family.mono, pixels);
		}
	if (!f.text) { // what Dear ImGui brings: Latin only
		ImFontConfig config;
		config.SizePixels = std::round(13 * scale);
		f.text = ImGui::GetIO().Fonts->AddFontDefault(&config);
	}
	if (!f.bold) f.bold = f.text;
	if (!f.mono) f.mono = f.text;
	return f;
}

} // namespace kvrun::desktop
