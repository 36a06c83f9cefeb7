// One sequence of tokens under one policy.
#include "engine/run/session.h"
#include "engine/core/limits.h"
#include "engine/core/log.h"
#include "engine/core/mebibytes.h"
#include "engine/core/round.h"
#include "engine/kv_host/classify.h"
#include "engine/kv_host/counts.h"
#include "engine/kv_host/window.h"
#include "engine/run/memory_plan.h"
#include "engine/run/tuning_file.h"
#include <algorithm>

namespace kvrun {

static uint32_t trained_context(Engine& e) { return std::clamp(e.config().max_seq, 1u, kMaxContext); }

// The policy itself, or the one that it resolves to under this engine's budget.
static KvPolicy policy_of(Engine& e, const SessionOptions& opt) {
	const uint32_t n = opt.ctx ? opt.ctx : trained_context(e);
	const CacheLayers& layers = e.cache_layers();
	size_t others = 2 * layers.states().bytes() + index_bytes(layers, n);
	if (layers.both_kinds()) others += window_bytes(make_window_plan(layers.window_shape(), layers.window()), n);
	if (!layers.blocks().empty()) others += window_bytes(make_window_plan(layers.main_shape(), layers.window()), n);
	for (uint32_t i = 1; i < layers.blocks().size(); ++i)
		others += most_bytes(plan_of_blocks(layers, i, parse_policy("fp16")), n);
	const size_t all = e.pool().budget_bytes(), budget = all - std::min(all, others);
	const Choice c =
	    choose_policy(opt.kv, e.kv_shape(), e.file(), n / layers.policy_block(), budget, /*or_fewer=*/!opt.ctx);
	if (!c.why.empty()) log_at(1, "{}: {}", opt.kv.text, c.why);
	KvPolicy p = c.policy;
	if (p.fetch && layers.shares())
		fail(Code::Unsupported,
		     "policy '{}' fetches tokens, which kvrun does not do for models whose layers share keys and values; give "
		     "fetch=0",
		     p.text);
	// A speculative token is not cached, but windows and states would keep it.
	if (p.fetch && !p.fetch_sync && (layers.both_kinds() || layers.states().n_layers())) {
		if (p.text.find("fetch_mode") != std::string::npos)
			fail(Code::Unsupported,
			     "policy '{}' fetches by speculation, which kvrun does not do for models with {}; give fetch_mode=sync",
			     p.text, layers.both_kinds() ? "sliding windows" : "recurrent layers");
		p.fetch_sync = true, p.text += ",fetch_mode=sync";
		log_at(1, "{}: the model has {}, so each token chooses for itself what it fetches", p.text,
		       layers.both_kinds() ? "sliding windows" : "recurrent layers");
	}
	return p;
}

Session::Session(Engine& e, const SessionOptions& options)
    : engine_(e), options_(options), positions_(e.config().ropes[0].axes) {
	if (e.text_encoder()) fail_encoder(e.file().name());
	options_.kv = policy_of(e, options);
	const bool tuned = is_choice(options.kv) && !is_auto(options.kv) && e.kv_shape().n_layers;
	if (tuned && !read_tuning(e.file(), e.kv_shape()))
		warn_once(fmt::format("{} is {} by a guess: this model was not measured, which 'kvrun tune' does",
		                      options.kv.text, options_.kv.text));
	const SessionOptions& opt = options_;
	const uint32_t trained = trained_context(e), longest = opt.ctx ? opt.ctx : trained;
	if (const uint32_t n = e.config().text_input.positions; n && longest > n)
		fail(Code::Context,
		     "the context is {} tokens, the model has a table of {} positions and none behind them; give -c {} or less",
		     longest, n, n);
	const CacheLayers& layers = e.cache_layers();
	for (uint32_t i = 0; i < layers.blocks().size(); ++i)
		entry_plans_.push_back(std::make_shared<const KvPlan>(plan_of_blocks(layers, i, opt.kv)));
	if (entry_plans_.empty()) plan_ = std::make_shared<const KvPlan>(make_device_plan(opt.kv, e.kv_shape()));
	if (!entry_plans_.empty()) {
		window_ = layers.window();
		plan_ = std::make_shared<const KvPlan>(make_window_plan(layers.main_shape(), window_));
	} else if (layers.both_kinds()) {
		KvPlan windows = make_window_plan(layers.window_shape(), layers.window());
		windows.first_layer = layers.pool_layer({true, 0});
		window_plan_ = std::make_shared<const KvPlan>(std::move(windows));
	} else if (layers.window() && longest > layers.window().tokens) {
		if (!plan().keeps_all)
			warn_once(fmt::format("policy '{}' applies to layers that attend to all tokens; all layers of this model "
			                      "attend to the latest {}, which are kept in f16",
			                      opt.kv.text, layers.window().tokens));
		window_ = layers.window();
		plan_ = std::make_shared<const KvPlan>(make_window_plan(e.kv_shape(), window_));
	}
	if (entry_plans_.empty()) plan_ = std::make_shared<const KvPlan>(with_index(*plan_, layers.index_shape()));
	if (layers.index_shape().n_layers && !policy_plan().chosen && longest > e.config().indexer.all_up_to())
		warn_once(fmt::format("policy '{}' fetches tokens, so attention reads all of them; in contexts of more than {} "
		                      "the model was trained to read only those that its indexer chooses; give fetch=0",
		                      opt.kv.text, e.config().indexer.all_up_to()));
	check_split();
	const size_t all = e.pool().budget_bytes(), others = window_bytes(longest) + state_bytes(),
	             budget = all - std::min(all, others);
	const uint64_t fits = tokens_that_fit(policy_plan(), budget, longest);
	if (fits == 0 || others > all) {
		const auto [needed, budgeted] = mebibytes_apart(most_bytes(policy_plan(), 1) + others, all);
		fail(Code::OutOfMemory,
		     "a cache budget of {} holds no token: the first ones take {} under policy '{}'; raise --kv-budget",
		     budgeted, needed, opt.kv.text);
	}
	ctx_ = opt.ctx ? opt.ctx : uint32_t(fits);
	ctx_by_budget_ = !opt.ctx && fits < trained;
	if (ctx_by_budget_ && is_auto(options.kv))
		warn_once(fmt::format("policy '{}': the context is {} tokens, the most that the cache budget of {} holds; the "
		                      "model was trained for {}",
		                      options.kv.text, ctx_, mebibytes(all), trained));
	if (plan().fetches()) fit_host_copy();
	if (opt.ctx && fits < opt.ctx)
		warn_once(fmt::format("the cache of {} tokens with policy '{}' may not fit: the budget has room for {}",
		                      opt.ctx, opt.kv.text, fits));
	warn_about_context(e.config(), ctx_);
	rope_ = std::make_shared<const RopeTables>(e.config(), ctx_);
	seqs_.main = std::make_unique<KvSequence>(e.backend(), plan(), e.pool(), ctx_, opt.seed);
	if (window_plan_)
		seqs_.window = std::make_unique<KvSequence>(e.backend(), *window_plan_, e.pool(),
		                                            std::min(ctx_, layers.window().tokens + kLag), opt.seed);
	if (layers.states().n_layers())
		seqs_.states = std::make_unique<StateSequence>(e.backend(), e.pool(), layers.states());
	if (policy_plan().chosen)
		seqs_.index = std::make_unique<IndexSequence>(e.backend(), e.pool(), layers.index_shape());
	for (const auto& p : entry_plans_)
		seqs_.entries.push_back(std::make_unique<KvSequence>(e.backend(), *p, e.pool(), ctx_ / p->block, opt.seed));
}

// Layers that share codes must lie on one device.
void Session::check_split() const {
	if (engine_.backend().n_parts() == 1) return;
	for (uint32_t l = 0; l < plan().shape.n_layers; ++l)
		for (const uint32_t owner : {plan().layers[l].k_codes_of, plan().layers[l].v_codes_of})
			if (engine_.pool().part(plan().first_layer + l) != engine_.pool().part(plan().first_layer + owner))
				fail(Code::Unsupported,
				     "policy '{}' shares the codes of layers {} and {}, which lie on different devices; choose another "
				     "--split",
				     options_.kv.text, owner, l);
}

bool Session::flush_due() const {
	return seqs_.main->cache().flush_due() || (seqs_.window && seqs_.window->cache().flush_due());
}

size_t Session::state_bytes() const { return 2 * engine_.cache_layers().states().bytes(); }

size_t Session::window_bytes(uint64_t n_tokens) const {
	size_t n = window_plan_ ? kvrun::window_bytes(*window_plan_, n_tokens) : 0;
	if (!entry_plans_.empty()) n += kvrun::window_bytes(*plan_, n_tokens);
	for (size_t i = 1; i < entry_plans_.size(); ++i) n += most_bytes(*entry_plans_[i], n_tokens);
	return n;
}

KvBytes Session::kv_bytes() const {
	KvBytes b = seqs_.main->bytes();
	if (seqs_.window) b += seqs_.window->bytes();
	if (seqs_.states) b.states += seqs_.states->bytes();
	for (const auto& s : seqs_.entries) b += s->bytes();
	return b;
}

size_t Session::f16_bytes() const {
	size_t n = plan().f16_bytes(n_tokens()) + (window_plan_ ? window_plan_->f16_bytes(n_tokens()) : 0);
	for (const auto& p : entry_plans_) n += p->f16_bytes(n_tokens());
	return n;
}

std::vector<uint8_t> Session::tiers(uint32_t layer, uint32_t kv_head) const {
	if (!engine_.config().layers.at(layer).mixes)
		fail(Code::Invalid, "layer {} is an MLP alone: it keeps no tokens", layer);
	if (!attends(engine_.config().layers.at(layer)))
		fail(Code::Invalid, "layer {} is recurrent: it has a state and keeps no tokens", layer);
	const CacheLayers::Place at = engine_.cache_layers()[layer];
	return (at.window ? seqs_.window : seqs_.main)->cache().tiers(at.index, kv_head);
}

// Layers use the same memory in turn.
uint32_t Session::prompt_rows() const {
	uint32_t n = KvPrefill::older_rows(seq(), window_) + KvPrefill::tail_rows(seq());
	if (const KvSequence* w = window_seq())
		n = std::max(n, KvPrefill::older_rows(*w, engine_.cache_layers().window()) + KvPrefill::tail_rows(*w));
	return n;
}

uint32_t Session::entry_rows() const {
	uint32_t n = 0;
	for (const auto& s : seqs_.entries) n = std::max(n, KvPrefill::tail_rows(*s));
	return n;
}

void Session::reserve_hint(uint32_t n_new) {
	seqs_.main->cache().reserve_hint(n_new);
	if (seqs_.window) seqs_.window->cache().reserve_hint(n_new);
	for (const auto& s : seqs_.entries) s->cache().reserve_hint(ceil_div(n_new, s->plan().block));
}

// Each cache lowers the position in turn until both agree; 0 is always exact in both.
uint32_t Session::Sequences::exact_position(uint32_t n) const {
	n = main->exact_position(states ? states->exact_position(n) : n);
	for (;;) {
		const uint32_t in_window = window ? window->exact_position(n) : n,
		               in_states = states ? states->exact_position(in_window) : in_window,
		               in_main = main->exact_position(in_states);
		if (in_main == n) return n;
		n = in_main;
	}
}

// A policy that fetches keeps every token in host memory: reports a lack of room before the prompt is read.
void Session::fit_host_copy() {
	const HostPool& host = engine_.pool().host();
	if (host.offloads()) return;
	const size_t chunk = HostPool::chunk_bytes(plan().shape);
	const uint64_t fits = host.budget_bytes() / chunk * HostPool::kTokens;
	if (fits >= ctx_) return;
	if (options_.ctx || fits == 0)
		fail(Code::OutOfMemory,
		     "a context of {} tokens with policy '{}' needs {:.1f} MiB of host memory for its f16 copy, {:.1f} MiB are "
		     "budgeted; raise --host-budget, or give --offload-dir{}",
		     ctx_, plan().policy.text, double(plan().f16_bytes(ctx_)) / (1 << 20),
		     double(host.budget_bytes()) / (1 << 20), fits ? fmt::format(", or -c {}", fits) : "");
	ctx_ = uint32_t(fits);
}

Session::Session(const Session& s, Sequences seqs)
    : engine_(s.engine_), options_(s.options_), plan_(s.plan_), window_plan_(s.window_plan_),
      entry_plans_(s.entry_plans_), window_(s.window_), rope_(s.rope_), ctx_(s.ctx_), ctx_by_budget_(s.ctx_by_budget_),
      seqs_(std::move(seqs)), history_(s.history_), lora_scales_(s.lora_scales_), positions_(s.positions_) {}

std::vector<Position> Session::positions(std::span<const uint32_t> tokens) {
	std::vector<Position> out;
	out.reserve(tokens.size());
	positions_.append(history_, tokens, out);
	return out;
}

std::vector<Position> Session::block_starts(std::span<const Position> next) {
	const uint32_t back = engine_.config().indexer.block - 1;
	if (!engine_.config().indexer.block || !back) return {};
	std::vector<Position> out(next.size());
	for (size_t i = 0; i < next.size(); ++i)
		if (i >= back)
			out[i] = next[i - back];
		else if (const uint32_t n = back - uint32_t(i); n <= history_.size())
			out[i] = positions_.latest(history_, n);
	return out;
}

Session::~Session() = default;

void Session::check_idle() const {
	if (reading_) fail(Code::Invalid, "the session is still reading a prompt");
}

void Session::check_scales() const {
	engine_.check_scales();
	if (lora_scales_ != engine_.lora_scales())
		fail(Code::Invalid, "the adapters have other scales than when the session's tokens were read; reset it, or set "
		                    "those scales again");
}

void Session::hold_scales() {
	if (n_tokens() == 0) lora_scales_ = engine_.lora_scales();
	check_scales();
}

void Session::check_room(uint64_t n) const {
	check_idle();
	const uint64_t total = n_tokens() + n;
	if (total > ctx() && ctx_by_budget()) {
		const size_t budget = engine_.pool().budget_bytes(),
		             others = window_bytes(std::max(engine_.config().max_seq, 1u)) + state_bytes();
		const std::string fits =
		    policy_that_fits(policy_plan().shape, total / policy_plan().block, budget - std::min(budget, others));
		const auto [needed, budgeted] = mebibytes_apart(most_bytes(policy_plan(), total) + others, budget);
		fail(Code::Context, "{} tokens need {} of cache under policy '{}', {} are budgeted: {}", total, needed,
		     policy_plan().policy.text, budgeted,
		     fits.empty() ? "no policy fits, shorten the prompt or raise --kv-budget"
		                  : fmt::format("--kv {} would fit, or raise --kv-budget", fits));
	}
	if (const uint32_t trained = engine_.config().max_seq; trained && total > trained && total > ctx())
		fail(Code::Context,
		     "the prompt has {} tokens, the context has room for {} of {}, and the model was trained for {}: shorten "
		     "it, "
		     "or take a model with a longer context",
		     n, ctx() - n_tokens(), ctx(), trained);
	if (total > ctx())
		fail(Code::Context, "the prompt has {} tokens, the context has room for {} of {}; raise -c or shorten it", n,
		     ctx() - n_tokens(), ctx());
}

void Session::check_room(std::span<const uint32_t> tokens) const {
	if (tokens.empty()) fail(Code::Invalid, "no tokens to prefill");
	check_room(tokens.size());
	for (const uint32_t t : tokens)
		if (t >= engine_.config().vocab && !(is_image_row(t) && engine_.images()))
			fail(Code::Invalid, "token {} is outside the vocabulary of {}", t, engine_.config().vocab);
}

std::span<const float> Session::prefill(std::span<const uint32_t> tokens, const PrefillHooks& hooks) {
	Prefill p(*this, tokens, hooks);
	if (!p.finish()) return {};
	logits_.assign(p.logits().begin(), p.logits().end());
	return logits_;
}

std::span<const float> Session::decode(uint32_t token) {
	const SessionRow row{this, token};
	return kvrun::decode({&row, 1});
}

uint32_t Session::step_tokens(uint32_t n) const {
	if (!seqs_.entries.empty()) return std::min(n, 1u);
	n = seqs_.main->cache().step_tokens(n);
	if (seqs_.window) n = seqs_.window->cache().step_tokens(n);
	return n;
}

std::string Session::why_one_token() const {
	if (!seqs_.entries.empty()) return "a guess that ends a block of tokens cannot be taken back in this model";
	if (plan().fetches()) return fmt::format("policy '{}' fetches tokens; give fetch=0", plan().policy.text);
	if (ranks_every_row(plan().policy.select))
		return fmt::format("policy '{}' ranks tokens by every row's attention, which cannot be taken back",
		                   plan().policy.text);
	return {};
}

std::span<const float> decode(std::span<const SessionRow> rows) {
	for (const SessionRow& r : rows) KV_ASSERT(r.top == 0 && r.drafts.empty());
	const std::span<const RowLogits> logits = decode_step(rows);
	for (const RowLogits& l : logits)
		if (l.fault) std::rethrow_exception(l.fault);
	return {logits[0].all.data(), logits.size() * logits[0].all.size()};
}

std::span<const RowLogits> decode_step(std::span<const SessionRow> rows) {
	KV_ASSERT(!rows.empty());
	Engine& e = rows[0].session->engine();
	std::vector<DecodeRow> step;
	bool drafts = false;
	for (size_t i = 0; i < rows.size(); ++i) {
		Session& s = *rows[i].session;
		KV_ASSERT(&s.engine() == &e);
		const auto refuse = [&](Code c, const std::string& why) { throw RowError(i, Error(c, why)); };
		if (s.reading_) refuse(Code::Invalid, "the session is still reading a prompt");
		try {
			s.hold_scales();
		} catch (const Error& error) { refuse(error.code, error.what()); }
		if (s.n_tokens() + rows[i].drafts.size() >= s.ctx())
			refuse(Code::Context, fmt::format("the context of {} tokens is full; raise -c", s.ctx()));
		const auto check_token = [&](uint32_t token) {
			if (token >= e.config().vocab)
				refuse(Code::Invalid, fmt::format("token {} is outside the vocabulary of {}", token, e.config().vocab));
		};
		check_token(rows[i].token);
		for (const uint32_t t : rows[i].drafts) check_token(t);
		drafts |= !rows[i].drafts.empty();
		if (s.plan().policy.fetch_sync != rows[0].session->plan().policy.fetch_sync)
			refuse(Code::Invalid, "fetch_mode=sync shares no step with sessions of other policies");
		step.push_back({s.seqs_.main.get(), s.seqs_.window.get(), s.seqs_.states.get(), s.rope_.get(),
		                s.next_position(), rows[i].token, rows[i].top, rows[i].drafts});
		step.back().index = s.index();
		step.back().entries = s.entries();
		if (e.config().indexer.block > 1) {
			std::vector<Position> next;
			for (uint32_t j = 0, at = step.back().position; j <= rows[i].drafts.size(); ++j, ++at)
				next.push_back({at, at, at, at});
			step.back().starts = s.block_starts(next);
		}
	}
	for (size_t i = 0; i < rows.size(); ++i) {
		rows[i].session->history_room(1 + uint32_t(rows[i].drafts.size()));
		step[i].before = rows[i].session->history(); // its memory stays where it is now
	}
	const auto lose = [&] { // whether a sequence has lost its tokens
		bool lost = false;
		for (const SessionRow& r : rows) lost |= r.session->sync_history();
		return lost;
	};
	for (;;) try {
			const std::span<RowLogits> logits = e.decoder().decode(e.pool(), step);
			uint32_t draft = uint32_t(rows.size()); // row of the logits
			for (uint32_t i = 0; i < rows.size(); ++i) {
				const SessionRow& r = rows[i];
				r.session->append_history({&r.token, 1});
				r.session->append_history(r.drafts);
				if (!e.decoder().usable(i)) logits[i].fault = r.session->fault_of(r.token);
				for (const uint32_t t : r.drafts) {
					if (!e.decoder().usable(draft)) logits[draft].fault = r.session->fault_of(t);
					++draft;
				}
			}
			return logits;
		} catch (const Error& error) {
			// Else nothing has been appended; checkpoints are dropped to make room, but not for drafts.
			if (lose() || drafts || error.code != Code::OutOfMemory ||
			    std::ranges::none_of(rows, [](const SessionRow& r) { return r.session->drop_checkpoint(); }))
				throw;
		} catch (...) { // std::bad_alloc
			lose();
			throw;
		}
}

// Runs the same token again on a temporary copy, where the same layer gives the first non-finite result.
std::exception_ptr Session::fault_of(uint32_t token) {
	std::string where = Prefill::kLogits;
	try {
		const std::unique_ptr<Session> copy = fork();
		where = Prefill(*copy, {&token, 1}).locate_fault();
	} catch (const Error&) { // no room for another token, or out of memory
	}
	return std::make_exception_ptr(Prefill::fault(where));
}

bool Session::sync_history() noexcept {
	if (!seqs_.together()) seqs_.reset(); // one of them has lost its tokens, as its older ones could not be put back
	if (history_.size() <= n_tokens()) return false;
	history_.resize(n_tokens());
	std::erase_if(checkpoints_, [&](const Sequences& c) { return c.main->n_tokens() > n_tokens(); });
	if (seqs_.index) seqs_.index->truncate(n_tokens());
	return true;
}

void Session::history_room(uint32_t n) {
	const size_t all = history_.size() + n;
	if (all > history_.capacity()) history_.reserve(std::max(all, history_.capacity() * 2));
}

void Session::restore(std::span<const std::byte> books, std::span<const std::byte> window_books,
                      std::span<const std::span<const std::byte>> entry_books, std::vector<uint32_t> history,
                      const std::function<void(std::span<std::byte>)>& source) {
	KV_ASSERT(n_tokens() == 0 && !reading_ && (!window_books.empty()) == bool(window_plan_));
	const auto read = [&](const KvPlan& p, std::span<const std::byte> b) {
		return KvSequence::restore(engine_.backend(), p, engine_.pool(), options_.seed, b,
		                           uint32_t(history.size() / p.block), source);
	};
	Sequences seqs{read(plan(), books), nullptr};
	if (window_plan_) seqs.window = read(*window_plan_, window_books);
	if (const StateShape& states = engine_.cache_layers().states(); states.n_layers()) {
		seqs.states = std::make_unique<StateSequence>(engine_.backend(), engine_.pool(), states);
		seqs.states->restore(uint32_t(history.size()), source);
	}
	if (policy_plan().chosen) {
		seqs.index =
		    std::make_unique<IndexSequence>(engine_.backend(), engine_.pool(), engine_.cache_layers().index_shape());
		seqs.index->restore(uint32_t(history.size()), source);
	}
	for (size_t i = 0; i < entry_plans_.size(); ++i) seqs.entries.push_back(read(*entry_plans_[i], entry_books[i]));
	seqs_ = std::move(seqs);
	history_ = std::move(history);
	lora_scales_ = engine_.lora_scales();
}

void Session::keep_drafts() {
	if (seqs_.states) seqs_.states->drop_earlier();
}

void Session::reset() {
	KV_ASSERT(!reading_);
	checkpoints_.clear();
	history_.clear();
	seqs_.reset();
}

void Session::Sequences::reset() {
	main->reset();
	if (window) window->reset();
	if (states) states->reset();
	if (index) index->reset();
	for (const auto& s : entries) s->reset();
}

bool Session::Sequences::together() const {
	const auto same = [this](const auto& s) { return !s || s->n_tokens() == main->n_tokens(); };
	return same(window) && same(states) && std::ranges::all_of(entries, [this](const auto& s) {
		       return s->n_tokens() == main->n_tokens() / s->plan().block;
	       });
}

// ---- forks and checkpoints

std::unique_ptr<Session> Session::fork() {
	check_idle();
	return std::unique_ptr<Session>(new Session(*this, seqs_.fork()));
}

void Session::take_fork(Session& other) {
	check_idle();
	other.check_idle();
	if (plan_ != other.plan_) fail(Code::Invalid, "the sessions are not forks of each other");
	std::vector<uint32_t> history = other.history_;
	seqs_ = other.seqs_.fork();
	window_plan_ = other.window_plan_; // of store_as()
	history_ = std::move(history);
	lora_scales_ = other.lora_scales_;
	positions_.forget();
	checkpoints_.clear();
}

void Session::prompt_read() {
	if (!options_.checkpoints) return;
	try {
		checkpoints_.push_back(seqs_.fork());
	} catch (const Error& e) {
		if (e.code != Code::OutOfMemory) throw;
		return; // no room for another checkpoint; it is optional
	}
	if (checkpoints_.size() <= options_.checkpoints) return;
	if (options_.checkpoints == 1)
		checkpoints_.erase(checkpoints_.begin());
	else
		drop_checkpoint();
}

// The first of several is dropped last, because it is the beginning of a conversation.
bool Session::drop_checkpoint() {
	if (checkpoints_.empty()) return false;
	checkpoints_.erase(checkpoints_.begin() + (checkpoints_.size() > 1 ? 1 : 0));
	return true;
}

const Session::Sequences* Session::checkpoint_at(uint32_t n) const {
	for (const Sequences& c : checkpoints_)
		if (c.main->n_tokens() == n) return &c;
	return nullptr;
}

uint32_t Session::exact_position(uint32_t n) const {
	uint32_t best = seqs_.exact_position(std::min(n, n_tokens()));
	for (const Sequences& c : checkpoints_)
		if (c.main->n_tokens() <= n) best = std::max(best, c.main->n_tokens());
	return best;
}

void Session::truncate(uint32_t n) {
	check_idle();
	if (n > n_tokens()) fail(Code::Invalid, "truncate to {} tokens, the session has {}", n, n_tokens());
	if (n == n_tokens()) return;
	if (n == 0) return reset();
	if (seqs_.exact_position(n) == n) {
		seqs_.main->truncate(n);
		if (seqs_.window) seqs_.window->truncate(n);
		if (seqs_.states) seqs_.states->truncate(n);
		if (seqs_.index) seqs_.index->truncate(n);
		for (const auto& s : seqs_.entries) s->truncate(n / s->plan().block); // states allow no other n than their own
	} else if (const Sequences* c = checkpoint_at(n)) {
		seqs_ = c->fork(); // the checkpoint stays for further attempts
	} else {
		fail(Code::Invalid,
		     "{} cannot go back to {} tokens exactly; the nearest position before is {}, from where the rest "
		     "must be read again",
		     !seqs_.entries.empty() ? std::string("a model whose layers attend to blocks of tokens")
		     : seqs_.states         ? std::string("a model with recurrent layers")
		                            : fmt::format("policy '{}'", plan().policy.text),
		     n, exact_position(n));
	}
	history_.resize(n);
	std::erase_if(checkpoints_, [&](const Sequences& c) { return c.main->n_tokens() > n; });
}

uint32_t Session::keep_common(std::span<const uint32_t> tokens) {
	const auto [a, b] = std::ranges::mismatch(history_, tokens);
	const size_t common = std::min(size_t(a - history_.begin()), tokens.empty() ? 0 : tokens.size() - 1);
	const uint32_t n = exact_position(uint32_t(common));
	truncate(n);
	return n;
}

} // namespace kvrun
