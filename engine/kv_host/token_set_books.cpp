// Saves and loads a token set. Positions of packed tokens are stored as runs of consecutive ones; scores keep all bits.
#include "engine/kv_host/books.h"
#include "engine/kv_host/token_set.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

constexpr int kPacked[] = {int(Tier::Salient), int(Tier::Regular)};

void TokenSet::write_tokens(BookWriter& out, const auto& tokens, bool ranked) {
	Token before{0, 0, 0, 0};
	for (const Token& t : tokens) {
		out.difference(t.pos, before.pos);
		out.difference(t.src, before.src);
		if (ranked) out.difference(t.rows_before, before.rows_before), out.real(t.score);
		before = t;
	}
}

void TokenSet::write(BookWriter& out) const {
	const bool ranked = plan_->ranked();
	const Lists L = open();
	write_tokens(out, L.sinks, ranked);
	write_tokens(out, L.kept, ranked);
	for (const int t : kPacked) write_tokens(out, L.waiting[t], ranked);
	write_tokens(out, L.recent, ranked);
	for (const int t : kPacked) {
		const std::vector<uint32_t> pos = packed_pos(t).all();
		uint32_t expected = 0; // position that would continue the last run
		for (size_t at = 0; at < pos.size();) {
			size_t end = at + 1;
			const bool none = pos[at] == kNone;
			while (end < pos.size() && (none ? pos[end] == kNone : pos[end] == pos[end - 1] + 1)) ++end;
			out.number((end - at) << 1 | none);
			if (!none) {
				out.difference(pos[at], expected);
				expected = pos[end - 1] + 1;
			}
			at = end;
		}
	}
}

// Reads n tokens with positions first_pos .. end_pos - 1.
void TokenSet::read_tokens(BookReader& in, auto& tokens, uint32_t n, uint32_t first_pos, uint32_t end_pos,
                           uint32_t scored_rows, std::vector<bool>& seen) {
	if (n > end_pos - std::min(first_pos, end_pos))
		fail(Code::Format, "{} tokens have positions {} to {}", n, first_pos, end_pos);
	const uint32_t most_slot = uint32_t(f16_pos_.size()) - 1;
	Token t{0, 0, 0, 0};
	for (uint32_t i = 0; i < n; ++i) {
		t.pos = uint32_t(in.difference(t.pos, "position of a token", end_pos - 1));
		t.src = uint32_t(in.difference(t.src, "slot of a token", most_slot));
		if (plan_->ranked()) {
			t.rows_before = uint32_t(in.difference(t.rows_before, "rows before a token", scored_rows));
			t.score = in.real("score of a token");
			if (!std::isfinite(float(t.score))) fail(Code::Format, "score of a token is {}", t.score);
		}
		if (t.pos < first_pos)
			fail(Code::Format, "position of a token is {}, expected {} to {}", t.pos, first_pos, end_pos - 1);
		if (seen[t.pos]) fail(Code::Format, "token {} is there twice", t.pos);
		if (f16_pos_[t.src] != kNone) fail(Code::Format, "slot {} holds two tokens", t.src);
		seen[t.pos] = true;
		occupy(int(Tier::F16), t.src, t.pos);
		tokens.push_back(t);
	}
}

void TokenSet::read_positions(BookReader& in, int tier, const KvCounts& c, std::vector<bool>& seen) {
	const uint32_t page = plan_->page[tier], n_slots = c.pages[tier] * page;
	const bool gaps = plan_->fill[tier] == Fill::Block; // else slots are filled in order
	uint32_t expected = 0, packed = 0;
	for (uint32_t at = 0; at < n_slots;) {
		const uint64_t run = in.number("run of slots", uint64_t(n_slots - at) * 2 + 1);
		const uint32_t n = uint32_t(run >> 1);
		if (n == 0) fail(Code::Format, "run of slots is empty");
		if (!(run & 1)) {
			const uint64_t first = in.difference(expected, "position of a token", c.n_tokens);
			if (first + n > c.n_tokens)
				fail(Code::Format, "position of a token is {} of {}", first + n - 1, c.n_tokens);
			if (!gaps && at != packed) fail(Code::Format, "slot {} before a token is empty", packed);
			for (uint32_t i = 0; i < n; ++i) {
				const uint32_t pos = uint32_t(first) + i;
				if (seen[pos]) fail(Code::Format, "token {} is there twice", pos);
				seen[pos] = true;
				occupy(tier, at + i, pos);
			}
			expected = uint32_t(first) + n, packed += n;
		}
		at += n;
	}
	if (packed != c.packed[tier]) fail(Code::Format, "packed tokens are {}, expected {}", packed, c.packed[tier]);
	packed_[tier] = packed;
	packed_pos(tier).seal(gaps ? c.pages[tier] : packed / page);
}

void TokenSet::read(BookReader& in, const KvCounts& c, std::span<const std::vector<uint32_t>, kTiers> page_block,
                    uint32_t scored_rows) {
	for (int t = 0; t < kTiers; ++t) {
		n_pages_[t] = c.pages[t], n_blocks_[t] = c.blocks[t];
		live_[t].assign(size_t(c.pages[t]) * 4, 0u);
		if (t != int(Tier::F16))
			for (uint32_t p = 0; p < c.pages[t]; ++p) packed_pos(t).append_page();
		block_[t] = page_block[size_t(t)];
	}
	const size_t n_slots = size_t(c.pages[int(Tier::F16)]) * plan_->page[int(Tier::F16)];
	f16_pos_.assign(n_slots, kNone);
	if (plan_->ranked()) score_.assign(n_slots, 0);
	if (takes_mean(plan_->policy.select.rank)) rows_before_.assign(n_slots, 0);

	// Sinks are the first tokens, the window has the newest ones; tokens in between are kept or waiting.
	const uint32_t n = uint32_t(c.n_tokens), sinks = plan_->policy.select.sinks;
	recent_from_ = std::max(sinks, n - std::min(n, c.recent));
	std::vector<bool> seen(n);
	Lists L;
	read_tokens(in, L.sinks, c.sinks, 0, std::min(sinks, n), scored_rows, seen);
	read_tokens(in, L.kept, c.kept, sinks, recent_from_, scored_rows, seen);
	for (const int t : kPacked) read_tokens(in, L.waiting[t], c.waiting[t], sinks, recent_from_, scored_rows, seen);
	read_tokens(in, L.recent, c.recent, recent_from_, n, scored_rows, seen);
	const auto in_order = [](const auto& list) { return std::ranges::is_sorted(list, {}, &Token::pos); };
	if (!in_order(L.sinks) || !in_order(L.kept) || !in_order(L.recent))
		fail(Code::Format, "tokens in f16 are not in order");
	for (const int t : kPacked) read_positions(in, t, c, seen);
	close(L);
	// A policy without a window may have judged the newest token, too.
	if ((c.recent || n <= sinks) && n && n_from(n - 1) != 1) fail(Code::Format, "the newest token is missing");
}

} // namespace kvrun
