// Pages of which few tokens are live, as where an indexer chooses: attention's work then grows with the live tokens.
//
// A quad is 4 consecutive tokens. With ATTEND_GATHER, tiles consist of the quads that have live tokens, in their order:
// live_quads() counts those of a window of pages, live_quad() finds the i-th. Formats whose parameters a workgroup
// stages page by page cannot take quads of many pages into a tile: ATTEND_SKIP then leaves out tiles, dead_tile().
// After lib/queries.glsl or texel/queries.glsl; the including file has FLAGS, tables and PAGE_QUADS.
#include "lib/nth_bit.glsl"
const bool GATHER = (FLAGS & ATTEND_GATHER) != 0u, SKIP = (FLAGS & ATTEND_SKIP) != 0u;
const uint WINDOW_WORDS = 16u, WINDOW_QUADS = WINDOW_WORDS * 32u;
shared uint window_s[GATHER ? WINDOW_WORDS : 1u]; // bit i: quad i of the window has live tokens

// Live bits of quads quad .. quad + 7, 4 each; `live`: word of the first page's.
uint live_word(uint live, uint quad) { return tables[live + quad / PAGE_QUADS * 4u + quad % PAGE_QUADS / 8u]; }
// Bit i: whether any of bits 4 i .. 4 i + 3 is set.
uint any_of_four(uint x) {
	x = (x | x >> 1u | x >> 2u | x >> 3u) & 0x11111111u;
	x = (x | x >> 3u) & 0x03030303u;
	x = (x | x >> 6u) & 0x000f000fu;
	return (x | x >> 12u) & 0xffu;
}

// All lanes: how many quads of the window that begins with quad `first`, of n_quads, have live tokens.
uint live_quads(uint live, uint first, uint n_quads) {
	barrier(); // the previous window's bits have been read
	for (uint w = LANE; w < WINDOW_WORDS; w += LOCAL_X) {
		uint bits = 0u;
		[[dont_unroll]] for (uint i = 0; i < 4u; i++) {
			const uint quad = first + w * 32u + i * 8u;
			const uint of_eight = live_word(live, min(quad, n_quads - 8u));
			bits |= quad < n_quads ? any_of_four(of_eight) << i * 8u : 0u;
		}
		window_s[w] = bits;
	}
	barrier();
	uint n = 0u;
	[[dont_unroll]] for (uint w = 0; w < WINDOW_WORDS; w++) n += bitCount(window_s[w]);
	return n;
}
// The i-th of them, counted from the window's first quad; 0 <= i < live_quads().
uint live_quad(uint i) {
	uint before = 0u, word = 0u, bits = 0u; // of the word that has it
	uint n = 0u;
	[[dont_unroll]] for (uint w = 0; w < WINDOW_WORDS; w++) {
		const uint x = window_s[w], next = n + bitCount(x);
		if (n <= i && i < next) before = n, word = w, bits = x;
		n = next;
	}
	return word * 32u + nth_bit(bits, i - before);
}
// Whether no token of the tile that begins with quad `first` is live.
bool dead_tile(uint live, uint first, uint n_quads) {
	uint any = 0u;
	for (uint quad = first; quad < min(first + QUADS, n_quads); quad += 8u) any |= live_word(live, quad);
	return any == 0u;
}
