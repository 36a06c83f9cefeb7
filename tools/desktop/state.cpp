// The app's state and the user's actions on it, without a window: conversations, settings, state of the engine.
#include "tools/desktop/state.h"
#include "tools/desktop/words.h"
#include "tools/text.h"
#include <algorithm>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

namespace kvrun::desktop {
namespace {

constexpr size_t kMostRecent = 8; // models
constexpr double kNoted = 0.05;   // seconds; for shorter answers a speed is meaningless

constexpr const char* kNewTitle = "New conversation";
constexpr const char* kBusy = "The answer is still under way: wait for it, or stop it (Esc).";

std::string speed_note(const Ended& e) {
	if (e.answer_tokens < 2 || e.decode_seconds < kNoted) return {};
	return fmt::format("{} tokens, {:.1f} tok/s", e.answer_tokens, (e.answer_tokens - 1) / e.decode_seconds);
}

} // namespace

std::string advice(kvrun_status s, const std::string& said) {
	const std::string text = window_words(said);
	switch (s) {
	case KVRUN_ENOMEM:
		return text +
		       ". Choose less memory or a shorter length for conversations in Settings (Ctrl+,), or a smaller model.";
	case KVRUN_ECONTEXT:
		if (text.find("was trained for") != text.npos) // a greater length would not help
			return text + ". Or begin a new conversation (Ctrl+N).";
		return text +
		       ". Choose a greater length in Settings (Ctrl+,), with memory that it fits, or begin a new conversation "
		       "(Ctrl+N).";
	case KVRUN_EDEVICE: return text + ". Choose another device in Settings (Ctrl+,); the model is loaded again then.";
	case KVRUN_ENOTFOUND:
	case KVRUN_EFORMAT:
	case KVRUN_EUNSUPPORTED: return text + ". Choose another model (Ctrl+O), or look into Settings (Ctrl+,).";
	default: return text;
	}
}

// ---- what the user does

void State::load(const std::string& chosen) {
	const std::string path = chosen; // a copy: `chosen` may be a member that changes
	model = path;
	phase = EnginePhase::Loading;
	load_share = 0;
	problem.clear();
	offered.clear();
	const auto encoder = settings.encoders.find(path);
	send(Load{path, settings.device, 0, settings.chat_template,
	          encoder == settings.encoders.end() ? "" : encoder->second});
}

void State::unload() {
	if (phase != EnginePhase::Ready) return;
	phase = EnginePhase::Off;
	offered.clear();
	send(Unload{}); // active answers end
}

void State::offer(const std::string& path) {
	const bool used = phase == EnginePhase::Ready || phase == EnginePhase::Loading;
	if (!used) return load(path);
	if (path != model) offered = path;
}

std::string State::last_model() const {
	std::error_code ec;
	for (const std::string& path : settings.recent)
		if (std::filesystem::exists(path, ec)) return path;
	return !model.empty() && std::filesystem::exists(model, ec) ? model : "";
}

bool State::have_model() {
	if (phase == EnginePhase::Ready || phase == EnginePhase::Loading) return true;
	const std::string last = last_model();
	if (last.empty()) return problem = "No model is loaded. Choose a model (Ctrl+O).", false;
	load(last);
	return true;
}

void State::use_encoder(const std::string& file) {
	if (model.empty()) {
		problem = file + " is the vision encoder of a model. Choose the model first, then drop its encoder.";
		return;
	}
	settings.encoders[model] = file;
	load(model);
}

void State::forget_model(const std::string& path) {
	std::erase(settings.recent, path);
	settings.encoders.erase(path);
	changed("");
}

std::string State::new_id() const {
	for (int64_t t = calendar();; ++t)
		if (std::string id = fmt::format("c{:x}", t); !find(id)) return id;
}

Conversation& State::create() {
	if (const auto unused =
	        std::ranges::find_if(conversations, [](const Conversation& c) { return c.messages.empty(); });
	    unused != conversations.end()) {
		current_id = unused->id;
		unused->kv = settings.kv, unused->ctx = settings.ctx;
		bring_first(current_id);
		return conversations.front();
	}
	Conversation c;
	c.id = new_id();
	c.title = kNewTitle;
	c.kv = settings.kv;
	c.ctx = settings.ctx;
	c.changed = calendar();
	current_id = c.id; // it is saved with its first message
	return *conversations.insert(conversations.begin(), std::move(c));
}

void State::select(const std::string& id) {
	if (!find(id)) return;
	if (id != current_id) pass_hint();
	current_id = id;
}

void State::select_next(int step) {
	if (conversations.empty()) return;
	const auto at = std::ranges::find(conversations, current_id, &Conversation::id);
	const int n = int(conversations.size()), i = at == conversations.end() ? 0 : int(at - conversations.begin());
	select(std::string(conversations[size_t(((i + step) % n + n) % n)].id));
}

void State::rename(const std::string& id, const std::string& title) {
	Conversation* c = find(id);
	if (!c || title.empty()) return;
	c->title = well_formed(title);
	if (!c->messages.empty()) changed(id);
}

void State::remove(const std::string& id) {
	const auto at = std::ranges::find(conversations, id, &Conversation::id);
	if (at == conversations.end()) return;
	if (answering(id)) send(Stop{id});
	send(Forget{id});
	live_.erase(id);
	drafts.erase(id);
	const size_t i = size_t(at - conversations.begin());
	const std::string gone = id; // a copy: `id` may refer into what is erased
	conversations.erase(at);
	changed(gone);
	if (current_id == gone)
		current_id = conversations.empty() ? "" : conversations[std::min(i, conversations.size() - 1)].id;
}

void State::fork(const std::string& id) {
	const Conversation* from = find(id);
	if (!from || from->messages.empty()) return;
	Conversation c = from->fork(new_id());
	c.changed = calendar();
	current_id = c.id;
	changed(c.id);
	conversations.insert(conversations.begin(), std::move(c));
}

bool State::ask(const std::string& text, const std::vector<std::string>& images) {
	const size_t first = text.find_first_not_of(" \t\r\n");
	if (first == std::string::npos && images.empty()) return false;
	if (const Conversation* c = current(); c && answering(c->id)) return problem = kBusy, false;
	if (!have_model()) return false;
	Conversation& c = current() ? *current() : create();
	if (c.messages.empty() && c.title == kNewTitle)
		c.title = first == std::string::npos ? is_sound_name(images[0]) ? "A sound" : "An image"
		                                     : title_of(well_formed(text.substr(first)));
	Live before;
	before.before = c.last;
	begin_answer(c, c.add(c.last, /*user=*/true, well_formed(text), images), before);
	return true;
}

bool State::retry(int m) {
	Conversation* c = current();
	if (!c || m < 0 || m >= int(c->messages.size()) || c->messages[size_t(m)].user || answering(c->id)) return false;
	if (!have_model()) return false;
	Live before;
	before.before = c->last, before.beside = true;
	begin_answer(*c, c->messages[size_t(m)].parent, before);
	return true;
}

bool State::edit(int m, const std::string& text) {
	Conversation* c = current();
	if (!c || m < 0 || m >= int(c->messages.size()) || !c->messages[size_t(m)].user) return false;
	if (answering(c->id)) return problem = kBusy, false;
	if (!have_model()) return false;
	const Message old = c->messages[size_t(m)];
	Live before;
	before.before = c->last, before.beside = true, before.edited = m;
	begin_answer(*c, c->add(old.parent, /*user=*/true, well_formed(text), old.images), before);
	return true;
}

bool State::go_on(int m) {
	Conversation* c = current();
	if (!c || m != c->last || m < 0 || !c->messages[size_t(m)].cut || answering(c->id)) return false;
	if (!have_model()) return false;
	Live before;
	before.before = c->last;
	start(*c, m, m, before, /*goes_on=*/true);
	return true;
}

void State::begin_answer(Conversation& c, int question, const Live& before) {
	start(c, c.add(question, /*user=*/false, {}), question, before, /*goes_on=*/false);
}

// The conversation becomes the first: `c` is another one afterwards.
void State::start(Conversation& c, int m, int last_message, const Live& before, bool goes_on) {
	problem.clear();
	c.messages[size_t(m)].unfinished = true, c.messages[size_t(m)].cut = false;
	c.messages[size_t(m)].note.clear();
	c.changed = calendar();
	Answer a;
	a.conversation = c.id, a.message = m;
	a.messages = c.template_messages(settings.system, last_message, images_folder);
	a.kv = c.kv, a.ctx = c.ctx, a.sampling = settings.sampling, a.goes_on = goes_on;
	a.seed = settings.sampling.seed < 0 ? std::random_device{}() : uint64_t(settings.sampling.seed) + c.answers;
	++c.answers;
	Live& l = live_[c.id];
	l.answering = m;
	l.read_share = l.read_left = l.begun = l.tokens_per_second = 0;
	l.pieces = 0;
	l.before = before.before, l.edited = before.edited, l.beside = before.beside;
	const std::string id = c.id;
	changed(id);
	bring_first(id);
	send(std::move(a));
}

void State::bring_first(const std::string& id) {
	const auto at = std::ranges::find(conversations, id, &Conversation::id);
	if (at != conversations.end()) std::rotate(conversations.begin(), at, at + 1);
}

// Removes an answer that has failed, and its question if that was an edited one: what was there before is shown, and
// the edited text is in its editor again.
void State::take_back(Conversation& c, int answer) {
	const Live& l = live_[c.id];
	const int question = c.messages[size_t(answer)].parent;
	if (answer + 1 != int(c.messages.size()) || (l.edited != kNone && question + 1 != answer)) return;
	c.messages.pop_back();
	if (l.edited != kNone) {
		Draft& d = drafts[c.id];
		d.edited = l.edited, d.edit_text = c.messages.back().text;
		c.messages.pop_back();
	}
	c.last = l.before;
}

void State::show(int m) {
	Conversation* c = current();
	if (!c || m < 0 || m >= int(c->messages.size()) || answering(c->id)) return;
	c->show(m);
	changed(c->id);
}

void State::stop() {
	if (answering(current_id)) send(Stop{current_id});
}

void State::change_memory(Conversation& c, const Memory& m) {
	Live& l = live_[c.id];
	l.memory.reset();
	if (c.kv == m.kv && c.ctx == m.ctx) return;
	if (answering(c.id)) return void(l.memory = m);
	c.kv = m.kv, c.ctx = m.ctx;
	send(Forget{c.id}); // it will be read again under the new policy
	l.cache = {};
	changed(c.id);
}

void State::apply(const Settings& before, const Settings& after) {
	const Settings s = with_changes(settings, before, after);
	const bool reload = s.device != settings.device || s.chat_template != settings.chat_template;
	settings = s;
	changed("");
	if (Conversation* c = current(); c && (after.kv != before.kv || after.ctx != before.ctx)) {
		Memory m = live(c->id).memory.value_or(Memory{c->kv, c->ctx});
		if (after.kv != before.kv) m.kv = after.kv;
		if (after.ctx != before.ctx) m.ctx = after.ctx;
		change_memory(*c, m);
	}
	if (((reload && phase != EnginePhase::Off) || phase == EnginePhase::Failed) && !model.empty()) load(model);
}

void State::pass_hint() {
	if (problem == kBusy) problem.clear();
}

void State::watch(uint32_t layer, uint32_t kv_head) {
	watched_layer = layer, watched_head = kv_head;
	send(Watch{layer, kv_head});
}

// ---- what the engine says

void State::take(const Event& event) {
	if (const auto* e = std::get_if<Loading>(&event)) load_share = e->share;
	if (const auto* e = std::get_if<Loaded>(&event)) {
		if (!loads_another(e->model)) {
			phase = EnginePhase::Ready;
			facts = *e;
			model = e->model;
		}
		std::erase(settings.recent, e->model);
		settings.recent.insert(settings.recent.begin(), e->model);
		if (settings.recent.size() > kMostRecent) settings.recent.resize(kMostRecent);
		changed("");
		if (!e->no_images.empty()) {
			problem = "The encoder of images and sounds is not used: " + window_words(e->no_images);
			if (settings.encoders.erase(e->model)) changed("");
		}
		if (!e->has_template)
			problem =
			    "This model does not say how a conversation is written. Choose a chat template in Settings (Ctrl+,), "
			    "Expert; chatml suits many models.";
	}
	if (const auto* e = std::get_if<LoadFailed>(&event)) fail_load(*e);
	if (const auto* e = std::get_if<Reading>(&event)) {
		Live& l = live_[e->conversation];
		l.read_share = e->share, l.read_left = e->seconds_left;
	}
	if (const auto* e = std::get_if<Piece>(&event)) {
		Conversation* c = find(e->conversation);
		if (!c || e->message >= int(c->messages.size())) return;
		c->messages[size_t(e->message)].text += e->content;
		c->messages[size_t(e->message)].reasoning += e->reasoning;
		Live& l = live_[e->conversation];
		l.read_share = 1;
		if (!l.pieces++) l.begun = clock();
		if (const double t = clock() - l.begun; t > kNoted) l.tokens_per_second = (l.pieces - 1) / t;
	}
	if (const auto* e = std::get_if<Cache>(&event))
		if (find(e->conversation)) {
			CacheView& v = live_[e->conversation].cache;
			const CacheView before = std::exchange(v, e->view);
			if (!v.total_bytes()) { // the session was in use: keeps the last bytes
				v = before;
				v.tiers = e->view.tiers;
			}
		}
	if (const auto* e = std::get_if<Ended>(&event)) end_answer(*e);
}

// Whether another model was chosen meanwhile, which is loaded next.
bool State::loads_another(const std::string& path) const {
	return phase == EnginePhase::Loading && !path.empty() && path != model;
}

void State::fail_load(const LoadFailed& e) {
	problem = e.text;
	if (const auto at = std::ranges::find(settings.recent, e.model); e.bad_file && at != settings.recent.end()) {
		std::rotate(at, at + 1, settings.recent.end()); // others are tried before it
		changed("");
	}
	if (loads_another(e.model)) return;
	phase = EnginePhase::Failed;
	if (e.back.empty()) return;
	phase = e.kept ? EnginePhase::Ready : EnginePhase::Loading;
	model = e.back;
	load_share = 0;
	const std::string name = std::filesystem::path(e.back).filename().string();
	problem += e.kept ? " " + name + " stays loaded." : " " + name + " is loaded again.";
}

void State::end_answer(const Ended& e) {
	Conversation* c = find(e.conversation);
	if (!c || e.message >= int(c->messages.size())) return;
	Message& m = c->messages[size_t(e.message)];
	m.unfinished = false;
	m.cut = !m.text.empty() && (!e.error.empty() || e.status == KVRUN_ECANCELLED || e.reason != KVRUN_STOP_END);
	m.note = speed_note(e);
	const auto add_note = [&](const char* text) { m.note += (m.note.empty() ? "" : ", ") + std::string(text); };
	if (e.status == KVRUN_ECANCELLED)
		add_note("stopped");
	else if (!e.error.empty()) {
		if (!e.no_model || problem.empty()) problem = advice(e.status, e.error); // else it says why there is none
		add_note("ended by an error: ");
		m.note += window_words(e.error);
	} else if (e.reason == KVRUN_STOP_CONTEXT) {
		problem = advice(KVRUN_ECONTEXT, fmt::format("The context of '{}' is full", c->title));
		add_note("the context is full");
	} else if (e.reason == KVRUN_STOP_LENGTH)
		add_note("at the limit of tokens");
	pass_hint();
	Live& l = live_[e.conversation];
	l.answering = kNone;
	l.read_share = 1;
	if (e.answer_tokens > 1 && e.decode_seconds > kNoted)
		l.tokens_per_second = (e.answer_tokens - 1) / e.decode_seconds;
	const bool failed = !e.error.empty() && e.status != KVRUN_ECANCELLED;
	if (failed && l.beside && m.text.empty() && m.reasoning.empty()) take_back(*c, e.message);
	c->changed = calendar();
	if (l.memory) change_memory(*c, Memory(*l.memory));
	const std::string id = c->id;
	changed(id);
	bring_first(id);
}

// ---- looking at it

Conversation* State::find(const std::string& id) {
	const auto at = std::ranges::find(conversations, id, &Conversation::id);
	return at == conversations.end() ? nullptr : &*at;
}

const Live& State::live(const std::string& id) const {
	static const Live none;
	const auto at = live_.find(id);
	return at == live_.end() ? none : at->second;
}

const Draft& State::draft(const std::string& id) const {
	static const Draft none;
	const auto at = drafts.find(id);
	return at == drafts.end() ? none : at->second;
}

size_t State::n_answering() const {
	return size_t(std::ranges::count_if(live_, [](const auto& l) { return l.second.answering != kNone; }));
}

void State::adopt(std::vector<Conversation> saved) {
	conversations = std::move(saved);
	std::vector<std::string> unused; // an earlier version saved conversations without messages
	for (const Conversation& c : conversations)
		if (c.messages.empty()) unused.push_back(c.id);
	std::erase_if(conversations, [](const Conversation& c) { return c.messages.empty(); });
	for (const std::string& id : unused) changed(id);
	std::ranges::stable_sort(conversations, std::greater{}, &Conversation::changed);
	for (Conversation& c : conversations)
		for (Message& m : c.messages)
			if (std::exchange(m.unfinished, false))
				m.note = "the program ended during this answer; retry gives another", m.cut = !m.text.empty();
	if (!conversations.empty()) current_id = conversations.front().id;
}

} // namespace kvrun::desktop
