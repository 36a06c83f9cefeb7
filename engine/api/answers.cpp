// Prompts and answers of the C API: kvrun_generate, kvrun_prefill, kvrun_decode, batches.
#include "engine/api/objects.h"
#include "engine/api/prompt.h"
#include "engine/api/sampling.h"

namespace kvrun::api {
namespace {

constexpr kvrun_generate_options kGenerateDefaults = KVRUN_GENERATE_OPTIONS_INIT;

constexpr size_t kFirstResult = offsetof(kvrun_generate_result, stop); // bytes

void check_result(const kvrun_generate_result* out) {
	check_struct_size(out->struct_size, kFirstResult, sizeof(*out), "kvrun_generate_result");
}

GenerateOptions generate_options(const kvrun_generate_options& o, EngineObject& e) {
	GenerateOptions g;
	const uint32_t vocab = e.engine->config().vocab;
	g.draft_max = o.draft_max;
	if (e.draft_model) g.drafter = [&e] { return e.draft_model->drafter(); };
	g.n = o.max_tokens;
	g.sampling = sampler_options(o);
	if (o.n_bias) check_pointer(o.bias, "bias");
	for (const kvrun_logit_bias& b : std::span(o.bias, o.n_bias)) {
		if (b.token >= vocab) refuse(KVRUN_EINVALID, "bias of token {}: the vocabulary has {} tokens", b.token, vocab);
		g.sampling.bias.emplace_back(b.token, b.bias);
	}
	const std::span<const uint32_t> never = e.engine->tokenizer().suppressed();
	g.sampling.never.assign(never.begin(), never.end());
	check_sampler(g.sampling);
	for (size_t i = 0; i < o.n_stops; ++i) {
		check_pointer(o.stops, "stops");
		check_pointer(o.stops[i], "a stop string");
		g.stops.emplace_back(o.stops[i]);
	}
	g.ignore_end = o.ignore_eos;
	g.special = o.special;
	return g;
}

kvrun_generate_result result_of(const GenerateResult& r) {
	kvrun_generate_result out = KVRUN_GENERATE_RESULT_INIT;
	out.reason = kvrun_stop_reason(r.reason);
	out.prompt_tokens = r.prompt_tokens;
	out.prompt_cached = r.prompt_read;
	out.answer_tokens = uint32_t(r.tokens.size());
	out.prefill_seconds = r.prefill_s;
	out.decode_seconds = r.decode_s;
	out.stop = r.stop;
	out.drafted = uint32_t(r.draft.drafted), out.drafts_accepted = uint32_t(r.draft.accepted);
	return out;
}

} // namespace

kvrun_generate_options read_generate_options(const kvrun_generate_options* given) {
	return read_options(given, kGenerateDefaults, "kvrun_generate_options",
	                    offsetof(kvrun_generate_options, presence_penalty));
}

std::span<const uint32_t> prompt_span(const uint32_t* tokens, size_t count) {
	if (count) check_pointer(tokens, "prompt");
	return {tokens, count};
}

struct Answers::Answer {
	Answer(InUse u, const kvrun_generate_options& o) : session(std::move(u)), options(o) {}
	struct Event {
		uint32_t token;
		std::string text;
	};
	InUse session;
	kvrun_generate_options options;                    // callbacks, payload, canceller; its strings are not read again
	std::vector<Event> events;                         // of the current step; delivered after it
	std::optional<std::pair<double, double>> progress; // of the prompt: share done, seconds left
	bool stopped = false;                              // a callback asked to stop
	std::optional<GenerateResult> result;              // set once the answer has ended
};

Answers::Answers(std::shared_ptr<EngineObject> e) : engine_(std::move(e)) {}

Answers::~Answers() {
	const SharedTurn turn(engine_->turn);
	batch_.reset();
}

template <class F> uint32_t Answers::begin(InUse session, const kvrun_generate_options& o, F add_stream) {
	auto a = std::make_unique<Answer>(std::move(session), o);
	Answer* answer = a.get();
	GenerateHooks hooks;
	hooks.token = [answer](uint32_t token) { answer->events.push_back({token, {}}); };
	hooks.text = [answer](std::string_view text) {
		if (answer->events.empty()) answer->events.push_back({KVRUN_NO_TOKEN, {}});
		answer->events.back().text += text;
		return true;
	};
	hooks.prefill = [answer](const Prefill& p) {
		answer->progress = {p.progress(), p.seconds_left()};
		return true;
	};
	GenerateOptions options = generate_options(o, *engine_);
	options.grammar = answer->session.object()->grammar;
	std::lock_guard turn(engine_->turn);
	if (!batch_) batch_ = std::make_unique<Batch>(*engine_->engine);
	const uint32_t id = add_stream(*batch_, *answer->session, options, std::move(hooks));
	try {
		answers_.emplace(id, std::move(a));
	} catch (...) {
		batch_->take(id);
		throw;
	}
	return id;
}

uint32_t Answers::add(InUse session, std::span<const uint32_t> prompt, const kvrun_generate_options& o) {
	return begin(std::move(session), o, [&](Batch& b, Session& s, const GenerateOptions& options, GenerateHooks hooks) {
		return b.add(s, prompt, options, std::move(hooks));
	});
}

uint32_t Answers::add_fork(InUse session, uint32_t of, const kvrun_generate_options& o) {
	find(of);
	return begin(std::move(session), o, [&](Batch& b, Session& s, const GenerateOptions& options, GenerateHooks hooks) {
		return b.add_fork(s, of, options, std::move(hooks));
	});
}

void Answers::stop_cancelled() {
	for (auto& [id, a] : answers_) {
		if (a->result || !(a->stopped || kvrun_canceller_is_set(a->options.canceller))) continue;
		std::lock_guard turn(engine_->turn);
		a->result = batch_->take(id);
	}
}

bool Answers::step() {
	stop_cancelled();
	if (n_active()) {
		std::lock_guard turn(engine_->turn);
		batch_->step();
		for (auto& [id, a] : answers_)
			if (!a->result && batch_->done(id)) a->result = batch_->take(id);
	}
	for (auto& [id, a] : answers_) deliver(*a);
	stop_cancelled();
	for (auto& [id, a] : answers_) deliver(*a); // delivers the remaining events
	return n_active() > 0;
}

void Answers::deliver(Answer& a) {
	const kvrun_generate_options& o = a.options;
	if (const auto p = std::exchange(a.progress, std::nullopt); p && o.on_prefill && !a.stopped)
		a.stopped = o.on_prefill(p->first, p->second, o.payload) != 0;
	for (const Answer::Event& e : std::exchange(a.events, {}))
		if (o.on_token && !a.stopped) a.stopped = o.on_token(e.token, e.text.c_str(), e.text.size(), o.payload) != 0;
}

size_t Answers::n_active() const {
	return size_t(std::ranges::count_if(answers_, [](const auto& a) { return !a.second->result; }));
}

Answers::Answer& Answers::find(uint32_t id) const {
	const auto at = answers_.find(id);
	if (at == answers_.end()) refuse(KVRUN_EINVALID, "the batch has no answer {}", id);
	return *at->second;
}

bool Answers::done(uint32_t id) const { return find(id).result.has_value(); }

void Answers::on_logits(uint32_t id, kvrun_logits_cb cb, void* payload) {
	Answer& a = find(id);
	if (a.result) return;
	std::lock_guard turn(engine_->turn);
	if (!cb) return batch_->on_logits(id, {});
	batch_->on_logits(id, [&a, cb, payload](std::span<float> logits) {
		if (cb(logits.data(), logits.size(), payload)) a.stopped = true;
		return !a.stopped;
	});
}

void Answers::take(uint32_t id, kvrun_generate_result* out) {
	Answer& a = find(id);
	if (out) check_result(out);
	const bool cancelled = !a.result;
	if (cancelled) {
		std::lock_guard turn(engine_->turn);
		a.result = batch_->take(id);
	}
	const GenerateResult r = std::move(*a.result);
	const bool stopped = a.stopped;
	answers_.erase(id);
	if (out) write_result(out, result_of(r), "kvrun_generate_result", kFirstResult);
	if (r.error) std::rethrow_exception(r.error);
	if (stopped) refuse(KVRUN_EUSER, "a callback stopped the answer");
	if (r.reason == StopReason::Cancelled) refuse(KVRUN_ECANCELLED, "the answer was cancelled");
}

} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

static void generate(InUse session, std::span<const uint32_t> prompt, const kvrun_generate_options* options,
                     kvrun_generate_result* out) {
	const kvrun_generate_options o = read_generate_options(options);
	if (out) check_result(out);
	Answers one(session.object()->engine);
	const uint32_t id = one.add(std::move(session), prompt, o);
	while (one.step()) {}
	one.take(id, out);
}

kvrun_status kvrun_generate(kvrun_session* session, const uint32_t* prompt, size_t count,
                            const kvrun_generate_options* options, kvrun_generate_result* out) {
	return guard([&] { generate(InUse(session), prompt_span(prompt, count), options, out); });
}

kvrun_status kvrun_generate_text(kvrun_session* session, const char* prompt, const kvrun_generate_options* options,
                                 kvrun_generate_result* out) {
	return guard([&] {
		check_pointer(prompt, "prompt");
		InUse s(session);
		const std::vector<uint32_t> tokens =
		    s.engine().engine->tokenizer().encode(prompt, {.bos = s->n_tokens() == 0, .special = false});
		generate(std::move(s), tokens, options, out);
	});
}

std::vector<float> kvrun::api::read_prompt(InUse& s, std::span<const uint32_t> prompt,
                                           const kvrun_generate_options* options, PrefillHooks hooks) {
	const kvrun_generate_options o = read_generate_options(options);
	Turn& turn = s.engine().turn;
	std::optional<Prefill> prefill;
	struct End { // frees the prompt's memory during this thread's turn
		Turn& turn;
		std::optional<Prefill>& prefill;
		~End() {
			const SharedTurn lock(turn);
			prefill.reset();
		}
	} end{turn, prefill};
	{
		std::lock_guard lock(turn);
		prefill.emplace(*s, prompt, std::move(hooks));
	}
	for (bool done = false; !done;) {
		if (kvrun_canceller_is_set(o.canceller)) refuse(KVRUN_ECANCELLED, "the prompt was cancelled");
		{
			std::lock_guard lock(turn);
			done = prefill->step();
		}
		if (o.on_prefill && o.on_prefill(prefill->progress(), prefill->seconds_left(), o.payload) && !done)
			refuse(KVRUN_EUSER, "a callback stopped the prompt");
	}
	return {prefill->logits().begin(), prefill->logits().end()};
}

kvrun_status kvrun_prefill(kvrun_session* session, const uint32_t* prompt, size_t count,
                           const kvrun_generate_options* options, float* logits) {
	return guard([&] {
		InUse s(session);
		const std::vector<float> last = read_prompt(s, prompt_span(prompt, count), options, {});
		if (logits) std::ranges::copy(last, logits);
	});
}

kvrun_status kvrun_hidden_states(kvrun_session* session, const uint32_t* prompt, size_t count,
                                 const kvrun_generate_options* options, float* out) {
	return guard([&] {
		check_pointer(out, "out");
		InUse s(session);
		const size_t dim = s.engine().engine->config().dim;
		PrefillHooks hooks;
		hooks.all_states = [&](uint32_t first, uint32_t, std::span<const float> states) {
			std::ranges::copy(states, out + first * dim);
		};
		read_prompt(s, prompt_span(prompt, count), options, std::move(hooks));
	});
}

kvrun_status kvrun_decode(kvrun_session* const* list, const uint32_t* tokens, size_t count, float* logits,
                          size_t* out_row) {
	if (out_row) *out_row = count;
	return guard([&] {
		if (count == 0) refuse(KVRUN_EINVALID, "no sessions to decode");
		check_pointer(list, "sessions");
		check_pointer(tokens, "tokens");
		check_pointer(logits, "logits");
		std::vector<InUse> used;
		std::vector<SessionRow> rows;
		for (size_t i = 0; i < count; ++i) {
			if (out_row) *out_row = i; // if it cannot be used
			used.emplace_back(list[i]);
			rows.push_back({&*used.back(), tokens[i]});
			if (&used.back().engine() != &used.front().engine())
				refuse(KVRUN_EINVALID, "session {} belongs to another engine than session 0", i);
		}
		if (out_row) *out_row = count;
		EngineObject& e = used.front().engine();
		if (count > e.engine->max_rows())
			refuse(KVRUN_EINVALID, "{} sessions in a decode step, this engine takes {}; raise max_rows", count,
			       e.engine->max_rows());
		std::lock_guard turn(e.turn);
		try {
			std::ranges::copy(decode(rows), logits);
		} catch (const RowError& error) {
			if (out_row) *out_row = error.row;
			throw;
		}
	});
}

// ---- batches

namespace {

class UsedBatch { // marks a batch as in use during one call
 public:
	explicit UsedBatch(kvrun_batch* b) : batch_(batches().get(b)) {
		if (batch_->used.exchange(true)) {
			batch_.reset();
			refuse(KVRUN_EBUSY, "the batch is in use by another call");
		}
	}
	UsedBatch(const UsedBatch&) = delete;
	~UsedBatch() {
		if (batch_) batch_->used = false;
	}
	Answers* operator->() const { return &batch_->answers; }
	Answers& operator*() const { return batch_->answers; }

 private:
	std::shared_ptr<BatchObject> batch_;
};

} // namespace

kvrun_status kvrun_batch_new(kvrun_batch** out, kvrun_engine* engine) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		*out = batches().add(std::make_shared<BatchObject>(with_sessions(engines().get(engine))));
	});
}

template <class F>
static kvrun_status add_answer(kvrun_batch* batch, kvrun_session* session, const kvrun_generate_options* options,
                               uint32_t* out_id, F add) {
	return guard([&] {
		check_pointer(out_id, "out_id");
		UsedBatch b(batch);
		InUse s(session);
		if (s.object()->engine != b->engine())
			refuse(KVRUN_EINVALID, "the session belongs to another engine than the batch");
		const kvrun_generate_options o = read_generate_options(options);
		*out_id = add(*b, std::move(s), o);
	});
}

kvrun_status kvrun_batch_add(kvrun_batch* batch, kvrun_session* session, const uint32_t* prompt, size_t count,
                             const kvrun_generate_options* options, uint32_t* out_id) {
	return add_answer(batch, session, options, out_id, [&](Answers& b, InUse s, const kvrun_generate_options& o) {
		return b.add(std::move(s), prompt_span(prompt, count), o);
	});
}

kvrun_status kvrun_batch_add_fork(kvrun_batch* batch, kvrun_session* session, uint32_t of,
                                  const kvrun_generate_options* options, uint32_t* out_id) {
	return add_answer(batch, session, options, out_id, [&](Answers& b, InUse s, const kvrun_generate_options& o) {
		return b.add_fork(std::move(s), of, o);
	});
}

kvrun_status kvrun_batch_step(kvrun_batch* batch, size_t* out_active) {
	return guard([&] {
		UsedBatch b(batch);
		b->step();
		if (out_active) *out_active = b->n_active();
	});
}

kvrun_status kvrun_batch_on_logits(kvrun_batch* batch, uint32_t id, kvrun_logits_cb cb, void* payload) {
	return guard([&] { UsedBatch(batch)->on_logits(id, cb, payload); });
}

int kvrun_batch_is_done(const kvrun_batch* batch, uint32_t id) {
	try {
		return UsedBatch(const_cast<kvrun_batch*>(batch))->done(id);
	} catch (const Failure& f) {
		return f.status != KVRUN_EBUSY; // a batch or an answer that does not exist has ended
	} catch (...) { return 1; }
}

kvrun_status kvrun_batch_take(kvrun_batch* batch, uint32_t id, kvrun_generate_result* out) {
	return guard([&] { UsedBatch(batch)->take(id, out); });
}

void kvrun_batch_free(kvrun_batch* batch) {
	quietly([&] { batches().take(batch); });
}
