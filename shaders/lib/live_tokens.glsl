// Pages of latents of which few tokens are live, as where an indexer chooses: tiles consist of the live tokens, in
// their order, from pages as far apart as they are. live_tokens() counts those of a window of an item's pages,
// live_token() finds the i-th.
//
// The including file defines LOCAL_X, and has lib/latent_pages.glsl.
#include "lib/nth_bit.glsl"
const uint WINDOW_WORDS = 64u, WINDOW_TOKENS = WINDOW_WORDS * 32u;
shared uint live_s[WINDOW_WORDS];        // bit i % 32 of word i / 32: whether token i is live
shared uint before_s[WINDOW_WORDS + 1u]; // live tokens of the words before

// All lanes: live tokens of the window that begins with token `first` of n.
uint live_tokens(uint first, uint live_at, uint n) {
	barrier(); // the previous window's words have been read
	for (uint w = gl_LocalInvocationID.x; w < WINDOW_WORDS; w += LOCAL_X) {
		const uint token = first + w * 32u, word = live_from(min(token, n - 32u), live_at);
		live_s[w] = token < n ? word : 0u;
	}
	barrier();
	for (uint w = gl_LocalInvocationID.x; w <= WINDOW_WORDS; w += LOCAL_X) {
		uint sum = 0u;
		[[dont_unroll]] for (uint i = 0u; i < w; i++) sum += bitCount(live_s[i]);
		before_s[w] = sum;
	}
	barrier();
	return before_s[WINDOW_WORDS];
}
// The i-th of them, counted from the window's first token; i < live_tokens().
uint live_token(uint i) {
	uint w = 0u;
	[[dont_unroll]] for (uint step_ = WINDOW_WORDS / 2u; step_ > 0u; step_ /= 2u)
		w += before_s[w + step_] <= i ? step_ : 0u;
	return w * 32u + nth_bit(live_s[w], i - before_s[w]);
}
