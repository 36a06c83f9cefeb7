// The app without its looks: state, engine and files, and the clock that brings their news to the window.
#pragma once
#include "tools/desktop/engine.h"
#include "tools/desktop/gui/frame_times.h"
#include "tools/desktop/planner.h"
#include "tools/desktop/store.h"
#include <QTimer>
#include <functional>
#include <optional>
#include <set>

namespace kvrun::desktop {

struct AppOptions {
	std::string model;                                    // empty: chosen in the window
	std::optional<std::string> device, kv, chat_template; // in the place of what was saved
	std::optional<std::string> theme;
	std::optional<int64_t> ctx, max_tokens, seed;
	std::optional<double> temperature, scale;
	std::string folder; // of the app's files; empty: default_folder()
	std::string script; // file; empty: none
	int64_t width = 1200, height = 800;
};

class App {
 public:
	explicit App(const AppOptions&);
	~App(); // what is not saved yet is
	App(const App&) = delete;

	State state;
	Planner planner;
	FrameTimes frames;
	// The state may be another one: draw it. Called once a frame at most.
	std::function<void()> changed = [] {};
	std::function<bool()> waits = [] { return false; }; // for threads of the window's own
	void begin();                                       // listens from now on
	void listen();                                      // what the engine and the files say
	static double clock();                              // seconds

 private:
	void connect();
	void take_options(const AppOptions&);
	void save_changed();
	Store store_;
	EngineThread engine_;
	QTimer timer_;
	std::set<std::string> growing_; // conversations with text that is not saved yet
	double saved_ = 0;              // clock of the last save
};

} // namespace kvrun::desktop
