// A token set in a file. Positions of packed tokens are runs of consecutive ones; scores are kept to the bit.
#include "engine/kv/books.h"
#include "engine/kv/token_set.h"
#include <cmath>

namespace kvrun {

constexpr int kF16 = int(Tier::F16);
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
	write_tokens(out, sinks_, ranked);
	write_tokens(out, kept_, ranked);
	for (const int t : kPacked) write_tokens(out, waiting_[t], ranked);
	write_tokens(out, recent_, ranked);
	for (const int t : kPacked) {
		const std::vector<uint32_t>& pos = pos_[t];
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

void TokenSet::read_tokens(BookReader& in, auto& tokens, uint32_t n, const KvCounts& c, uint32_t scored_rows,
                           std::vector<bool>& seen) {
	const uint32_t most_pos = uint32_t(c.n_tokens) - 1, most_slot = uint32_t(pos_[kF16].size()) - 1;
	Token t{0, 0, 0, 0};
	for (uint32_t i = 0; i < n; ++i) {
		t.pos = uint32_t(in.difference(t.pos, "position of a token", most_pos));
		t.src = uint32_t(in.difference(t.src, "slot of a token", most_slot));
		if (plan_->ranked()) {
			t.rows_before = uint32_t(in.difference(t.rows_before, "rows before a token", scored_rows));
			t.score = in.real("score of a token");
			if (!std::isfinite(t.score)) fail(Code::Format, "score of a token is {}", t.score);
		}
		if (seen[t.pos]) fail(Code::Format, "token {} is there twice", t.pos);
		if (pos_[kF16][t.src] != kNone) fail(Code::Format, "slot {} holds two tokens", t.src);
		seen[t.pos] = true;
		occupy(kF16, t.src, t.pos);
		tokens.push_back(t);
	}
}

void TokenSet::read_positions(BookReader& in, int tier, const KvCounts& c, std::vector<bool>& seen) {
	const uint32_t page = plan_->page[tier], n_slots = c.pages[tier] * page;
	const bool gaps = plan_->fill[tier] == Fill::Block; // else slots are taken one after the other
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
}

void TokenSet::read(BookReader& in, const KvCounts& c, std::span<const std::vector<uint32_t>, kTiers> page_block,
                    uint32_t scored_rows) {
	for (int t = 0; t < kTiers; ++t) {
		n_pages_[t] = c.pages[t], n_blocks_[t] = c.blocks[t];
		live_[t].assign(size_t(c.pages[t]) * 4, 0u);
		pos_[t].assign(size_t(c.pages[t]) * plan_->page[t], kNone);
		block_[t] = page_block[size_t(t)];
	}
	std::vector<bool> seen(c.n_tokens);
	read_tokens(in, sinks_, c.sinks, c, scored_rows, seen);
	read_tokens(in, kept_, c.kept, c, scored_rows, seen);
	for (const int t : kPacked) read_tokens(in, waiting_[t], c.waiting[t], c, scored_rows, seen);
	read_tokens(in, recent_, c.recent, c, scored_rows, seen);
	for (size_t i = 1; i < kept_.size(); ++i)
		if (kept_[i].pos <= kept_[i - 1].pos) fail(Code::Format, "kept tokens are not in order");
	for (size_t i = 1; i < recent_.size(); ++i)
		if (recent_[i].pos <= recent_[i - 1].pos) fail(Code::Format, "tokens of the window are not in order");
	if (c.n_tokens && !ends_with(uint32_t(c.n_tokens) - 1)) fail(Code::Format, "the newest token is missing");
	for (const int t : kPacked) read_positions(in, t, c, seen);
	for (uint32_t slot = 0; slot < pos_[kF16].size(); ++slot) // ascending, which is a heap too
		if (pos_[kF16][slot] == kNone) free_.push_back(slot);
}

} // namespace kvrun
