// KvCache: slots, pages, live bits and positions of one sequence. Decides which moves are needed; does not carry them
// out. No Backend.
#include "engine/core/make_room.h"
#include "engine/core/mebibytes.h"
#include "engine/core/round.h"
#include "engine/kv_host/cache_state.h"
#include "engine/kv_host/classify.h"
#include <algorithm>
#include <functional>
#include <numeric>

namespace kvrun {

// Returns pages and blocks beyond what `keep` counts.
void KvCache::State::trim(const KvCounts& keep) noexcept {
	for (LayerIds& L : ids)
		for (int t = 0; t < kTiers; ++t) {
			for (auto [list, n] : {std::pair{&L.pages[t], keep.pages[t]}, std::pair{&L.blocks[t], keep.blocks[t]}})
				while (list->size() > n) {
					pool->free(list->back());
					list->pop_back();
				}
		}
}

void KvCache::State::give_back() noexcept {
	trim(counts);
	for (const PageCopy& c : copies) pool->free(c.to);
	copies.clear();
}

void KvCache::State::out_of_memory(const KvCounts& want, uint32_t n_added) {
	give_back();
	const size_t own = bytes_of(*plan, counts).total(), need = bytes_of(*plan, want).total();
	const size_t others = pool->used_bytes() - std::min(own, pool->used_bytes());
	const size_t budget = pool->budget_bytes(), left = budget - std::min(budget, others);
	const std::string fits = policy_that_fits(plan->shape, want.n_tokens, left);
	const auto [needed, budgeted] = mebibytes_apart(need, budget);
	fail(Code::OutOfMemory,
	     "{} more token{} {} {} in the KV cache: {} needs {}, {} are budgeted, of which other caches (of windows, "
	     "states or sequences) hold {}; {}",
	     n_added, n_added == 1 ? "" : "s", n_added == 1 ? "makes" : "make", want.n_tokens, plan->policy.text, needed,
	     budgeted, mebibytes(others),
	     fits.empty() ? std::string("no policy fits: shorten the prompt or raise --kv-budget")
	                  : fmt::format("--kv {} would fit, or raise --kv-budget", fits));
}

// Gets the pages that `want` counts, and new pages for shared ones that will be written; all or none.
void KvCache::State::reserve(const KvCounts& want, uint32_t n_added) {
	KV_ASSERT(copies.empty());
	try {
		take_pages(want, n_added);
		unshare(want, n_added);
	} catch (...) { // the budget is spent, or the device had less memory than reported
		give_back();
		throw;
	}
	for (const PageCopy& c : copies) {
		for (auto& pages : ids[c.layer].pages) std::replace(pages.begin(), pages.end(), c.from, c.to);
		pool->free(c.from);
	}
	if (!copies.empty()) all_changed();
}

void KvCache::State::all_changed() noexcept {
	for (uint64_t& v : version) ++v;
	++pages_version;
}

uint32_t KvCache::State::take_page(uint32_t l, uint16_t format) {
	const PageFormat& f = plan->formats[format];
	return pool->alloc(plan->first_layer + l, f.words, f.page ? uint32_t(plan->table_bytes(l)) : 0);
}

void KvCache::State::take_pages(const KvCounts& want, uint32_t n_added) {
	for (uint32_t l = 0; l < ids.size(); ++l)
		for (int t = 0; t < kTiers; ++t) {
			const TierPlan& T = plan->layers[l].tier[t];
			for (auto [list, n, format] : {std::tuple{&ids[l].pages[t], want.pages[t], T.page_format},
			                               std::tuple{&ids[l].blocks[t], want.blocks[t], T.block_format}}) {
				make_room(*list, n - std::min<size_t>(n, list->size())); // first: a page has always an owner
				while (list->size() < n) {
					const uint32_t id = take_page(l, format);
					if (id == kNone) out_of_memory(want, n_added);
					list->push_back(id);
				}
			}
		}
}

// Shared pages that may be written are replaced by copies. Slots of f16 pages are reused, unless no token ever leaves
// them: then full pages never change. Of packed pages only the last one of a tier with Fill::Append changes.
void KvCache::State::unshare(const KvCounts& want, uint32_t n_added) {
	for (uint32_t l = 0; l < ids.size(); ++l)
		for (int t = 0; t < kTiers; ++t) {
			if (!counts.pages[t]) continue;
			const bool f16 = t == int(Tier::F16);
			uint32_t first = f16 && !plan->keeps_all ? 0 : counts.packed[t] / plan->page[t];
			if (!f16 && plan->fill[t] != Fill::Append) first = counts.pages[t];
			for (uint32_t p = first; p < counts.pages[t]; ++p) {
				const uint32_t from = ids[l].pages[t][p];
				if (!pool->shared(from)) continue;
				const uint16_t format = plan->layers[l].tier[t].page_format;
				make_room(copies, 1);
				const uint32_t to = take_page(l, format);
				if (to == kNone) out_of_memory(want, n_added);
				copies.push_back({l, from, to, plan->formats[format].words});
			}
		}
}

// Turns moves by logical page into moves by the page ids of layer l.
const KvMoves& KvCache::State::materialise(uint32_t l, const SetMoves& m) {
	const LayerPlan& L = plan->layers[l];
	out.clear();
	out.sources = m.sources;
	out.positions = m.positions;
	auto run = [&](const SetMoves::Run& r, uint32_t block) {
		const int t = int(r.tier);
		KvMove k{.tier = r.tier,
		         .head = r.head,
		         .src = r.src,
		         .n = r.n,
		         .page = ids[l].pages[t][r.page],
		         .slot = r.slot,
		         .block = block,
		         .k_owner = 0,
		         .v_owner = 0};
		k.k_owner = r.tier == Tier::Regular ? ids[L.k_codes_of].pages[t][r.page] : k.page;
		k.v_owner = r.tier == Tier::Regular ? ids[L.v_codes_of].pages[t][r.page] : k.page;
		return k;
	};
	for (const auto& b : m.blocks)
		out.blocks.push_back({b.tier, b.head, b.src, b.n, ids[l].blocks[int(b.tier)][b.block]});
	size_t b = 0; // blocks and packs are in the order of their sources; a pack's block is the one whose sources it uses
	for (const auto& r : m.packs) {
		while (b < m.blocks.size() && m.blocks[b].src + m.blocks[b].n <= r.src) ++b;
		const bool in_block = b < m.blocks.size() && m.blocks[b].src <= r.src;
		out.packs.push_back(run(r, in_block ? out.blocks[b].block : kNone));
	}
	for (const auto& r : m.stores) out.stores.push_back(run(r, kNone));
	return out;
}

// Makes `c` and the sets visible in the views.
void KvCache::State::commit(const KvCounts& c) {
	for (int t = 0; t < kTiers; ++t) {
		if (t == int(Tier::F16) || c.packed[t] != counts.packed[t]) ++version[t];
		if (c.pages[t] < counts.pages[t]) all_changed();
	}
	counts = c;
	for (int t = 0; t < kTiers; ++t) {
		const std::span<const uint32_t> blocks = sets[0][0].page_block(Tier(t)); // the same in all sets
		for (LayerIds& L : ids)
			while (L.block_of_page[t].size() < blocks.size())
				L.block_of_page[t].push_back(L.blocks[t][blocks[L.block_of_page[t].size()]]);
	}
}

KvCounts KvCache::State::with_f16_pages(KvCounts next) const {
	const int f16 = int(Tier::F16);
	next.pages[f16] = std::max(next.pages[f16], counts.pages[f16]);
	return next;
}

void KvCache::State::drop_f16_pages() noexcept {
	const int f16 = int(Tier::F16);
	const uint32_t n = ceil_div(counts.f16(), plan->page[f16]);
	if (!plan->empties_f16 || events.empty() || n >= counts.pages[f16]) return;
	counts.pages[f16] = n;
	floor_pages = std::min(floor_pages, n);
	for (auto& group : sets)
		for (TokenSet& set : group) set.drop_f16_pages(n);
	all_changed();
	trim(counts);
}

KvCache::KvCache(const KvPlan& plan, PagePool& pool, uint64_t seed) : s_(std::make_unique<State>(plan, pool, seed)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

const KvPlan& KvCache::plan() const { return *s_->plan; }
uint32_t KvCache::n_tokens() const { return uint32_t(s_->counts.n_tokens); }

void KvCache::reset() noexcept {
	State& s = *s_;
	s.trim(KvCounts());
	for (auto& group : s.sets)
		for (TokenSet& set : group) set.clear();
	for (LayerIds& L : s.ids)
		for (auto& blocks : L.block_of_page) blocks.clear();
	s.counts = KvCounts();
	s.scored_rows = s.exact_from = s.floor_pages = 0;
	s.newest_scores = s.in_token = s.in_prompt = false;
	s.copies.clear(), s.events.clear(), s.next_sets.clear(), s.before.sets.clear();
	s.all_changed();
}

KvCache KvCache::fork() const {
	KV_ASSERT(!s_->in_prompt && !s_->in_token);
	KvCache other(*s_->plan, *s_->pool, s_->seed);
	State& s = *other.s_;
	s.counts = s_->counts, s.sets = s_->sets;
	s.scored_rows = s_->scored_rows, s.newest_scores = s_->newest_scores;
	s.exact_from = s_->exact_from, s.floor_pages = s_->floor_pages;
	std::vector<LayerIds> ids = s_->ids;
	for (const LayerIds& L : ids)
		for (int t = 0; t < kTiers; ++t) {
			for (const uint32_t id : L.pages[t]) s.pool->share(id);
			for (const uint32_t id : L.blocks[t]) s.pool->share(id);
		}
	s.ids = std::move(ids); // from here on the destructor returns them
	return other;
}

std::span<const PageCopy> KvCache::copies() const { return s_->copies; }
void KvCache::copies_done() { s_->copies.clear(); }

// ---- truncating

uint32_t KvCache::exact_position(uint32_t n) const {
	n = std::min(n, n_tokens());
	return n >= s_->exact_from ? n : 0;
}

void KvCache::truncate(uint32_t n) {
	State& s = *s_;
	KV_ASSERT(!s.in_prompt && !s.in_token && exact_position(n) == n);
	if (n == n_tokens()) return;
	if (n == 0) return reset();
	KvCounts c = s.counts;
	const int f16_tier = int(Tier::F16);
	const uint32_t gone = n_tokens() - n, sinks = c.sinks - std::min(c.sinks, n);
	c.n_tokens = n, c.sinks -= sinks, c.recent -= gone - sinks;
	c.packed[f16_tier] = c.f16();
	c.pages[f16_tier] = std::max(s.floor_pages, ceil_div(c.f16(), s.plan->page[f16_tier]));
	for (auto& group : s.sets)
		for (TokenSet& set : group) set.remove_newest(gone), set.drop_f16_pages(c.pages[f16_tier]);
	s.newest_scores = false;
	s.commit(c);
	s.trim(c);
}

// ---- prompt

void KvCache::begin_prompt(uint32_t n_new, std::span<const uint32_t> rows) {
	State& s = *s_;
	KV_ASSERT(!s.in_prompt && !s.in_token && n_new > 0 && s.counts.n_tokens + n_new < kFromScratch);
	KV_ASSERT(std::is_sorted(rows.begin(), rows.end()) && (rows.empty() || rows.back() < n_new));
	KvCounts next = s.counts;
	s.events.clear();
	advance(*s.plan, next, n_new, /*prompt=*/true, &s.events);
	s.reserve(next, n_new);
	s.in_prompt = true;
	try {
		s.next = next, s.n_new = n_new, s.next_layer = 0;
		s.rows.clear();
		if (s.plan->ranked()) {
			if (rows.empty())
				s.rows = kvrun::probe_rows(s.plan->policy.select, n_new, s.seed + s.counts.n_tokens);
			else
				s.rows.assign(rows.begin(), rows.end());
		}
		s.rows_before.resize(n_new);
		for (uint32_t i = 0, r = 0; i < n_new; ++i) {
			s.rows_before[i] = s.scored_rows + r;
			if (r < s.rows.size() && s.rows[r] == i) ++r;
		}
		s.next_sets = s.sets;
		if (!s.plan->ranked()) s.replay_prompt(0, {});
	} catch (...) { // no memory for the prompt's tokens
		cancel_prompt();
		throw;
	}
}

void KvCache::reserve_hint(uint32_t n_new) {
	constexpr uint32_t kAnswer = 256; // the length of most answers
	KvCounts next = s_->counts;
	advance(*s_->plan, next, n_new, /*prompt=*/true, nullptr);
	advance(*s_->plan, next, kAnswer, /*prompt=*/false, nullptr);
	for (uint32_t l = 0; l < s_->ids.size(); ++l) {
		size_t words = 0;
		for (int t = 0; t < kTiers; ++t) {
			const TierPlan& T = s_->plan->layers[l].tier[t];
			const auto add = [&](uint16_t format, uint32_t now, uint32_t then) {
				if (format != 0xffff) words += size_t(then - std::min(now, then)) * s_->plan->formats[format].words;
			};
			add(T.page_format, s_->counts.pages[t], next.pages[t]);
			add(T.block_format, s_->counts.blocks[t], next.blocks[t]);
		}
		s_->pool->reserve_hint(s_->plan->first_layer + l, words);
	}
}

std::span<const uint32_t> KvCache::probe_rows() const { return s_->rows; }

// Adds the prompt's tokens to the group's sets, with the flushes of `events`. new_scores (n_heads, n_new), or empty.
void KvCache::State::replay_prompt(uint32_t group, std::span<const float> new_scores) {
	SetMoves& m = moves[group];
	m.clear();
	const uint32_t all_rows = scored_rows + uint32_t(rows.size()), first = uint32_t(counts.n_tokens);
	for (uint32_t h = 0; h < plan->n_heads; ++h) {
		TokenSet& set = next_sets[group][h];
		TokenSet::Lists lists = set.open();
		size_t e = 0;
		for (uint32_t i = 0; i < n_new; ++i) {
			for (; e < events.size() && events[e].after == i; ++e) set.flush(lists, events[e], all_rows, m);
			set.add_scratch(lists, first + i, i, rows_before[i],
			                new_scores.empty() ? 0 : new_scores[size_t(h) * n_new + i]);
		}
		for (; e < events.size(); ++e) set.flush(lists, events[e], all_rows, m);
		set.grow_f16(next.pages[int(Tier::F16)]);
		set.store(std::move(lists), m);
	}
}

// One row of scores per token set, from one per kv head: the same, or the mean if heads share the set.
static std::vector<float> per_set(std::span<const float> by_head, uint32_t n_sets, uint32_t n_kv_heads, size_t n) {
	KV_ASSERT(by_head.size() == n * n_kv_heads);
	if (n_sets > 1) return {by_head.begin(), by_head.end()};
	std::vector<float> mean(n);
	for (size_t i = 0; i < n; ++i) {
		double sum = 0;
		for (uint32_t h = 0; h < n_kv_heads; ++h) sum += by_head[h * n + i];
		mean[i] = float(sum / n_kv_heads);
	}
	return mean;
}

const KvMoves& KvCache::prompt_moves(uint32_t l, std::span<const float> new_scores,
                                     std::span<const float> slot_scores) {
	State& s = *s_;
	KV_ASSERT(s.in_prompt && l == s.next_layer && l < s.ids.size());
	++s.next_layer;
	if (!s.plan->ranked()) return s.materialise(l, s.moves[0]);
	const uint32_t H = s.plan->shape.n_kv_heads, n_sets = s.plan->n_heads;
	if (!slot_scores.empty()) {
		const size_t n_slots = n_f16_slots();
		const std::vector<float> score = per_set(slot_scores, n_sets, H, n_slots);
		for (uint32_t h = 0; h < n_sets; ++h)
			s.next_sets[l][h].add_scores([&](uint32_t slot) { return score[h * n_slots + slot]; });
	} else {
		for (TokenSet& set : s.next_sets[l]) set.rows_unseen(uint32_t(s.rows.size()));
	}
	s.replay_prompt(l, per_set(new_scores, n_sets, H, s.n_new));
	const KvMoves& moves = s.materialise(l, s.moves[l]);
	s.moves[l] = {}; // with a long prompt and sets per head they take as much memory as the cache
	return moves;
}

void KvCache::end_prompt() {
	State& s = *s_;
	KV_ASSERT(s.in_prompt && s.next_layer == s.ids.size());
	std::vector<FlushEvent> last; // flushed() reads it; of a long prompt all events take much memory
	if (!s.events.empty()) last.push_back(s.events.back());
	for (LayerIds& L : s.ids) // all memory that commit() needs: from here on nothing fails
		for (int t = 0; t < kTiers; ++t) L.block_of_page[t].reserve(s.next_sets[0][0].page_block(Tier(t)).size());
	s.in_prompt = false;
	s.sets = std::move(s.next_sets);
	s.next_sets.clear();
	s.scored_rows += uint32_t(s.rows.size());
	const uint32_t first = n_tokens();
	if (!s.events.empty()) {
		s.exact_from = first + std::min(s.events.back().after + 1, s.n_new);
		s.floor_pages = s.counts.pages[int(Tier::F16)];
	}
	if (!s.rows.empty()) s.exact_from = std::max(s.exact_from, first + s.rows.back() + 1);
	s.commit(s.with_f16_pages(s.next));
	s.drop_f16_pages();
	for (SetMoves& m : s.moves) m = {}; // with a long prompt they take as much memory as everything else
	s.events = std::move(last);
	s.out = {};
	for (auto* list : {&s.rows, &s.rows_before}) std::vector<uint32_t>().swap(*list);
}

bool KvCache::in_prompt() const { return s_->in_prompt; }

void KvCache::cancel_prompt() {
	State& s = *s_;
	KV_ASSERT(s.in_prompt);
	s.in_prompt = false;
	s.next_sets.clear();
	s.all_changed(); // tables may have been written in part
	s.trim(s.counts);
}

// ---- one token, or several

uint32_t KvCache::step_tokens(uint32_t n) const {
	const State& s = *s_;
	const KvPlan& p = *s.plan;
	// Pages that a flush empties are freed when its moves are done, at the end of the step.
	if (p.fetches() || (p.empties_f16 && flush_due())) return std::min(n, 1u);
	KvCounts c = s.counts;
	for (uint32_t i = 0; i < n; ++i) {
		if (i && window_full(p, c)) return i;
		advance(p, c, 1, /*prompt=*/false, nullptr);
		if (i && is_probe(p.policy.select, c.recent ? c.recent - 1 : 0, c.n_tokens - 1, s.seed)) return i;
	}
	return n;
}

bool KvCache::flush_due() const { return window_full(*s_->plan, s_->counts); }
bool KvCache::wants_scores() const { return s_->plan->ranked() && flush_due(); }
bool KvCache::token_scores() const { return s_->newest_scores; }

void KvCache::begin_token(std::span<const float> slot_scores, uint32_t n) {
	State& s = *s_;
	KV_ASSERT(!s.in_prompt && !s.in_token && n > 0 && step_tokens(n) == n);
	const uint32_t H = s.plan->shape.n_kv_heads, n_sets = s.plan->n_heads, pos = n_tokens();
	KvCounts next = s.counts;
	s.events.clear();
	advance(*s.plan, next, 1, /*prompt=*/false, &s.events);
	next = s.with_f16_pages(next);
	const bool scores = is_probe(s.plan->policy.select, next.recent ? next.recent - 1 : 0, pos, s.seed);
	s.step_pages.assign(1, next.pages[int(Tier::F16)]);
	for (uint32_t i = 1; i < n; ++i) {
		advance(*s.plan, next, 1, /*prompt=*/false, nullptr);
		s.step_pages.push_back(next.pages[int(Tier::F16)]);
	}
	s.step_slots.assign(size_t(n) * s.plan->n_groups * n_sets, kNone);
	const bool judged = s.plan->ranked() && !s.events.empty();
	const size_t n_slots = n_f16_slots();
	KV_ASSERT(!judged || slot_scores.size() == s.ids.size() * H * n_slots);
	State::Before before{s.counts, s.scored_rows, s.exact_from, s.floor_pages, s.newest_scores, {}};
	if (!s.events.empty())
		for (const std::vector<TokenSet>& group : s.sets) {
			before.sets.emplace_back();
			for (const TokenSet& set : group) before.sets.back().push_back(set.save());
		}
	s.reserve(next, n);
	s.before = std::move(before);
	s.in_token = true;
	for (uint32_t g = 0; g < s.plan->n_groups; ++g) {
		s.moves[g].clear();
		std::vector<float> score;
		if (judged) score = per_set(slot_scores.subspan(g * H * n_slots, H * n_slots), n_sets, H, n_slots);
		for (uint32_t h = 0; h < n_sets; ++h) {
			TokenSet& set = s.sets[g][h];
			if (judged) set.add_scores([&](uint32_t slot) { return score[h * n_slots + slot]; });
			for (const FlushEvent& e : s.events) set.flush(e, s.scored_rows, s.moves[g]);
			set.grow_f16(next.pages[int(Tier::F16)]);
			for (uint32_t i = 0; i < n; ++i) {
				set.add(pos + i, s.scored_rows + (i && scores));
				s.step_slots[(size_t(i) * s.plan->n_groups + g) * n_sets + h] = set.newest_slot();
			}
		}
	}
	s.newest_scores = scores;
	s.scored_rows += s.newest_scores;
	if (!s.events.empty()) s.floor_pages = s.counts.pages[int(Tier::F16)];
	if (!s.events.empty() || s.newest_scores) s.exact_from = pos + 1;
	s.commit(next);
}

void KvCache::end_token() {
	KV_ASSERT(s_->in_token);
	s_->in_token = false;
	s_->before.sets.clear();
	s_->drop_f16_pages();
}

void KvCache::cancel_token() {
	State& s = *s_;
	KV_ASSERT(s.in_token);
	s.in_token = false;
	const State::Before& b = s.before;
	for (size_t g = 0; g < s.sets.size(); ++g)
		for (size_t h = 0; h < s.sets[g].size(); ++h) {
			TokenSet& set = s.sets[g][h];
			if (!b.sets.empty()) {
				set.restore(std::move(s.before.sets[g][h]));
				continue;
			}
			// begin_token() may have failed before it reached this set
			set.remove_newest(set.n_from(uint32_t(b.counts.n_tokens)));
			set.drop_f16_pages(b.counts.pages[int(Tier::F16)]);
		}
	s.before.sets.clear();
	s.scored_rows = b.scored_rows, s.newest_scores = b.newest_scores;
	s.exact_from = b.exact_from, s.floor_pages = b.floor_pages;
	for (LayerIds& L : s.ids)
		for (int t = 0; t < kTiers; ++t)
			if (!L.block_of_page[t].empty()) L.block_of_page[t].resize(b.counts.pages[t]);
	s.all_changed();
	s.counts = b.counts;
	s.trim(s.counts);
}

bool KvCache::in_token() const { return s_->in_token; }
bool KvCache::flushed() const { return !s_->events.empty(); }

const KvMoves& KvCache::token_moves(uint32_t l) {
	return s_->materialise(l, s_->moves[s_->plan->n_groups == 1 ? 0 : l]);
}
uint32_t KvCache::token_slot(uint32_t l, uint32_t head, uint32_t i) const {
	const KvPlan& p = *s_->plan;
	const uint32_t group = p.n_groups == 1 ? 0 : l, set = p.n_heads == 1 ? 0 : head;
	return s_->step_slots[(size_t(i) * p.n_groups + group) * p.n_heads + set];
}
uint32_t KvCache::token_f16_pages(uint32_t i) const { return s_->step_pages[i]; }

// ---- views

const TokenSet& KvCache::set(uint32_t l, uint32_t head) const {
	const KvPlan& p = *s_->plan;
	KV_ASSERT(l < p.shape.n_layers && head < p.shape.n_kv_heads);
	return s_->sets[p.n_groups == 1 ? 0 : l][p.n_heads == 1 ? 0 : head];
}

uint32_t KvCache::n_pages(uint32_t, Tier t) const { return s_->counts.pages[int(t)]; }
uint32_t KvCache::n_f16_slots() const { return s_->counts.pages[int(Tier::F16)] * s_->plan->page[int(Tier::F16)]; }
std::span<const uint32_t> KvCache::pages(uint32_t l, Tier t) const {
	return std::span(s_->ids[l].pages[int(t)]).first(s_->counts.pages[int(t)]);
}
std::span<const uint32_t> KvCache::blocks(uint32_t l, Tier t) const { return s_->ids[l].block_of_page[int(t)]; }
std::span<const uint32_t> KvCache::live(uint32_t l, Tier t, uint32_t head) const { return set(l, head).live(t); }
std::vector<uint32_t> KvCache::positions(uint32_t l, Tier t, uint32_t head) const { return set(l, head).positions(t); }
uint32_t KvCache::position(uint32_t l, Tier t, uint32_t head, uint32_t slot) const {
	return set(l, head).position(t, slot);
}
uint64_t KvCache::version(uint32_t, Tier t) const { return s_->version[int(t)]; }
uint64_t KvCache::pages_version() const { return s_->pages_version; }

std::vector<uint8_t> KvCache::tiers(uint32_t l, uint32_t head) const {
	std::vector<uint8_t> out(n_tokens(), 3); // evicted unless found
	set(l, head).mark_tiers(out);
	return out;
}

KvBytes KvCache::bytes() const { return bytes_of(*s_->plan, s_->counts); }

} // namespace kvrun
