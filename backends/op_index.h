// Rows of the operation table: an indexer, which chooses the tokens that a row attends to.
#pragma once
#include "backends/op_cache.h"
#include "backends/op_state.h"

namespace kvrun {

namespace op {

// Scores of keys: score[t][b] = sum over heads of relu(q[t][head] . key b) * weight[t][head], weights 1 where there are
// none. A work item is consecutive keys and the rows that they are scored for; other scores stay as they are.
// With `pool`, score[t][b] = the largest q[t] . key of the keys pool * b and following, without relu; there is one
// head.
struct IndexScore {
	View score;    // (T, capacity) f32
	View q;        // (T, n_heads, dim) f32; dim: a multiple of 8, at most 256
	View weights;  // (T, n_heads) f32; empty for none
	View keys;     // u32 words of pool memory: keys (n, dim) f16
	View work;     // (n, 8) u32, IndexWork
	uint32_t pool; // keys of a score, a power of two up to 256; 0: a key has a score

	const char* name() const { return "index_score"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	static void views(auto& o, auto& f) {
		const uint64_t T = o.q.shape[0], n_heads = o.q.shape[1];
		f(input("q", F32, {T, n_heads, o.q.shape[2]}), o.q);
		f(input("weights", F32, {T, n_heads}).optional(), o.weights);
		f(memory("keys"), o.keys);
		f(input("work", U32, {kAny, INDEX_WORDS}), o.work);
		f(output("score", F32, {T, o.score.shape[1]}, "index_score").slots(), o.score);
	}
};

// The tokens that a row attends to, as bits: bit i % 32 of bits[t][i / 32] for token i. A row sees tokens 0 .. seen[t]
// - 1. Of its whole blocks of `block` tokens it attends to the `most` with the largest scores, among equal ones to the
// first, and to the tokens behind the last whole block. With `local`, it attends to the last `local` blocks that it
// sees a token of, and to the `most` best of those before. Bits of tokens that it does not see are 0. A difference in
// the last bits of two scores may exchange their blocks, so bits are not compared; the scores are.
struct IndexPick {
	View bits;  // (T, words) u32, 32 * words >= seen[t]
	View score; // (T, capacity) f32, capacity >= blocks(seen[t])
	View seen;  // (T) u32
	uint32_t block, most, local;
	uint32_t blocks(uint32_t n_seen) const { // that it chooses from
		const uint32_t begun = local ? (n_seen + block - 1) / block : n_seen / block;
		return begun - (begun < local ? begun : local);
	}

	const char* name() const { return "index_pick"; }
	std::string text() const;
	void check() const { KV_ASSERT(block >= 1 && (block & (block - 1)) == 0 && most >= 1); }
	static void views(auto& o, auto& f) {
		const uint64_t T = o.score.shape[0];
		f(input("score", F32, {T, o.score.shape[1]}), o.score);
		f(input("seen", U32, {T}), o.seen);
		f(output("bits", U32, {T, o.bits.shape[1]}, ""), o.bits);
	}
};

// Live bits of pages for one row: those of the sequence without tokens that the row does not attend to.
struct IndexLive {
	View tables; // u32 words: live bits and positions are read, live bits for rows are written
	View bits;   // (T, words) u32, of IndexPick
	View work;   // (n, 8) u32, LiveWork
	static constexpr bool moves_bytes = true;

	const char* name() const { return "index_live"; }
	std::string text() const { return shape_text(work); }
	double bytes() const { return double(work.bytes()); }
	static void views(auto& o, auto& f) {
		f(input("bits", U32, {o.bits.shape[0], o.bits.shape[1]}), o.bits);
		f(input("work", U32, {kAny, LIVE_WORDS}), o.work);
		f(memory("tables").stores(), o.tables);
	}
};

} // namespace op
} // namespace kvrun
