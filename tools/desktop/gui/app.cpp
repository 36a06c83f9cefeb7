// The app without its widgets: state, engine and files, and the timer that reports their changes to the window.
#include "tools/desktop/gui/app.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <chrono>
#include <filesystem>

namespace kvrun::desktop {
namespace {

constexpr double kSaveEvery = 1; // seconds between saves of a growing answer
constexpr int kFrameMs = 16;     // between polls of the threads while something is active
constexpr int kRestMs = 250;     // between polls otherwise

} // namespace

App::App(const AppOptions& o)
    : store_(o.folder.empty() ? default_folder() : o.folder), engine_(store_.caches_folder()) {
	connect();
	Store::Saved saved = store_.read();
	stored_ = saved.settings;
	state.settings = begun_ = with_options(saved.settings, o);
	state.adopt(std::move(saved.conversations));
	state.images_folder = store_.images_folder();
	if (std::error_code error; std::filesystem::exists(o.model, error))
		state.load(std::filesystem::path(absolute_path(o.model)).lexically_normal().string()); // as in `recent`
	else if (!o.model.empty())
		state.load(o.model);
	if (!saved.problem.empty()) state.problem = saved.problem;
	if (saved.problem.empty()) store_.keep_images_of(state.conversations);
}

std::string App::keep_image(const std::string& content, const std::string& extension) {
	return store_.add_image(content, extension);
}

App::~App() {
	saved_ = 0;
	save_changed();
}

void App::connect() {
	state.send = [this](Command c) { engine_.send(std::move(c)); };
	state.changed = [this](const std::string& id) {
		if (id.empty()) return store_.save(with_changes(stored_, begun_, state.settings));
		if (const Conversation* c = state.find(id))
			store_.save(*c);
		else
			growing_.insert(id); // saved or removed before the next frame, when the list is consistent again
	};
	state.clock = clock;
	state.calendar = [] {
		using namespace std::chrono;
		return int64_t(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
	};
}

Settings App::with_options(Settings s, const AppOptions& o) {
	if (o.device) s.device = *o.device;
	if (o.kv) s.kv = *o.kv;
	if (o.chat_template) s.chat_template = *o.chat_template;
	if (o.theme) s.theme = *o.theme;
	if (o.ctx) s.ctx = uint32_t(*o.ctx);
	if (o.scale) s.scale = *o.scale;
	if (o.max_tokens) s.sampling.max_tokens = int(*o.max_tokens);
	if (o.seed) s.sampling.seed = *o.seed;
	if (o.temperature) s.sampling.temperature = *o.temperature;
	return s;
}

double App::clock() {
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void App::begin() {
	timer_.setTimerType(Qt::PreciseTimer);
	QObject::connect(&timer_, &QTimer::timeout, [this] { listen(); });
	timer_.start(kFrameMs);
}

void App::listen() {
	const std::vector<Event> events = engine_.take();
	for (const Event& e : events) {
		state.take(e);
		if (const auto* p = std::get_if<Piece>(&e)) growing_.insert(p->conversation);
	}
	save_changed();
	if (store_.take_call()) called();
	const std::string problem = store_.take_problem();
	if (!problem.empty()) state.problem = problem;
	const bool waiting = waits();
	if (!events.empty() || !problem.empty() || waiting) changed();
	const bool busy = waiting || state.n_answering() > 0 || state.phase == EnginePhase::Loading;
	if (const int wanted = busy ? kFrameMs : kRestMs; timer_.interval() != wanted) timer_.setInterval(wanted);
}

void App::save_changed() {
	if (growing_.empty() || clock() - saved_ < kSaveEvery) return;
	for (const std::string& id : growing_)
		if (const Conversation* c = state.find(id))
			store_.save(*c);
		else
			store_.remove(id);
	growing_.clear();
	saved_ = clock();
}

} // namespace kvrun::desktop
