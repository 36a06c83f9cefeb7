// The app without its widgets: state, engine and files, and the timer that reports their changes to the window.
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
	std::optional<std::string> device, kv, chat_template; // override saved settings
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
	~App(); // saves everything that is not saved yet
	App(const App&) = delete;

	State state;
	Planner planner;
	FrameTimes frames;
	// Called when the state may have changed, at most once per frame: draw it.
	std::function<void()> changed = [] {};
	std::function<bool()> waits = [] { return false; }; // whether the window waits for threads of its own
	std::function<void()> called = [] {};               // the program was started again: show the window
	void begin();                                       // begins to poll
	void listen();                                      // handles events of the engine and the files
	static double clock();                              // seconds
	std::string keep_image(const std::string& content, const std::string& extension); // Store::add_image()

 private:
	void connect();
	static Settings with_options(Settings, const AppOptions&);
	void save_changed();
	Store store_;
	EngineThread engine_;
	QTimer timer_;
	// Settings as they were saved, and with this run's options: only what the user changes later is saved.
	Settings stored_, begun_;
	std::set<std::string> growing_; // conversations with text that is not saved yet
	double saved_ = 0;              // clock of the last save
};

} // namespace kvrun::desktop
