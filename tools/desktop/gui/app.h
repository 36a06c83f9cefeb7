// The app: state, engine, files and window, one frame after the other.
#pragma once
#include "tools/desktop/engine.h"
#include "tools/desktop/gui/script.h"
#include "tools/desktop/gui/window.h"
#include "tools/desktop/store.h"

namespace kvrun::desktop {

struct AppOptions {
	std::string model;
	std::optional<std::string> device, kv, chat_template; // in the place of what was saved
	std::optional<int64_t> ctx, max_tokens, seed;
	std::optional<double> temperature, scale;
	std::string folder; // of the app's files; empty: default_folder()
	std::string script; // file; empty: none
	int64_t width = 1200, height = 800;
};

class App {
 public:
	explicit App(const AppOptions&);
	void run(); // until the window is closed or the script quits

 private:
	void connect();
	void take_options(const AppOptions&);
	void listen();       // what the engine and the files say
	void save_changed(); // conversations, at most once a second while answers grow
	void hear_keys();
	bool hear_escape();
	void hear_control(const Keystroke&);
	void draw(const Fonts&);
	double clock() const;
	bool busy() const;

	Store store_;
	State state_;
	Planner planner_;
	Ui ui_{state_, planner_};
	EngineThread engine_;
	std::optional<Script> script_;
	std::unique_ptr<Window> window_;
	FrameTimes frames_;
	std::set<std::string> growing_; // conversations with text that is not saved yet
	double saved_ = 0, heard_ = 0;  // clocks of the last save and the last event
};

} // namespace kvrun::desktop
