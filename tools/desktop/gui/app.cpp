// The app: state, engine, files and window, one frame after the other.
#include "tools/desktop/gui/app.h"
#include "tools/chat/text.h"
#include <SDL.h>
#include <chrono>
#include <cmath>
#include <imgui.h>
#include <thread>

namespace kvrun::desktop {
namespace {

constexpr double kFrame = 1. / 60; // seconds
constexpr double kSaveEvery = 1;   // seconds, of an answer that grows
constexpr double kAwake = 0.5;     // seconds after an event in which frames follow each other
constexpr int kSleepMs = 100;      // between frames while nothing happens
constexpr double kScaleStep = 1.125;

} // namespace

App::App(const AppOptions& o) : store_(o.folder.empty() ? default_folder() : o.folder) {
	connect();
	Store::Saved saved = store_.read();
	state_.settings = saved.settings;
	state_.adopt(std::move(saved.conversations));
	take_options(o);
	if (!o.script.empty()) script_.emplace(o.script);
	window_ = std::make_unique<Window>("kvrun", int(o.width), int(o.height), state_.settings.scale);
	window_->takes_key = [this](const Keystroke& k) { return k.key == SDLK_ESCAPE && hear_escape(); };
	state_.load(o.model);
	state_.problem = saved.problem;
	PlanRequest r{o.model, state_.settings.device, state_.settings.kv, state_.settings.ctx, 0};
	planner_.ask(r); // finds the devices, too
}

void App::connect() {
	state_.send = [this](Command c) { engine_.send(std::move(c)); };
	state_.changed = [this](const std::string& id) {
		if (id.empty()) return store_.save(state_.settings);
		if (const Conversation* c = state_.find(id))
			store_.save(*c);
		else
			growing_.insert(id); // saved or removed before the next frame, when the list is whole again
	};
	state_.clock = [this] { return clock(); };
	state_.calendar = [] {
		using namespace std::chrono;
		return int64_t(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
	};
}

void App::take_options(const AppOptions& o) {
	Settings& s = state_.settings;
	if (o.device) s.device = *o.device;
	if (o.kv) s.kv = *o.kv;
	if (o.chat_template) s.chat_template = *o.chat_template;
	if (o.ctx) s.ctx = uint32_t(*o.ctx);
	if (o.scale) s.scale = *o.scale;
	if (o.max_tokens) s.sampling.max_tokens = int(*o.max_tokens);
	if (o.seed) s.sampling.seed = *o.seed;
	if (o.temperature) s.sampling.temperature = *o.temperature;
}

double App::clock() const {
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool App::busy() const {
	return state_.n_answering() > 0 || state_.phase == EnginePhase::Loading || (script_ && !script_->done()) ||
	       clock() - heard_ < kAwake;
}

void App::listen() {
	for (const Event& e : engine_.take()) {
		state_.take(e);
		if (const auto* p = std::get_if<Piece>(&e)) growing_.insert(p->conversation);
	}
	save_changed();
	if (const std::string problem = store_.take_problem(); !problem.empty()) state_.problem = problem;
}

void App::save_changed() {
	if (growing_.empty() || clock() - saved_ < kSaveEvery) return;
	for (const std::string& id : growing_)
		if (const Conversation* c = state_.find(id))
			store_.save(*c);
		else
			store_.remove(id);
	growing_.clear();
	saved_ = clock();
}

void App::run() {
	double last = clock(), due = last; // a frame that came late does not move the next
	for (;;) {
		const double begun = clock();
		if (!window_->pump(busy() ? 0 : kSleepMs)) break;
		if (window_->active()) heard_ = begun;
		hear_keys();
		listen();
		window_->set_scale(state_.settings.scale);
		const std::string screenshot = script_ ? script_->take_screenshot() : "";
		const auto picture = window_->frame([this](const Fonts& f) { draw(f); }, !screenshot.empty());
		if (picture) write_picture(*picture, screenshot);
		const double drawn = clock();
		if (script_) {
			script_->step(ui_, frames_, drawn);
			if (script_->quits()) break;
		}
		due = std::max(due + kFrame, clock() - kFrame);
		if (const double left = due - clock(); busy() && left > 0)
			std::this_thread::sleep_for(std::chrono::duration<double>(left));
		const double now = clock();
		frames_.add((now - last) * 1000, (drawn - begun) * 1000, window_->drawn());
		last = now;
	}
	saved_ = 0;
	save_changed();
}

// ---- keys

// True: nobody else is to hear it.
bool App::hear_escape() {
	if (ui_.settings_open) return close_settings(ui_, false), true;
	if (ui_.help_open || !ui_.deleting.empty() || !ui_.renaming.empty() || ui_.editing != kNone) {
		ui_.help_open = false;
		ui_.deleting.clear(), ui_.renaming.clear();
		ui_.editing = kNone;
		return ui_.focus_input = true;
	}
	state_.stop();
	return true; // a field would forget what was typed into it
}

void App::hear_keys() {
	for (const Keystroke& k : window_->keys()) {
		if (k.key == SDLK_F1) ui_.help_open = !ui_.help_open;
		if (ui_.settings_open && k.ctrl && k.key == SDLK_RETURN) close_settings(ui_, true);
		if (ui_.settings_open || ui_.help_open || !ui_.deleting.empty()) continue;
		const Conversation* c = state_.current();
		if (k.key == SDLK_F2 && c) begin_rename(ui_, *c);
		if (k.key == SDLK_PAGEUP) --ui_.scroll_pages;
		if (k.key == SDLK_PAGEDOWN) ++ui_.scroll_pages;
		if (k.alt && (k.key == SDLK_LEFT || k.key == SDLK_RIGHT) && c && c->last != kNone) {
			const std::vector<int> all = c->siblings(c->last);
			const auto at = std::ranges::find(all, c->last);
			if (k.key == SDLK_LEFT && at != all.begin()) state_.show(at[-1]);
			if (k.key == SDLK_RIGHT && at + 1 != all.end()) state_.show(at[1]);
		}
		if (k.ctrl) hear_control(k);
	}
}

void App::hear_control(const Keystroke& k) {
	Conversation* c = state_.current();
	const int last = c ? c->last : kNone;
	const bool answer = last != kNone && !c->messages[size_t(last)].user;
	Settings& s = state_.settings;
	switch (k.key) {
	case SDLK_n: state_.create(); break;
	case SDLK_TAB: state_.select_next(k.shift ? -1 : 1); break;
	case SDLK_k:
		if (c) state_.fork(c->id);
		break;
	case SDLK_DELETE:
		if (c) ui_.deleting = c->id;
		return;
	case SDLK_r:
		if (answer) state_.retry(last);
		break;
	case SDLK_e:
		if (!answer || state_.answering(c->id)) return;
		ui_.editing = c->messages[size_t(last)].parent;
		ui_.edited = c->messages[size_t(ui_.editing)].text;
		return;
	case SDLK_c:
		if (k.shift && answer) SDL_SetClipboardText(c->messages[size_t(last)].text.c_str());
		return;
	case SDLK_COMMA: return open_settings(ui_);
	case SDLK_PLUS:
	case SDLK_EQUALS:
	case SDLK_KP_PLUS: s.scale = window_->scale() * kScaleStep; return state_.changed("");
	case SDLK_MINUS:
	case SDLK_KP_MINUS: s.scale = window_->scale() / kScaleStep; return state_.changed("");
	case SDLK_0: s.scale = 0; return state_.changed("");
	case SDLK_l: break;
	default: return;
	}
	ui_.focus_input = ui_.scroll_to_end = true;
}

// ---- frames

void App::draw(const Fonts& fonts) {
	ui_.fonts = fonts;
	ui_.regions.clear();
	const float em = ImGui::GetFontSize();
	ImGui::SetNextWindowPos({0, 0});
	ImGui::SetNextWindowSize(ImGui::GetIO().DisplaySize);
	ImGui::Begin("kvrun", nullptr,
	             ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoSavedSettings |
	                 ImGuiWindowFlags_NoBringToFrontOnFocus);
	ImGui::BeginChild("list", {15 * em, 0}, true);
	draw_list(ui_);
	ImGui::EndChild();
	mark_region(ui_, "list");
	ImGui::SameLine();
	ImGui::BeginChild("conversation", {0, 0});
	const float gap = ImGui::GetStyle().ItemSpacing.y, input = 3.4f * em;
	const float cache = ImGui::GetFrameHeight() + 2.1f * em + ImGui::GetTextLineHeight() + 4 * gap;
	const float width = ImGui::GetContentRegionAvail().x - 4 * em;
	const float problem =
	    state_.problem.empty() ? 0 : ImGui::CalcTextSize(state_.problem.c_str(), nullptr, false, width).y + 2 * gap;
	draw_messages(ui_, -(input + cache + problem + 2 * gap));
	draw_problem(ui_);
	draw_input(ui_, input);
	draw_cache(ui_, cache);
	ImGui::EndChild();
	draw_settings(ui_);
	draw_help(ui_);
	ImGui::End();
}

void mark_region(Ui& ui, const char* name) {
	const ImVec2 from = ImGui::GetItemRectMin(), size = ImGui::GetItemRectSize();
	ui.regions[name] = {from.x, from.y, size.x, size.y};
}

} // namespace kvrun::desktop
