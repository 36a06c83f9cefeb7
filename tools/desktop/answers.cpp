// Active answers on one engine: sessions by conversation, one batch for all, events for the window.
#include "tools/desktop/answers.h"
#include "tools/answer/reply.h"
#include "tools/audio/audio_file.h"
#include "tools/image/image_file.h"
#include "tools/json_text.h"
#include "tools/text.h"
#include <algorithm>

namespace kvrun::desktop {
namespace {

constexpr size_t kMostHeld = 16;     // conversations whose caches are kept
constexpr uint32_t kCheckpoints = 4; // states kept for retry and edit under policies that compress
constexpr auto kReportEvery = std::chrono::milliseconds(200);

} // namespace

struct Answers::Active final : ShownAnswer {
	Active(const Answer& a, ReplyHandle reply, Tell& to)
	    : ShownAnswer(std::move(reply)), conversation(a.conversation), message(a.message), tell(to) {}
	void end() { // call once it has ended
		rethrow();
		ended = true;
		show_rest();
	}
	const std::string conversation;
	const int message;
	kvrun_session* session = nullptr; // of held_
	uint32_t id = 0;                  // in the batch
	uint32_t reused = 0, prompt = 0;  // tokens
	bool stopped = false;

 private:
	void show(const kvrun_reply_part& part) override {
		if (!ended || *part.content || *part.reasoning)
			tell(Piece{conversation, message, part.content, part.reasoning});
	}
	bool reading(double share, double seconds_left) override {
		tell(Reading{conversation, message, share, seconds_left});
		return true;
	}
	Tell& tell;
	bool ended = false;
};

Answers::Answers(EngineHandle engine, const std::string& chat_template, const SavedCaches& files, Tell tell)
    : engine_(std::move(engine)), files_(files), tell_(std::move(tell)) {
	choose_template(chat_, engine_.get(), chat_template);
	kvrun_chat_features features = KVRUN_CHAT_FEATURES_INIT;
	const kvrun_status known = chat_features(engine_.get(), chat_, features);
	has_template_ = known != KVRUN_ENOTFOUND || !chat_template.empty();
	if (has_template_) check_call(known);
	check_call(create(batch_, kvrun_batch_new, engine_.get()));
}

Answers::~Answers() {
	while (!active_.empty()) stop(active_.back()->conversation);
	batch_.reset();
	while (unsaved()) save_one();
}

bool Answers::unsaved() const {
	return std::ranges::any_of(held_, [](const auto& h) { return h.second.session && !h.second.saved; });
}

void Answers::save_one() {
	auto latest = held_.end();
	for (auto h = held_.begin(); h != held_.end(); ++h)
		if (h->second.session && !h->second.saved && (latest == held_.end() || h->second.used > latest->second.used))
			latest = h;
	if (latest != held_.end()) save(latest->first, latest->second);
}

void Answers::save(const std::string& conversation, Held& h) {
	files_.save(conversation, h.session.get(), h.kv, h.ctx);
	h.saved = true; // or it failed, and would again
}

bool Answers::drop_oldest(const std::string& but) {
	auto oldest = held_.end();
	for (auto h = held_.begin(); h != held_.end(); ++h) {
		const bool used = std::ranges::any_of(active_, [&](const auto& a) { return a->conversation == h->first; });
		if (!used && h->first != but && (oldest == held_.end() || h->second.used < oldest->second.used)) oldest = h;
	}
	if (oldest == held_.end()) return false;
	if (oldest->second.session && !oldest->second.saved) save(oldest->first, oldest->second);
	held_.erase(oldest);
	return true;
}

kvrun_session* Answers::session_for(const Answer& a) {
	Held& h = held_[a.conversation];
	h.used = ++n_answers_;
	if (h.session && h.kv == a.kv && h.ctx == a.ctx) return h.session.get();
	h.session.reset(), h.saved = false;
	h.kv = a.kv, h.ctx = a.ctx;
	if (held_.size() > kMostHeld) drop_oldest(a.conversation);
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.kv = a.kv.c_str();
	o.ctx = a.ctx;
	o.checkpoints = kCheckpoints;
	h.session = files_.restore(a.conversation, engine_.get(), a.kv, a.ctx, kCheckpoints);
	if (h.session) return h.session.get();
	try {
		make_room(a, [&] { return create(h.session, kvrun_session_open, engine_.get(), &o); });
	} catch (...) {
		held_.erase(a.conversation);
		throw;
	}
	return h.session.get();
}

// Drops caches of other conversations while `call` lacks memory: they can be read again. Throws StatusError.
void Answers::make_room(const Answer& a, const std::function<kvrun_status()>& call) {
	for (;;) {
		const kvrun_status s = call();
		if (s == KVRUN_OK) return;
		const StatusError error(s, kvrun_last_error()); // dropping a cache may change the message
		if (s != KVRUN_ENOMEM || !drop_oldest(a.conversation)) throw error;
	}
}

std::string Answers::add_images(const std::string& messages) {
	if (messages.find("\"image\"") == messages.npos && messages.find("\"audio\"") == messages.npos) return messages;
	const uint32_t rate = engine_info(engine_.get()).audio_rate;
	auto all = nlohmann::ordered_json::parse(messages);
	for (auto& m : all) {
		if (!m["content"].is_array()) continue;
		for (auto& part : m["content"]) {
			const bool sound = part["type"] == "audio";
			if (part["type"] != "image" && !sound) continue;
			const std::string path = part["id"].get<std::string>();
			std::string& id = images_[path];
			if (id.empty() && sound && !rate)
				fail_status(KVRUN_EUNSUPPORTED, "this model reads no sounds: it has no audio encoder");
			if (id.empty())
				id = sound ? add_audio(engine_.get(), read_audio_file(path, rate))
				           : add_image(engine_.get(), read_image(path));
			part["id"] = id;
		}
	}
	return json_line(all);
}

std::vector<uint32_t> Answers::prompt_of(const Answer& a, ChatPrompt& chat) {
	std::vector<uint32_t> prompt;
	for (bool again = false;; again = true) {
		chat.messages = add_images(a.messages);
		const kvrun_status s = chat_tokens(engine_.get(), chat, prompt);
		if (s != KVRUN_ENOTFOUND || again || images_.empty()) return check_call(s), prompt;
		images_.clear(); // the engine has forgotten some
	}
}

// n_prompt: set as soon as it is known.
std::unique_ptr<Answers::Active> Answers::add_to_batch(const Answer& a, uint32_t& n_prompt) {
	kvrun_session* session = session_for(a);
	ChatPrompt chat = chat_;
	chat.goes_on = a.goes_on;
	const std::vector<uint32_t> prompt = prompt_of(a, chat);
	n_prompt = uint32_t(prompt.size());
	ReplyHandle reply;
	check_call(new_reply(engine_.get(), chat, reply));
	auto active = std::make_unique<Active>(a, std::move(reply), tell_);
	active->session = session;
	active->prompt = n_prompt;
	held_[a.conversation].saved = false;
	check_call(kvrun_session_keep_common(session, prompt.data(), prompt.size(), &active->reused));
	std::vector<const char*> breakers;
	kvrun_generate_options o = a.sampling.options(a.seed, breakers);
	if (a.sampling.max_tokens > 0) o.max_tokens = uint32_t(a.sampling.max_tokens);
	active->set_on(o);
	make_room(a, [&] {
		return kvrun_batch_add(batch_.get(), session, prompt.data() + active->reused, prompt.size() - active->reused,
		                       &o, &active->id);
	});
	return active;
}

void Answers::begin(const Answer& a) {
	Ended ended;
	ended.conversation = a.conversation, ended.message = a.message;
	try {
		active_.push_back(add_to_batch(a, ended.prompt_tokens));
	} catch (const StatusError& e) {
		ended.error = e.what(), ended.status = e.status;
		tell_(std::move(ended));
	}
}

void Answers::stop(const std::string& conversation) {
	const auto at = std::ranges::find_if(active_, [&](const auto& a) { return a->conversation == conversation; });
	if (at == active_.end()) return;
	(*at)->stopped = true;
	finish(**at);
	active_.erase(at);
}

void Answers::forget(const std::string& conversation) {
	stop(conversation);
	held_.erase(conversation);
}

void Answers::watch(const Watch& w) {
	watch_ = w;
	for (const auto& [conversation, h] : held_) report_cache(conversation, h.session.get());
}

// The answer has ended in the batch, or is taken out of it.
void Answers::finish(Active& a) {
	kvrun_generate_result r = KVRUN_GENERATE_RESULT_INIT;
	const kvrun_status s = kvrun_batch_take(batch_.get(), a.id, &r);
	Ended ended;
	if (s != KVRUN_OK) ended.error = kvrun_last_error();
	try {
		a.end();
	} catch (const std::exception& e) { ended.error = e.what(); }
	report_cache(a.conversation, a.session);
	ended.conversation = a.conversation, ended.message = a.message;
	ended.status = a.stopped ? KVRUN_ECANCELLED : s;
	ended.reason = r.reason;
	ended.prompt_tokens = a.prompt, ended.reused_tokens = a.reused, ended.answer_tokens = r.answer_tokens;
	ended.prefill_seconds = r.prefill_seconds, ended.decode_seconds = r.decode_seconds;
	tell_(std::move(ended));
}

void Answers::step() {
	size_t left = 0;
	check_call(kvrun_batch_step(batch_.get(), &left));
	for (size_t i = 0; i < active_.size();) {
		if (!kvrun_batch_is_done(batch_.get(), active_[i]->id)) {
			++i;
			continue;
		}
		finish(*active_[i]);
		active_.erase(active_.begin() + ptrdiff_t(i));
	}
	if (const auto now = std::chrono::steady_clock::now(); now - reported_ >= kReportEvery) {
		reported_ = now;
		for (const auto& a : active_) report_cache(a->conversation, a->session);
	}
}

void Answers::report_cache(const std::string& conversation, kvrun_session* session) {
	Cache out{conversation, {}};
	CacheView& v = out.view;
	try {
		v.tiers = filled<std::vector<uint8_t>>(1024, [&](uint8_t* to, size_t room, size_t* n) {
			return kvrun_session_tiers(session, watch_.layer, watch_.kv_head, to, room, n);
		});
	} catch (const StatusError&) { return; } // the model does not have this layer
	const kvrun_session_info i = session_info(session);
	v.ctx = i.ctx;
	v.f16_bytes = i.f16_bytes, v.code_bytes = i.code_bytes, v.param_bytes = i.param_bytes;
	v.overhead_bytes = i.overhead_bytes, v.f16_equivalent = i.f16_equivalent;
	tell_(std::move(out));
}

} // namespace kvrun::desktop
