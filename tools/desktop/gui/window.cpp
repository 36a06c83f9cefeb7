// The window: SDL events and Dear ImGui around Vulkan frames; what is typed, key by key.
#include "tools/desktop/gui/window.h"
#include "tools/chat/text.h"
#include <SDL.h>
#include <SDL_vulkan.h>
#include <algorithm>
#include <cmath>
#include <imgui.h>
#include <string_view>
#if __has_include(<backends/imgui_impl_sdl2.h>)
#include <backends/imgui_impl_sdl2.h>
#else
#include <backends/imgui_impl_sdl.h> // its name before 1.89
#endif

namespace kvrun::desktop {
namespace {

constexpr double kLeastScale = 0.5, kMostScale = 4;
constexpr float kNormalDpi = 96;

void set_style(float scale) {
	ImGuiStyle style;
	ImGui::StyleColorsDark(&style);
	style.WindowPadding = {8, 8};
	style.FramePadding = {8, 4};
	style.ItemSpacing = {8, 6};
	style.FrameRounding = style.ChildRounding = style.PopupRounding = style.GrabRounding = 4;
	style.WindowRounding = 0;
	style.ScrollbarSize = 12;
	style.ScaleAllSizes(scale);
	style.Colors[ImGuiCol_WindowBg] = {0.10f, 0.11f, 0.12f, 1};
	style.Colors[ImGuiCol_PopupBg] = {0.13f, 0.14f, 0.16f, 1};
	style.Colors[ImGuiCol_Button] = {0.22f, 0.25f, 0.30f, 1};
	style.Colors[ImGuiCol_FrameBg] = {0.17f, 0.18f, 0.21f, 1};
	style.Colors[ImGuiCol_NavHighlight] = {1, 0.75f, 0.2f, 1}; // where the keyboard is must be seen
	ImGui::GetStyle() = style;
}

// A hash of all that is drawn.
size_t look_of(const ImDrawData& data) {
	size_t h = 0;
	const auto add = [&](const void* bytes, size_t n) {
		h = h * 31 + std::hash<std::string_view>{}({static_cast<const char*>(bytes), n});
	};
	for (int i = 0; i < data.CmdListsCount; ++i) {
		const ImDrawList& list = *data.CmdLists[i];
		add(list.VtxBuffer.Data, size_t(list.VtxBuffer.Size) * sizeof(ImDrawVert));
		add(list.IdxBuffer.Data, size_t(list.IdxBuffer.Size) * sizeof(ImDrawIdx));
		for (const ImDrawCmd& c : list.CmdBuffer) add(&c.ClipRect, sizeof(c.ClipRect));
	}
	return h | 1; // 0 is no frame's
}

} // namespace

Window::Window(const char* title, int width, int height, double scale) : wanted_scale_(scale) {
	if (SDL_Init(SDL_INIT_VIDEO) != 0)
		fail_chat(KVRUN_EDEVICE, "no window can be opened here: {}; is there a display (DISPLAY, WAYLAND_DISPLAY)?",
		          SDL_GetError());
	SDL_SetHint(SDL_HINT_VIDEO_ALLOW_SCREENSAVER, "1");
	window_ = SDL_CreateWindow(title, SDL_WINDOWPOS_CENTERED, SDL_WINDOWPOS_CENTERED, width, height,
	                           SDL_WINDOW_VULKAN | SDL_WINDOW_RESIZABLE | SDL_WINDOW_ALLOW_HIGHDPI);
	if (!window_)
		fail_chat(KVRUN_EDEVICE, "no window for Vulkan: {}; is a driver installed (mesa-vulkan-drivers)?",
		          SDL_GetError());
	ImGui::CreateContext();
	ImGuiIO& io = ImGui::GetIO();
	io.ConfigFlags |= ImGuiConfigFlags_NavEnableKeyboard;
	io.IniFilename = nullptr; // nothing is written beside the app's own files
	ImGui_ImplSDL2_InitForVulkan(window_);
	frames_ = std::make_unique<VulkanFrames>(window_);
	apply_scale();
	SDL_StartTextInput();
}

Window::~Window() {
	frames_.reset();
	ImGui_ImplSDL2_Shutdown();
	ImGui::DestroyContext();
	SDL_DestroyWindow(window_);
	SDL_Quit();
}

double Window::display_scale() const {
	float dpi = kNormalDpi;
	if (SDL_GetDisplayDPI(std::max(SDL_GetWindowDisplayIndex(window_), 0), nullptr, &dpi, nullptr) != 0) return 1;
	return std::clamp(std::round(double(dpi / kNormalDpi) * 4) / 4, 1., 3.); // quarters
}

void Window::set_scale(double scale) {
	if (scale == wanted_scale_) return;
	wanted_scale_ = scale;
	apply_scale();
}

void Window::apply_scale() {
	scale_ = wanted_scale_ > 0 ? std::clamp(wanted_scale_, kLeastScale, kMostScale) : display_scale();
	set_style(float(scale_));
	fonts_ = load_fonts(float(scale_));
	frames_->upload_fonts();
	look_ = 0;
}

bool Window::pump(int wait_ms) {
	keys_.clear();
	active_ = false;
	SDL_Event e;
	bool open = true;
	for (bool got = wait_ms > 0 ? SDL_WaitEventTimeout(&e, wait_ms) : SDL_PollEvent(&e); got; got = SDL_PollEvent(&e)) {
		active_ = true;
		if (e.type == SDL_QUIT) open = false;
		if (e.type == SDL_WINDOWEVENT) look_ = 0;
		if (e.type == SDL_WINDOWEVENT && e.window.event == SDL_WINDOWEVENT_DISPLAY_CHANGED && wanted_scale_ <= 0 &&
		    display_scale() != scale_)
			apply_scale();
		if (e.type == SDL_KEYDOWN) {
			const Uint16 mod = e.key.keysym.mod;
			const Keystroke k{e.key.keysym.sym, (mod & KMOD_CTRL) != 0, (mod & KMOD_SHIFT) != 0, (mod & KMOD_ALT) != 0};
			keys_.push_back(k);
			if (takes_key(k)) continue;
		}
		ImGui_ImplSDL2_ProcessEvent(&e);
	}
	return open;
}

std::optional<Picture> Window::frame(const std::function<void(const Fonts&)>& draw, bool picture) {
	ImGui_ImplVulkan_NewFrame();
	ImGui_ImplSDL2_NewFrame();
	ImGui::NewFrame();
	draw(fonts_);
	ImGui::Render();
	int width = 0, height = 0;
	SDL_Vulkan_GetDrawableSize(window_, &width, &height);
	const size_t look = look_of(*ImGui::GetDrawData());
	drawn_ = look != look_;
	look_ = !drawn_ || frames_->draw(ImGui::GetDrawData(), width, height) ? look : 0;
	if (!picture) return {};
	return frames_->capture(ImGui::GetDrawData());
}

} // namespace kvrun::desktop
