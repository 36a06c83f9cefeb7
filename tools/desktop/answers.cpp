// Active answers on one engine: sessions by conversation, one batch for all, events for the window.
#include "tools/desktop/answers.h"
#include "tools/api_call.h"
#include "tools/chat/store.h"
#include <algorithm>

namespace kvrun::desktop {
namespace {

constexpr size_t kMostHeld = 16;                     // conversations whose caches are kept
constexpr uint32_t kCheckpoints = 4;                 // states kept for retry and edit under policies that compress
constexpr size_t kLongestTemplate = size_t(1) << 20; // bytes
constexpr auto kReportEvery = std::chrono::milliseconds(200);

// `call` fills a buffer in the way of the C API.
template <class T, class F> std::vector<T> filled(size_t guess, F&& call) {
	std::vector<T> out;
	check_call(fill_vector(out, guess, call));
	return out;
}

} // namespace

struct Answers::Active {
	std::string conversation;
	int message = 0;
	kvrun_session* session = nullptr; // of held_
	uint32_t id = 0;                  // in the batch
	uint32_t reused = 0, prompt = 0;  // tokens
	bool stopped = false;
	ReplyHandle reply;
	Tell* tell = nullptr;
	std::string lost; // error inside a callback

	static int on_token(uint32_t, const char* text, size_t length, void* payload) {
		auto& a = *static_cast<Active*>(payload);
		try {
			kvrun_reply_part part = KVRUN_REPLY_PART_INIT;
			check_call(kvrun_reply_push(a.reply.get(), text, length, &part));
			(*a.tell)(Piece{a.conversation, a.message, part.content, part.reasoning});
			return 0;
		} catch (const std::exception& e) { return a.lost = e.what(), 1; }
	}
	static int on_prefill(double share, double seconds_left, void* payload) {
		auto& a = *static_cast<Active*>(payload);
		(*a.tell)(Reading{a.conversation, a.message, share, seconds_left});
		return 0;
	}
};

Answers::Answers(EngineHandle engine, const std::string& chat_template, Tell tell)
    : engine_(std::move(engine)), tell_(std::move(tell)) {
	if (chat_template.find_first_of("/.") != std::string::npos)
		template_text_ = read_text_file(chat_template, kLongestTemplate);
	else
		template_name_ = chat_template;
	const kvrun_chat_options o = chat_options(nullptr);
	kvrun_chat_features features = KVRUN_CHAT_FEATURES_INIT;
	const kvrun_status known = kvrun_chat_get_features(engine_.get(), &o, &features);
	has_template_ = known != KVRUN_ENOTFOUND || !chat_template.empty();
	if (has_template_) check_call(known);
	kvrun_batch* batch = nullptr;
	check_call(kvrun_batch_new(&batch, engine_.get()));
	batch_.reset(batch);
}

Answers::~Answers() {
	while (!active_.empty()) stop(active_.back()->conversation);
	batch_.reset();
}

kvrun_engine_info Answers::info() const {
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	check_call(kvrun_engine_get_info(engine_.get(), &i));
	return i;
}

std::vector<std::string> Answers::templates() const {
	std::vector<std::string> out;
	for (size_t i = 0;; ++i) {
		char name[256];
		size_t length = 0;
		if (kvrun_chat_template_name(engine_.get(), i, name, sizeof name, &length) != KVRUN_OK || !length) return out;
		out.emplace_back(name, length);
	}
}

kvrun_chat_options Answers::chat_options(const std::string* messages) const {
	kvrun_chat_options o = KVRUN_CHAT_OPTIONS_INIT;
	if (messages) o.messages_json = messages->c_str();
	if (!template_name_.empty()) o.template_name = template_name_.c_str();
	if (!template_text_.empty()) o.template_text = template_text_.c_str();
	return o;
}

std::vector<uint32_t> Answers::prompt_tokens(const std::string& messages) const {
	const kvrun_chat_options o = chat_options(&messages);
	return filled<uint32_t>(messages.size() / 2 + 64, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_chat_tokens(engine_.get(), &o, to, room, n);
	});
}

bool Answers::drop_oldest(const std::string& but) {
	auto oldest = held_.end();
	for (auto h = held_.begin(); h != held_.end(); ++h) {
		const bool used = std::ranges::any_of(active_, [&](const auto& a) { return a->conversation == h->first; });
		if (!used && h->first != but && (oldest == held_.end() || h->second.used < oldest->second.used)) oldest = h;
	}
	if (oldest == held_.end()) return false;
	held_.erase(oldest);
	return true;
}

Answers::Held& Answers::session_for(const Answer& a) {
	Held& h = held_[a.conversation];
	h.used = ++n_answers_;
	if (h.session && h.kv == a.kv && h.ctx == a.ctx) return h;
	h.session.reset();
	h.kv = a.kv, h.ctx = a.ctx;
	if (held_.size() > kMostHeld) drop_oldest(a.conversation);
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.kv = a.kv.c_str();
	o.ctx = a.ctx;
	o.checkpoints = kCheckpoints;
	for (;;) { // drops caches of other conversations to make room: they can be read again
		kvrun_session* session = nullptr;
		const kvrun_status s = kvrun_session_open(&session, engine_.get(), &o);
		const std::string why = kvrun_last_error();
		h.session.reset(session);
		if (s == KVRUN_OK) return h;
		if (s != KVRUN_ENOMEM || !drop_oldest(a.conversation)) {
			held_.erase(a.conversation);
			throw ChatError(s, why);
		}
	}
}

void Answers::add_to_batch(Active& active, const Answer& a) {
	Held& h = session_for(a);
	active.session = h.session.get();
	const std::vector<uint32_t> prompt = prompt_tokens(a.messages);
	active.prompt = uint32_t(prompt.size());
	check_call(kvrun_session_keep_common(active.session, prompt.data(), prompt.size(), &active.reused));
	const kvrun_chat_options chat = chat_options(&a.messages);
	kvrun_reply* reply = nullptr;
	check_call(kvrun_reply_new(&reply, engine_.get(), &chat));
	active.reply.reset(reply);

	kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
	const Sampling& s = a.sampling;
	if (s.max_tokens > 0) o.max_tokens = uint32_t(s.max_tokens);
	o.temperature = s.temperature, o.top_p = s.top_p, o.min_p = s.min_p;
	o.top_k = uint32_t(std::max(s.top_k, 0));
	o.repeat_penalty = s.repeat_penalty;
	o.seed = a.seed;
	o.on_token = Active::on_token, o.on_prefill = Active::on_prefill;
	o.payload = &active;
	for (;;) {
		const kvrun_status added = kvrun_batch_add(batch_.get(), active.session, prompt.data() + active.reused,
		                                           prompt.size() - active.reused, &o, &active.id);
		if (added == KVRUN_OK) return;
		const std::string why = kvrun_last_error();
		if (added != KVRUN_ENOMEM || !drop_oldest(a.conversation)) throw ChatError(added, why);
	}
}

void Answers::begin(const Answer& a) {
	auto active = std::make_unique<Active>();
	active->conversation = a.conversation, active->message = a.message;
	active->tell = &tell_;
	try {
		add_to_batch(*active, a);
		active_.push_back(std::move(active));
	} catch (const ChatError& e) {
		Ended ended;
		ended.conversation = a.conversation, ended.message = a.message;
		ended.prompt_tokens = active->prompt;
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
	if (s != KVRUN_OK) ended.error = a.lost.empty() ? kvrun_last_error() : a.lost;
	kvrun_reply_part part = KVRUN_REPLY_PART_INIT;
	if (kvrun_reply_finish(a.reply.get(), &part) == KVRUN_OK && (*part.content || *part.reasoning))
		tell_(Piece{a.conversation, a.message, part.content, part.reasoning});
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
		v.tiers = filled<uint8_t>(1024, [&](uint8_t* to, size_t room, size_t* n) {
			return kvrun_session_tiers(session, watch_.layer, watch_.kv_head, to, room, n);
		});
	} catch (const ChatError&) { return; } // the model does not have this layer
	kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
	if (kvrun_session_get_info(session, &i) == KVRUN_OK) {
		v.ctx = i.ctx;
		v.f16_bytes = i.f16_bytes, v.code_bytes = i.code_bytes, v.param_bytes = i.param_bytes;
		v.overhead_bytes = i.overhead_bytes, v.f16_equivalent = i.f16_equivalent;
	}
	tell_(std::move(out));
}

} // namespace kvrun::desktop
