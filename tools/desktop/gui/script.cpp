// A script that drives the app as a user would: keys and text go through the window's event queue.
#include "tools/desktop/gui/script.h"
#include "tools/chat/store.h"
#include "tools/chat/text.h"
#include <SDL.h>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stb/stb_image_write.h>

namespace kvrun::desktop {
namespace {

constexpr size_t kLongestFile = size_t(16) << 20; // bytes
constexpr double kPatience = 300;                 // seconds
constexpr int kSettleFrames = 3;                  // until ImGui has seen what was typed

void send_key(bool down, int key, int mod) {
	SDL_SetModState(SDL_Keymod(down ? mod : 0));
	SDL_Event e{};
	e.type = down ? SDL_KEYDOWN : SDL_KEYUP;
	e.key.state = down ? SDL_PRESSED : SDL_RELEASED;
	e.key.keysym.sym = key;
	e.key.keysym.scancode = SDL_GetScancodeFromKey(key);
	e.key.keysym.mod = Uint16(mod);
	SDL_PushEvent(&e);
}

void send_text(const std::string& text) {
	for (size_t at = 0; at < text.size();) { // an event holds 31 bytes, of whole characters
		size_t end = std::min(at + SDL_TEXTINPUTEVENT_TEXT_SIZE - 1, text.size());
		while (end < text.size() && end > at && (uint8_t(text[end]) & 0xc0) == 0x80) --end;
		SDL_Event e{};
		e.type = SDL_TEXTINPUT;
		text.copy(e.text.text, end - at, at);
		SDL_PushEvent(&e);
		at = end;
	}
}

} // namespace

Script::Script(const std::string& file) : file_(file) {
	std::istringstream in(read_text_file(file, kLongestFile));
	std::string line;
	for (int number = 1; std::getline(in, line); ++number) {
		if (line.empty() || line[0] == '#') continue;
		const size_t end = std::min(line.find(' '), line.size());
		commands_.push_back({number, line.substr(0, end), line.substr(std::min(end + 1, line.size()))});
	}
}

void Script::bad(const Command& c, const std::string& why) const {
	fail_chat(KVRUN_EINVALID, "{}:{}: {} {}: {}", file_, c.line, c.name, c.rest, why);
}

void Script::step(const Ui& ui, FrameTimes& frames, double now) {
	if (held_key_) {
		send_key(false, std::exchange(held_key_, 0), held_mod_);
		pause_ = kSettleFrames;
	}
	if (pause_ > 0) return void(--pause_);
	if (commands_.empty() || quit_ || !screenshot_.empty()) return;
	if (since_ < 0) since_ = now;
	if (!run(commands_.front(), ui, frames, now)) return;
	commands_.pop_front();
	since_ = -1;
}

bool Script::wait(const Command& c, const Ui& ui, double now) {
	std::istringstream words(c.rest);
	std::string what;
	double seconds = kPatience;
	words >> what >> seconds;
	const State& s = ui.state;
	bool done = false;
	if (what == "loaded") {
		if (s.phase == EnginePhase::Failed) bad(c, s.problem);
		done = s.phase == EnginePhase::Ready;
	} else if (what == "idle") {
		done = s.n_answering() == 0;
	} else if (what == "answering") {
		done = s.live(s.current_id).pieces > 0;
		if (!done && !s.answering(s.current_id)) bad(c, "there is no answer: " + s.problem);
	} else if (what == "reading") {
		done = s.live(s.current_id).read_share > 0;
	} else if (what == "planned") {
		done = ui.planner.plan().has_value();
	} else {
		char* end = nullptr;
		const double pause = std::strtod(what.c_str(), &end);
		if (end == what.c_str() || *end) bad(c, "wait for what?");
		return now - since_ >= pause;
	}
	if (!done && now - since_ > seconds) bad(c, fmt::format("not within {} s", seconds));
	return done;
}

void Script::press(const Command& c) {
	std::string name = c.rest;
	int mod = 0;
	for (const auto& [prefix, bit] : {std::pair{"ctrl+", KMOD_LCTRL}, {"shift+", KMOD_LSHIFT}, {"alt+", KMOD_LALT}})
		if (name.starts_with(prefix)) name.erase(0, std::string_view(prefix).size()), mod |= bit;
	held_key_ = SDL_GetKeyFromName(name.c_str());
	held_mod_ = mod;
	if (!held_key_) bad(c, "SDL knows no such key");
	send_key(true, held_key_, mod);
}

bool Script::run(const Command& c, const Ui& ui, FrameTimes& frames, double now) {
	if (c.name == "wait") return wait(c, ui, now);
	if (c.name == "type") {
		send_text(c.rest);
		pause_ = kSettleFrames;
	} else if (c.name == "paste") {
		SDL_SetClipboardText(read_text_file(c.rest, kLongestFile).c_str());
		press({c.line, "key", "ctrl+V"});
	} else if (c.name == "key") {
		press(c);
	} else if (c.name == "screenshot") {
		screenshot_ = c.rest;
	} else if (c.name == "dump") {
		auto j = nlohmann::ordered_json::parse(ui.state.dump());
		for (const auto& [name, r] : ui.regions) j["regions"][name] = {r.x, r.y, r.width, r.height};
		std::ofstream(c.rest, std::ios::binary) << j.dump(1, '\t') << "\n";
	} else if (c.name == "frames") {
		if (c.rest == "clear") frames.clear();
		if (c.rest == "show") std::printf("%s\n", frames.text().c_str()), std::fflush(stdout);
	} else if (c.name == "quit") {
		quit_ = true;
	} else {
		bad(c, "no such command");
	}
	return true;
}

void write_picture(const Picture& p, const std::string& file) {
	bool done = false;
	if (file.ends_with(".ppm")) {
		std::ofstream out(file, std::ios::binary);
		out << fmt::format("P6\n{} {}\n255\n", p.width, p.height);
		out.write(reinterpret_cast<const char*>(p.rgb.data()), std::streamsize(p.rgb.size()));
		done = bool(out.flush());
	} else {
		done = stbi_write_png(file.c_str(), p.width, p.height, 3, p.rgb.data(), p.width * 3) != 0;
	}
	if (!done) fail_chat(KVRUN_EIO, "{}: the picture could not be written", file);
}

} // namespace kvrun::desktop
