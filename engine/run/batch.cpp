// Prompts -> answers: the loop over prompts and tokens of any number of sessions.
#include "engine/run/batch.h"
#include "engine/run/draft_lookup.h"
#include "engine/run/stop.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Seconds of prompt work between two tokens of other answers: as long as a decode step takes, so that a token takes at
// most twice as long as without the prompt, but not less than what keeps the device busy.
constexpr double kLeastPromptShare = 0.002;
constexpr uint64_t kTurns = 4; // every kTurns-th turn of prompts is the oldest prompt's

// Logits that a callback has changed: a wrong one is the callback's fault, not the device's.
void check_changed(std::span<const float> logits) {
	bool any = false;
	for (size_t t = 0; t < logits.size(); ++t) {
		if (std::isnan(logits[t]) || logits[t] == INFINITY)
			fail(Code::Invalid, "the logits callback made the logit of token {} {}", t,
			     std::isnan(logits[t]) ? "no number" : "infinite");
		any |= logits[t] > -INFINITY;
	}
	if (!any) fail(Code::Invalid, "the logits callback left no token: all {} logits are -inf", logits.size());
}

} // namespace

const char* stop_reason_name(StopReason r) {
	constexpr const char* names[] = {"length", "context", "end", "stop", "cancelled"};
	return names[size_t(r)];
}

struct Batch::Stream {
	Stream(Session& s, const GenerateOptions& o, GenerateHooks h)
	    : session(s), options(o), hooks(std::move(h)),
	      sampler(o.sampling, [&t = s.engine().tokenizer()](uint32_t id) { return t.decode_one(id, id, true); }),
	      text(o.stops), draft_length(o.draft_max) {
		if (o.draft_max) {
			if (const std::string why = s.why_one_token(); !why.empty())
				fail(Code::Unsupported, "speculation (--draft) takes back what was guessed wrongly: {}", why);
			drafter = o.drafter ? o.drafter() : s.engine().drafter(s);
			if (!drafter) drafter = std::make_unique<LookupDrafter>();
		}
		if (!o.grammar) return;
		matcher.emplace(o.grammar);
		filter.allows = [this](uint32_t t) { return matcher->allows(t); };
		filter.allowed = [this] { return matcher->allowed(); };
	}
	uint32_t wanted() const { return on_logits ? 0 : matcher ? sampler.wanted_to_filter() : sampler.wanted(); }
	uint32_t sample(RowLogits logits, const std::function<std::span<const float>()>& whole_row) {
		// Drafts of the same step may have been accepted before: penalties then change logits missing from the list.
		if (logits.all.empty() && (wanted() == 0 || logits.top.size() < wanted())) logits.all = whole_row();
		if (!matcher) return sampler.sample(logits);
		if (const auto token = sampler.sample(logits, filter)) return *token;
		logits.all = whole_row();
		return *sampler.sample(logits, filter);
	}
	void accept(std::span<const uint32_t> tokens) { // tokens that precede the answer
		for (const uint32_t t : tokens)
			if (t != kNoToken && !is_image_row(t)) sampler.accept(t);
		// A text goes on from its last token; behind rows of an image, or noise, from the last one before.
		for (const uint32_t t : tokens)
			if (t < session.engine().config().vocab) prev = t;
		if (drafter) drafter->accept(tokens);
	}
	uint32_t most_drafts(uint32_t most);
	void set_drafts(std::span<const uint32_t> tokens, uint32_t most);
	void take_back();
	bool reads() const { return prefill.has_value(); }
	bool cancelled() const { return options.cancel && options.cancel->load(std::memory_order_relaxed); }

	Session& session;
	GenerateOptions options;
	GenerateHooks hooks;
	Sampler sampler;
	StopStream text;
	std::optional<grammar::Matcher> matcher;
	TokenFilter filter; // asks the matcher
	std::function<bool(std::span<float>)> on_logits;
	std::vector<float> changed;       // (vocab) logits that on_logits may change; empty without it
	std::optional<Prefill> prefill;   // while the prompt is read
	Stream* reader = nullptr;         // stream that reads this stream's prompt; null: none, or the prompt is read
	uint32_t prev = kNoToken;         // token of the vocabulary before the next one, if any
	std::unique_ptr<Drafter> drafter; // null: every step has one token
	DraftLength draft_length;
	std::vector<uint32_t> drafts; // of the next step
	uint32_t held = UINT32_MAX;   // tokens of the session without its newest drafts
	bool done = false;
	Clock::time_point start = Clock::now(); // of the prompt, then of the answer
	GenerateResult result;
};

Batch::Batch(Engine& e) : engine_(e) {}
Batch::~Batch() = default;

uint32_t Batch::add(Session& s, std::span<const uint32_t> prompt, const GenerateOptions& opt, GenerateHooks hooks) {
	if (prompt.empty()) fail(Code::Invalid, "no tokens to prefill");
	auto stream = std::make_unique<Stream>(s, opt, std::move(hooks));
	stream->accept(s.history());
	stream->accept(prompt);
	PrefillHooks states;
	if (Drafter* d = stream->drafter.get(); d && d->prompt_states()) {
		const auto n = uint32_t(prompt.size());
		states.states = {
		    engine_.state_layers(), n - std::min(n, d->prompt_states()),
		    [d, at = s.n_tokens()](uint32_t first, std::span<const float> rows) { d->states(at + first, rows); }};
	}
	stream->prefill.emplace(s, prompt, std::move(states));
	stream->result.prompt_tokens = uint32_t(prompt.size());
	streams_.emplace(next_id_, std::move(stream));
	return next_id_++;
}

uint32_t Batch::add_fork(Session& s, uint32_t of, const GenerateOptions& opt, GenerateHooks hooks) {
	const auto reader = streams_.find(of);
	if (reader == streams_.end() || !reader->second->reads())
		fail(Code::Invalid, "answer {} is not reading a prompt, which another one could share", of);
	if (&s.plan() != &reader->second->session.plan())
		fail(Code::Invalid, "the session is no fork of that of answer {}", of);
	auto stream = std::make_unique<Stream>(s, opt, std::move(hooks));
	stream->reader = reader->second.get();
	streams_.emplace(next_id_, std::move(stream));
	return next_id_++;
}

std::vector<Batch::Stream*> Batch::waiting_for(const Stream& reader) {
	std::vector<Stream*> out;
	for (auto& [id, s] : streams_)
		if (!s->done && s->reader == &reader) out.push_back(s.get());
	return out;
}

size_t Batch::n_active() const {
	return size_t(std::ranges::count_if(streams_, [](const auto& s) { return !s.second->done; }));
}
bool Batch::done(uint32_t id) const { return streams_.at(id)->done; }
void Batch::on_logits(uint32_t id, std::function<bool(std::span<float>)> f) {
	streams_.at(id)->on_logits = std::move(f);
}

GenerateResult Batch::take(uint32_t id) {
	Stream& s = *streams_.at(id);
	if (!s.done) end(s, StopReason::Cancelled);
	GenerateResult r = std::move(s.result);
	streams_.erase(id);
	return r;
}

bool Batch::step() {
	std::vector<Stream*> reading, decoding;
	for (auto& [id, s] : streams_) {
		if (s->done) continue;
		if (s->cancelled())
			end(*s, StopReason::Cancelled);
		else if (s->reads())
			reading.push_back(s.get());
		else if (!s->reader)
			decoding.push_back(s.get());
	}
	if (!reading.empty()) {
		// The prompt with the least work left goes first, so that a short prompt does not wait for a long one. Every
		// fourth turn is the oldest prompt's, so that a long prompt is not starved.
		const auto left = [](const Stream* s) { return s->prefill->n_tokens() * (1 - s->prefill->progress()); };
		Stream* next = ++n_pieces_ % kTurns ? *std::ranges::min_element(reading, {}, left) : reading.front();
		read_prompt(*next, decoding.empty() ? Prefill::kPieceSeconds
		                                    : std::clamp(decode_s_, kLeastPromptShare, Prefill::kPieceSeconds / 2));
	}
	// Streams whose steps wait in every layer for their own picks step separately from the others.
	const auto of_itself = std::stable_partition(decoding.begin(), decoding.end(),
	                                             [](const Stream* s) { return !s->session.plan().policy.fetch_sync; });
	const size_t ahead = size_t(of_itself - decoding.begin());
	const Clock::time_point start = Clock::now();
	for (auto group : {std::span(decoding).first(ahead), std::span(decoding).subspan(ahead)}) decode_in_steps(group);
	if (!decoding.empty()) decode_s_ = seconds_since(start);
	return n_active() > 0;
}

void Batch::decode_in_steps(std::span<Stream* const> decoding) {
	for (size_t at = 0; at < decoding.size(); at += engine_.max_rows())
		decode_rows(std::span(decoding).subspan(at, std::min<size_t>(engine_.max_rows(), decoding.size() - at)));
}

void Batch::read_prompt(Stream& s, double seconds) {
	try {
		const bool read = s.prefill->step(seconds);
		if (s.drafter) s.drafter->work();
		const bool go_on = !s.hooks.prefill || s.hooks.prefill(*s.prefill);
		if (!go_on || s.cancelled()) return end(s, StopReason::Cancelled);
		if (!read) return;
		const std::vector<float> logits(s.prefill->logits().begin(), s.prefill->logits().end());
		s.result.prompt_read = s.prefill->n_read(), s.result.prompt_work = 1;
		s.prefill.reset();
		s.result.prefill_s = seconds_since(s.start);
		begin_forks(s, {logits});
		begin_answer(s, {logits});
	} catch (...) { end_with_error(s); }
}

void Batch::begin_answer(Stream& s, const RowLogits& logits) {
	s.start = Clock::now();
	choose(s, logits);
}

void Batch::begin_forks(const Stream& of, const RowLogits& logits) {
	for (Stream* s : waiting_for(of)) {
		s->reader = nullptr;
		try {
			s->session.take_fork(of.session);
			s->accept(s->session.history());
			begin_answer(*s, logits);
		} catch (...) { end_with_error(*s); }
	}
}

// Most drafts of the next step. Tokens that cannot become part of the answer are not drafted, and neither is the token
// that fills the context, because the answer ends there.
uint32_t Batch::Stream::most_drafts(uint32_t most) {
	if (most == 0) return 0;
	const uint32_t answer_left = options.n - uint32_t(result.tokens.size()),
	               ctx_left = session.ctx() - session.n_tokens();
	most = std::min({most, draft_length.next(), answer_left - 1, ctx_left > 2 ? ctx_left - 2 : 0});
	return most == 0 ? 0 : session.step_tokens(most + 1) - 1;
}

void Batch::Stream::set_drafts(std::span<const uint32_t> tokens, uint32_t most) {
	drafts.clear();
	for (const uint32_t t : tokens.first(std::min<size_t>(most, tokens.size()))) {
		if (t >= session.engine().config().vocab) break; // noise or an image in the history
		drafts.push_back(t);
	}
}

// Removes drafts that the answer did not accept from the session.
void Batch::Stream::take_back() {
	if (session.n_tokens() > held)
		session.truncate(held);
	else
		session.keep_drafts();
	held = UINT32_MAX;
}

// Distributes the rows that the step has room for; rows that one stream does not use are available to the next.
// Drafters that guess together are last.
void Batch::draft(std::span<Stream* const> streams) {
	uint32_t room = engine_.max_rows() - uint32_t(streams.size());
	uint32_t left = uint32_t(streams.size());
	std::vector<Stream*> together;
	for (Stream* s : streams) {
		s->drafts.clear();
		if (s->drafter) s->drafter->work();
		if (s->drafter && s->drafter->group()) {
			together.push_back(s);
			continue;
		}
		const uint32_t most = s->drafter ? s->most_drafts(room / left) : 0;
		--left;
		if (!most) continue;
		s->set_drafts(s->drafter->draft(most), most);
		room -= uint32_t(s->drafts.size());
	}
	std::vector<DraftRequest> requests;
	for (Stream* s : together) {
		requests.push_back({s->drafter.get(), s->most_drafts(room / left--)});
		room -= requests.back().most;
	}
	if (requests.empty()) return;
	together[0]->drafter->group()->draft(requests);
	for (size_t i = 0; i < together.size(); ++i) together[i]->set_drafts(requests[i].tokens, requests[i].most);
}

void Batch::decode_rows(std::span<Stream* const> streams) {
	std::vector<Stream*> left(streams.begin(), streams.end());
	draft(left);
	while (!left.empty()) {
		std::vector<SessionRow> rows;
		bool drafts = false;
		for (const Stream* s : left) {
			rows.push_back({&s->session, s->prev, s->wanted(), s->drafts});
			drafts |= !s->drafts.empty();
		}
		try {
			const std::span<const RowLogits> logits = decode_step(rows);
			size_t first_draft = left.size();
			for (size_t i = 0; i < left.size(); ++i) {
				verify(*left[i], i, first_draft, logits);
				first_draft += left[i]->drafts.size();
			}
			return;
		} catch (const Error& e) {
			const RowError* const row = dynamic_cast<const RowError*>(&e);
			// A step that fails after it has changed sequences leaves them empty: there is nothing to continue.
			const bool lost = std::ranges::any_of(left, [](const Stream* s) { return s->session.n_tokens() == 0; });
			if (drafts && !lost && e.code == Code::OutOfMemory) { // one token each may still fit
				for (Stream* s : left) {
					if (!s->drafts.empty()) s->draft_length.verified(uint32_t(s->drafts.size()), 0); // drafts rest
					s->drafts.clear();
				}
			} else if (row && row->row < left.size()) { // not of a draft: the others continue without it
				end_with_error(*left[row->row]);
				left.erase(left.begin() + ptrdiff_t(row->row));
			} else {
				for (Stream* s : left) end_with_error(*s);
				return;
			}
		} catch (...) {
			for (Stream* s : left) end_with_error(*s);
			return;
		}
	}
}

// Processes the rows as if each had been a step: the sampler chooses a token, and the next row counts if that is its
// token.
void Batch::verify(Stream& s, size_t row, size_t first_draft, std::span<const RowLogits> logits) {
	const uint32_t before = s.session.n_tokens() - uint32_t(s.drafts.size());
	uint32_t accepted = 0;
	try {
		for (size_t i = 0;; ++i) {
			const size_t at = i ? first_draft + i - 1 : row;
			++s.result.decode_steps;
			s.held = before + uint32_t(i);
			if (s.drafter && s.drafter->reads_states())
				s.drafter->states(s.held - 1, engine_.decoder().state(uint32_t(at)));
			choose(s, logits[at], [&] { return engine_.decoder().whole_row(uint32_t(at)); });
			if (s.done || i == s.drafts.size() || s.prev != s.drafts[i]) break;
			++accepted;
		}
		if (!s.done) s.take_back();
	} catch (...) { end_with_error(s); }
	if (s.drafts.empty()) return;
	s.draft_length.verified(uint32_t(s.drafts.size()), accepted);
	s.result.draft.drafted += s.drafts.size(), s.result.draft.accepted += accepted;
}

void Batch::choose(Stream& s, RowLogits logits, const std::function<std::span<const float>()>& whole_row) {
	GenerateResult& r = s.result;
	if (logits.fault) std::rethrow_exception(logits.fault);
	if (r.tokens.size() >= s.options.n) return end(s, StopReason::Length);
	const Tokenizer& tok = engine_.tokenizer();
	if (s.on_logits && !logits.all.empty()) { // set during this step: takes effect from the next token on
		s.changed.assign(logits.all.begin(), logits.all.end());
		if (!s.on_logits(s.changed)) return end(s, StopReason::Cancelled);
		check_changed(s.changed);
		logits.all = s.changed;
	}
	const uint32_t token = s.sample(logits, whole_row);
	if (!s.options.ignore_end && tok.is_end(token)) return end(s, StopReason::End);
	s.sampler.accept(token);
	s.sampler.count(token);
	if (s.matcher && !s.matcher->accept(token))
		fail(Code::Internal, "token {} was chosen, which the answer's grammar does not allow", token);
	r.tokens.push_back(token);
	if (s.drafter) s.drafter->accept({&token, 1});
	if (s.hooks.token) s.hooks.token(token);
	const std::optional<uint32_t> before = s.prev == kNoToken ? std::nullopt : std::optional(s.prev);
	const std::string piece = s.text.feed(tok.decode_one(before, token, s.options.special));
	s.prev = token;
	if (!piece.empty() && s.hooks.text && !s.hooks.text(piece)) return end(s, StopReason::Cancelled);
	if (s.text.stopped()) {
		r.stop = s.text.stopped_at();
		return end(s, StopReason::Stop);
	}
	if (s.matcher && s.matcher->is_finished()) return end(s, StopReason::End);
	if (s.cancelled()) return end(s, StopReason::Cancelled);
	if (r.tokens.size() >= s.options.n)
		return end(s, StopReason::Length); // the logits after the last token are not needed
	if (s.session.n_tokens() >= s.session.ctx()) return end(s, StopReason::Context);
}

void Batch::end(Stream& s, StopReason reason) {
	if (s.reads()) {
		s.result.prompt_read = s.prefill->n_read(), s.result.prompt_work = s.prefill->progress();
		s.result.prefill_s = seconds_since(s.start);
		s.prefill.reset();
		for (Stream* fork : waiting_for(s)) {
			fork->reader = nullptr;
			fork->result.error = s.result.error;
			end(*fork, reason);
		}
	} else {
		s.result.decode_s = seconds_since(s.start);
		s.take_back();
	}
	s.done = true;
	s.result.reason = reason;
	if (const std::string rest = s.text.finish(); !rest.empty() && s.hooks.text) s.hooks.text(rest);
	s.result.kv = s.session.kv_bytes();
}

void Batch::end_with_error(Stream& s) {
	s.result.error = std::current_exception();
	s.hooks = {}, s.on_logits = {}; // no more callbacks
	end(s, StopReason::Cancelled);
}

GenerateResult generate(Session& s, std::span<const uint32_t> prompt, const GenerateOptions& opt,
                        const GenerateHooks& hooks) {
	Batch batch(s.engine());
	const uint32_t id = batch.add(s, prompt, opt, hooks);
	while (batch.step()) {}
	GenerateResult r = batch.take(id);
	if (r.error) std::rethrow_exception(r.error);
	return r;
}

} // namespace kvrun
