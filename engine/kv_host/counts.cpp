// How many tokens of a cache are in each tier, and the bytes they take: all that does not depend on scores.
#include "engine/kv_host/counts.h"
#include "engine/core/error.h"
#include "engine/core/round.h"
#include "engine/kv_host/classify.h"
#include "shaders/shared/kv_page.h"
#include <algorithm>

namespace kvrun {

static uint64_t held_in_window(const KvPlan& plan, const KvCounts& c) {
	return uint64_t(c.recent) + (plan.policy.select.rank == Rank::LogWindow ? c.kept : 0);
}
static uint64_t window_tokens(const KvPlan& plan) {
	return uint64_t(plan.policy.select.recent_keep) + plan.policy.select.flush;
}

bool window_full(const KvPlan& plan, const KvCounts& c) {
	return !plan.keeps_all && held_in_window(plan, c) >= window_tokens(plan);
}

// Number of tokens until the window is full; 1 if it is full already.
static uint64_t until_full(const KvPlan& plan, const KvCounts& c) {
	const uint64_t held = held_in_window(plan, c), most = window_tokens(plan);
	return held < most ? most - held : 1;
}

// Moves tokens that wait for tier `t`, as many from each of `times` flushes, into its pages, as far as its Fill allows.
static void settle(const KvPlan& plan, KvCounts& c, int t, uint32_t times = 1) {
	uint32_t& w = c.waiting[t];
	const uint32_t page = plan.page[t];
	switch (plan.fill[t]) {
	case Fill::None: w = 0; break; // evicted
	case Fill::Append:
		c.packed[t] += w;
		c.pages[t] = ceil_div(c.packed[t], page);
		w = 0;
		break;
	case Fill::Group:
		c.packed[t] += w / page * page;
		c.pages[t] += w / page;
		w %= page;
		break;
	case Fill::Block:
		c.packed[t] += w;
		c.pages[t] += times * ceil_div(w / times, page);
		c.blocks[t] += w > 0 ? times : 0;
		w = 0;
		break;
	}
}

static FlushEvent judge(const KvPlan& plan, KvCounts& c, uint32_t after) {
	const Select& s = plan.policy.select;
	const bool stays = s.rank == Rank::LogWindow || plan.salient_stays;
	FlushEvent e{.after = after, .leaving = c.recent - s.recent_keep, .candidates = 0, .salient = 0};
	e.candidates = e.leaving + (stays ? c.kept : 0);
	c.judged += e.leaving;
	// If kept tokens can be demoted, the share is one of all tokens judged so far; else of this flush.
	e.salient = how_many_salient(s, e.candidates, stays ? c.judged : e.leaving);
	c.recent -= e.leaving;
	if (stays)
		c.kept = e.salient;
	else
		c.waiting[int(Tier::Salient)] += e.salient;
	c.waiting[int(Tier::Regular)] += e.candidates - e.salient;
	settle(plan, c, int(Tier::Salient));
	settle(plan, c, int(Tier::Regular));
	if (plan.empties_f16) c.pages[int(Tier::F16)] = 0;
	return e;
}

// A full window flushes and fills again, `times` times, for plans that do not rank tokens.
static void flush_by_position(const KvPlan& plan, KvCounts& c, uint32_t times) {
	const uint32_t n = times * plan.policy.select.flush;
	const int regular = int(Tier::Regular);
	c.n_tokens += n, c.judged += n;
	c.waiting[regular] += n;
	settle(plan, c, regular, times);
	if (plan.empties_f16) c.pages[int(Tier::F16)] = 0;
}

static void need_f16_pages(const KvPlan& plan, KvCounts& c) {
	const int f16_tier = int(Tier::F16);
	c.packed[f16_tier] = c.f16();
	c.pages[f16_tier] = std::max(c.pages[f16_tier], ceil_div(c.f16(), plan.page[f16_tier]));
}

void advance(const KvPlan& plan, KvCounts& c, uint64_t n_new, bool prompt, std::vector<FlushEvent>* events) {
	const Select& s = plan.policy.select;
	auto record = [&](const FlushEvent& e) {
		if (events) events->push_back(e);
	};
	const bool as_one = prompt && plan.ranked();
	if (plan.keeps_all) {
		c.n_tokens += n_new, c.recent += uint32_t(n_new);
	} else {
		for (uint64_t i = 0, n = 0; i < n_new; i += n) { // as many tokens as fit until the next flush
			if (prompt && !events && s.rank == Rank::None && window_full(plan, c)) {
				if (const uint64_t times = (n_new - i) / s.flush) {
					flush_by_position(plan, c, uint32_t(times));
					n = times * s.flush;
					continue;
				}
			}
			if (!as_one && window_full(plan, c)) record(judge(plan, c, uint32_t(i)));
			const bool sinks = c.n_tokens < s.sinks;
			n = std::min(n_new - i, sinks ? s.sinks - c.n_tokens : as_one ? n_new : until_full(plan, c));
			(sinks ? c.sinks : c.recent) += uint32_t(n);
			c.n_tokens += n;
			if (!prompt) need_f16_pages(plan, c);
		}
		if (as_one && c.recent > uint64_t(s.recent_keep) + s.flush) record(judge(plan, c, uint32_t(n_new)));
	}
	need_f16_pages(plan, c); // of a prompt, only the tokens that remain at its end are stored as f16
}

KvBytes bytes_of(const KvPlan& plan, const KvCounts& c) {
	const uint64_t H = plan.shape.n_kv_heads;
	const uint32_t D = plan.shape.head_dim, V = plan.shape.v_dim();
	KvBytes b;
	size_t pages = 0, n_pages = 0;
	for (uint32_t l = 0; l < plan.layers.size(); ++l) {
		const LayerPlan& L = plan.layers[l];
		for (int t = 0; t < kTiers; ++t) {
			const TierPlan& T = L.tier[t];
			if (T.page_format == 0xffff) continue;
			const PageFormat& p = plan.formats[T.page_format];
			const uint64_t n = c.packed[t];
			pages += c.pages[t] * p.bytes();
			n_pages += c.pages[t];
			b.live += c.pages[t] * (plan.table_bytes(l) - 16);
			auto codes = [&](uint32_t words, const Quant& q, uint32_t dim) {
				return words ? n * H * kv_token_words(dim, q.bits) * 4 : 0;
			};
			(t == int(Tier::F16) ? b.f16 : b.codes) += codes(p.k_codes, T.fmt.k, D) + codes(p.v_codes, T.fmt.v, V);
			auto params = [&](uint32_t words, const Quant& q, uint32_t dim) -> size_t {
				if (!words) return 0;
				return q.scale == Scale::PerToken && q.param_bits == 16 ? n * (H * dim / q.group) * 4
				                                                        : c.pages[t] * size_t(words) * 4;
			};
			b.k_params += params(p.k_params, T.fmt.k, D);
			b.v_params += params(p.v_params, T.fmt.v, V);
			if (T.block_format == 0xffff) continue;
			const PageFormat& block = plan.formats[T.block_format];
			pages += c.blocks[t] * block.bytes();
			b.k_params += size_t(c.blocks[t]) * block.k_params * 4;
			b.v_params += size_t(c.blocks[t]) * block.v_params * 4;
		}
	}
	b.slack = pages - b.f16 - b.codes - b.k_params - b.v_params;
	for (const LayerPlan& L : plan.layers) b.k_params += L.balanced ? plan.balancer_bytes() : 0;
	b.tables = n_pages * 16;
	b.index = plan.index_token_bytes * c.n_tokens;
	if (plan.fetches()) {
		const size_t L = plan.layers.size(), n = plan.fetch_pages(c.pages),
		             page = plan.page_format(0, Tier::F16).bytes();
		b.fetch = L * n * (page + 16) + n * 16; // pages, entries, live bits
		if (plan.speculates()) b.fetch += page + (L + size_t(plan.n_groups) * plan.n_heads) * 16; // for one more token
		b.fetch += plan.f16_bytes(plan.fetch_slots(c.pages));
		b.fetch += L * H * (size_t(c.pages[1]) + c.pages[2]) * 16; // masks
	}
	return b;
}

KvBytes bytes_at(const KvPlan& plan, uint64_t n_tokens) {
	KvCounts c;
	advance(plan, c, n_tokens / plan.block, /*prompt=*/true, nullptr);
	return bytes_of(plan, c);
}

double code_bits(const KvPlan& plan) {
	const Select& s = plan.policy.select;
	if (plan.keeps_all) return 16;
	const double share = plan.ranked() && !s.budget ? s.ratio : 0;
	const double k_share = double(plan.shape.head_dim) / (plan.shape.head_dim + plan.shape.v_dim()); // of channels
	double sum = 0;
	for (size_t l = 0; l < plan.layers.size(); ++l) {
		const LayerPlan& L = plan.layers[l];
		const Format &salient = L.tier[int(Tier::Salient)].fmt, &regular = L.tier[int(Tier::Regular)].fmt;
		const double own = k_share * (L.k_codes_of == l ? regular.k.bits : 0) +
		                   (1 - k_share) * (L.v_codes_of == l ? regular.v.bits : 0);
		sum += share * (k_share * salient.k.bits + (1 - k_share) * salient.v.bits) + (1 - share) * own;
	}
	return sum / double(plan.layers.size());
}

double stored_bits(const KvPlan& plan, uint64_t n_tokens) {
	if (!n_tokens) return 0;
	if (!plan.shape.n_layers) return 16; // of nothing
	return 16.0 * double(bytes_at(plan, n_tokens).total()) / double(plan.f16_bytes(n_tokens));
}

// Bytes with the window full.
static size_t fullest_bytes(const KvPlan& plan, KvCounts c) {
	const Select& s = plan.policy.select;
	if (!plan.keeps_all) {
		uint64_t f16 = uint64_t(c.sinks) + s.recent_keep + s.flush + (s.rank == Rank::LogWindow ? 0 : c.kept);
		for (int t : {int(Tier::Salient), int(Tier::Regular)})
			if (plan.fill[t] == Fill::Group && (s.rank != Rank::None || s.flush % plan.page[t] != 0))
				f16 += plan.page[t] - 1; // tokens waiting for their group; none if flushes are whole groups
		const int f16_tier = int(Tier::F16);
		c.pages[f16_tier] =
		    std::max(c.pages[f16_tier], uint32_t(ceil_div(std::min(f16, c.n_tokens), plan.page[f16_tier])));
	}
	return bytes_of(plan, c).total();
}

// `c`: of at most n tokens that came one by one; becomes that of n.
static size_t most_bytes(const KvPlan& plan, KvCounts& c, uint64_t n) {
	advance(plan, c, n - c.n_tokens, /*prompt=*/!plan.ranked(), nullptr); // position-only: any order gives the same
	const size_t one_by_one = fullest_bytes(plan, c);
	if (!plan.ranked()) return one_by_one;
	KvCounts prompt;
	advance(plan, prompt, n, /*prompt=*/true, nullptr);
	return std::max(one_by_one, fullest_bytes(plan, prompt));
}

size_t most_bytes(const KvPlan& plan, uint64_t n) {
	KvCounts c;
	return most_bytes(plan, c, n / plan.block);
}

uint64_t tokens_that_fit(const KvPlan& plan, size_t budget_bytes, uint64_t limit) {
	if (plan.block > 1) { // up to the last token that makes no entry more
		KvPlan entries = plan;
		entries.block = 1;
		const uint64_t n = tokens_that_fit(entries, budget_bytes, limit / plan.block);
		return n == limit / plan.block ? limit : (n + 1) * plan.block - 1;
	}
	// Counting takes time in proportion to the number of tokens, and a damaged file may give any number: counting
	// continues from a number of tokens that is known to fit.
	KvCounts fitting;
	const auto fits = [&](uint64_t n) {
		KvCounts c = fitting;
		if (most_bytes(plan, c, n) > budget_bytes) return false;
		fitting = c;
		return true;
	};
	uint64_t hi = std::min<uint64_t>(limit, 4096);
	while (fits(hi)) {
		if (hi == limit) return limit;
		hi = std::min(limit, hi * 2);
	}
	while (fitting.n_tokens + 1 < hi) {
		const uint64_t mid = fitting.n_tokens + (hi - fitting.n_tokens) / 2;
		if (!fits(mid)) hi = mid;
	}
	return fitting.n_tokens;
}

std::string policy_that_fits(const KvShape& shape, uint64_t n_tokens, size_t budget_bytes) {
	std::string best;
	size_t best_bytes = 0;
	for (const KvPolicy& p : all_policies()) {
		try {
			const KvPlan plan = make_plan(p, shape);
			if (plan.ranked() || plan.fetches() || (!plan.keeps_all && plan.fill[int(Tier::Regular)] == Fill::None))
				continue; // evicts or approximates
			const size_t bytes = most_bytes(plan, n_tokens);
			if (bytes <= budget_bytes && bytes > best_bytes) best = p.name, best_bytes = bytes;
		} catch (const Error&) { // a policy that does not fit the shape is not suggested
		}
	}
	return best;
}

} // namespace kvrun
