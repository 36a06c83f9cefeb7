// What the views share: the app's state, and what the window knows that is not saved.
#pragma once
#include "tools/desktop/gui/fonts.h"
#include "tools/desktop/markdown.h"
#include "tools/desktop/planner.h"
#include "tools/desktop/state.h"
#include <map>

namespace kvrun::desktop {

struct Region { // of the window, in pixels
	float x, y, width, height;
};

struct Laid { // a message as it was drawn last, so that one out of sight costs nothing
	size_t bytes = 0;
	float width = 0, height = 0;
	std::vector<Block> blocks;
};

struct Ui {
	Ui(State& s, Planner& p) : state(s), planner(p) {}
	State& state;
	Planner& planner;
	Fonts fonts;
	std::string draft; // of the next question
	bool focus_input = true, scroll_to_end = true;
	int scroll_pages = 0; // by keys, of the messages
	int editing = kNone;  // question that is being edited
	std::string edited;
	std::string renaming, new_title; // conversation; empty: none
	bool focus_name = false;         // of it
	std::string deleting;            // conversation that a dialog asks about; empty: none
	bool settings_open = false, help_open = false;
	Settings draft_settings; // of the open dialog
	std::string draft_model;
	std::map<std::string, Region> regions;            // what was drawn in this frame, for tests
	std::map<std::pair<std::string, int>, Laid> laid; // by conversation and message
};

// Each draws at the cursor of the current window.
void draw_list(Ui&);
void draw_messages(Ui&, float height);
void draw_input(Ui&, float height);
void draw_problem(Ui&);
void draw_cache(Ui&, float height);
void draw_settings(Ui&); // a dialog, while it is open
void draw_help(Ui&);     // the same
// A dialog in the middle, as wide as given; false: there is nothing to draw. Ends with ImGui::EndPopup().
bool begin_dialog(const char* name, bool open, float width);
void begin_rename(Ui&, const Conversation&);
void draw_markdown(const std::vector<Block>&, const Fonts&);
void open_settings(Ui&);
void close_settings(Ui&, bool apply);

// Remembers where something stands: the item or child drawn last.
void mark_region(Ui&, const char* name);

} // namespace kvrun::desktop
