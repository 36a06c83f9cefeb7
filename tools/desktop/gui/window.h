// The window: SDL events and Dear ImGui around Vulkan frames; what is typed, key by key.
#pragma once
#include "tools/desktop/gui/fonts.h"
#include "tools/desktop/gui/vulkan_frames.h"
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace kvrun::desktop {

struct Keystroke {
	int key = 0; // SDL_Keycode
	bool ctrl = false, shift = false, alt = false;
};

class Window {
 public:
	// scale: of text and widgets; 0: the display's. Throws ChatError{KVRUN_EDEVICE}.
	Window(const char* title, int width, int height, double scale);
	~Window();
	Window(const Window&) = delete;

	// Events since the last frame; waits for one for up to wait_ms. False: the user closed the window.
	bool pump(int wait_ms);
	const std::vector<Keystroke>& keys() const { return keys_; } // pressed since the last frame
	bool active() const { return active_; }                      // there were events
	// One frame; draw() calls ImGui. `picture` wants it as a picture, too. What looks as the frame before is not drawn
	// again.
	std::optional<Picture> frame(const std::function<void(const Fonts&)>& draw, bool picture);
	bool drawn() const { return drawn_; } // the last frame was another one than that before
	void set_scale(double);               // 0: the display's
	double scale() const { return scale_; }
	const std::string& device() const { return frames_->device(); }
	// Keys that only the app hears, as Escape while an answer is to be stopped.
	std::function<bool(const Keystroke&)> takes_key = [](const Keystroke&) { return false; };

 private:
	double display_scale() const;
	void apply_scale();
	struct SDL_Window* window_ = nullptr;
	std::unique_ptr<VulkanFrames> frames_;
	Fonts fonts_;
	double scale_ = 1, wanted_scale_ = 1;
	bool active_ = false, drawn_ = false;
	size_t look_ = 0; // hash of the last frame; 0: it has to be drawn in any case
	std::vector<Keystroke> keys_;
};

} // namespace kvrun::desktop
