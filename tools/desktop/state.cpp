// The app's state and the user's actions on it, without a window: conversations, settings, state of the engine.
#include "tools/desktop/state.h"
#include "tools/desktop/words.h"
#include "tools/text.h"
#include <algorithm>
#include <random>
#include <utility>

namespace kvrun::desktop {
namespace {

constexpr size_t kMostRecent = 8; // models
constexpr double kNoted = 0.05;   // seconds; for shorter answers a speed is meaningless

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
	const std::string path = chosen; // a copy: `chosen` may refer into the list that changes
	model = path;
	phase = EnginePhase::Loading;
	load_share = 0;
	problem.clear();
	std::erase(settings.recent, path);
	settings.recent.insert(settings.recent.begin(), path);
	if (settings.recent.size() > kMostRecent) settings.recent.resize(kMostRecent);
	changed("");
	const auto encoder = settings.encoders.find(path);
	send(Load{path, settings.device, 0, settings.chat_template,
	          encoder == settings.encoders.end() ? "" : encoder->second});
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
	Conversation c;
	c.id = new_id();
	c.title = "New conversation";
	c.kv = settings.kv;
	c.ctx = settings.ctx;
	c.changed = calendar();
	current_id = c.id;
	changed(c.id);
	return *conversations.insert(conversations.begin(), std::move(c));
}

void State::select(const std::string& id) {
	if (find(id)) current_id = id;
}

void State::select_next(int step) {
	if (conversations.empty()) return;
	const auto at = std::ranges::find(conversations, current_id, &Conversation::id);
	const int n = int(conversations.size()), i = at == conversations.end() ? 0 : int(at - conversations.begin());
	current_id = conversations[size_t(((i + step) % n + n) % n)].id;
}

void State::rename(const std::string& id, const std::string& title) {
	Conversation* c = find(id);
	if (!c || title.empty()) return;
	c->title = well_formed(title);
	changed(id);
}

void State::remove(const std::string& id) {
	const auto at = std::ranges::find(conversations, id, &Conversation::id);
	if (at == conversations.end()) return;
	if (answering(id)) send(Stop{id});
	send(Forget{id});
	live_.erase(id);
	const size_t i = size_t(at - conversations.begin());
	const std::string gone = id; // a copy: `id` may refer into what is erased
	conversations.erase(at);
	changed(gone);
	if (current_id == gone)
		current_id = conversations.empty() ? "" : conversations[std::min(i, conversations.size() - 1)].id;
}

void State::fork(const std::string& id) {
	const Conversation* from = find(id);
	if (!from) return;
	Conversation c = from->fork(new_id());
	c.changed = calendar();
	current_id = c.id;
	changed(c.id);
	conversations.insert(conversations.begin(), std::move(c));
}

bool State::ask(const std::string& text, const std::vector<std::string>& images) {
	const size_t first = text.find_first_not_of(" \t\r\n");
	if (first == std::string::npos && images.empty()) return false;
	Conversation& c = current() ? *current() : create();
	if (answering(c.id)) return problem = "The answer is still under way: wait for it, or stop it (Esc).", false;
	if (c.messages.empty())
		c.title = first == std::string::npos ? "An image" : title_of(well_formed(text.substr(first)));
	begin_answer(c, c.add(c.last, /*user=*/true, well_formed(text), images));
	return true;
}

bool State::retry(int m) {
	Conversation* c = current();
	if (!c || m < 0 || m >= int(c->messages.size()) || c->messages[size_t(m)].user || answering(c->id)) return false;
	begin_answer(*c, c->messages[size_t(m)].parent);
	return true;
}

bool State::edit(int m, const std::string& text) {
	Conversation* c = current();
	if (!c || m < 0 || m >= int(c->messages.size()) || !c->messages[size_t(m)].user || answering(c->id)) return false;
	const Message old = c->messages[size_t(m)];
	begin_answer(*c, c->add(old.parent, /*user=*/true, well_formed(text), old.images));
	return true;
}

void State::begin_answer(Conversation& c, int question) {
	problem.clear();
	const int m = c.add(question, /*user=*/false, {});
	c.messages[size_t(m)].unfinished = true;
	c.changed = calendar();
	Answer a{c.id, m, c.template_messages(settings.system, question, images_folder), c.kv, c.ctx, settings.sampling, 0};
	a.seed = settings.sampling.seed < 0 ? std::random_device{}() : uint64_t(settings.sampling.seed) + c.answers;
	++c.answers;
	Live& l = live_[c.id];
	l.answering = m;
	l.read_share = l.read_left = l.begun = l.tokens_per_second = 0;
	l.pieces = 0;
	changed(c.id);
	if (phase == EnginePhase::Ready || phase == EnginePhase::Loading) return send(std::move(a));
	Ended e;
	e.conversation = c.id, e.message = m, e.status = KVRUN_EDEVICE;
	e.error = "no model is loaded";
	end_answer(e);
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

void State::apply(const Settings& s) {
	const bool reload = s.device != settings.device || s.chat_template != settings.chat_template;
	settings = s;
	changed("");
	if (Conversation* c = current(); c && !answering(c->id) && (c->kv != s.kv || c->ctx != s.ctx)) {
		c->kv = s.kv, c->ctx = s.ctx;
		send(Forget{c->id}); // it will be read again under the new policy
		live_[c->id].cache = {};
		changed(c->id);
	}
	if ((reload && phase != EnginePhase::Off) || phase == EnginePhase::Failed) load(model);
}

void State::watch(uint32_t layer, uint32_t kv_head) {
	watched_layer = layer, watched_head = kv_head;
	send(Watch{layer, kv_head});
}

// ---- what the engine says

void State::take(const Event& event) {
	if (const auto* e = std::get_if<Loading>(&event)) load_share = e->share;
	if (const auto* e = std::get_if<Loaded>(&event)) {
		phase = EnginePhase::Ready;
		facts = *e;
		if (!e->no_images.empty()) {
			problem = "Images are not read: " + window_words(e->no_images);
			if (settings.encoders.erase(e->model)) changed("");
		}
		if (!e->has_template)
			problem =
			    "This model does not say how a conversation is written. Choose a chat template in Settings (Ctrl+,), "
			    "Expert; chatml suits many models.";
	}
	if (const auto* e = std::get_if<LoadFailed>(&event)) {
		phase = EnginePhase::Failed;
		problem = e->text;
	}
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

void State::end_answer(const Ended& e) {
	Conversation* c = find(e.conversation);
	if (!c || e.message >= int(c->messages.size())) return;
	Message& m = c->messages[size_t(e.message)];
	m.unfinished = false;
	m.note = speed_note(e);
	const auto add_note = [&](const char* text) { m.note += (m.note.empty() ? "" : ", ") + std::string(text); };
	if (e.status == KVRUN_ECANCELLED)
		add_note("stopped");
	else if (!e.error.empty()) {
		problem = advice(e.status, e.error);
		add_note("ended by an error: ");
		m.note += window_words(e.error);
	} else if (e.reason == KVRUN_STOP_CONTEXT) {
		problem = advice(KVRUN_ECONTEXT, fmt::format("The context of '{}' is full", c->title));
		add_note("the context is full");
	} else if (e.reason == KVRUN_STOP_LENGTH)
		add_note("at the limit of tokens");
	Live& l = live_[e.conversation];
	l.answering = kNone;
	l.read_share = 1;
	if (e.answer_tokens > 1 && e.decode_seconds > kNoted)
		l.tokens_per_second = (e.answer_tokens - 1) / e.decode_seconds;
	c->changed = calendar();
	changed(c->id);
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

size_t State::n_answering() const {
	return size_t(std::ranges::count_if(live_, [](const auto& l) { return l.second.answering != kNone; }));
}

void State::adopt(std::vector<Conversation> saved) {
	conversations = std::move(saved);
	std::ranges::stable_sort(conversations, std::greater{}, &Conversation::changed);
	for (Conversation& c : conversations)
		for (Message& m : c.messages)
			if (std::exchange(m.unfinished, false))
				m.note = "the program ended during this answer; retry gives another";
	if (!conversations.empty()) current_id = conversations.front().id;
}

} // namespace kvrun::desktop
