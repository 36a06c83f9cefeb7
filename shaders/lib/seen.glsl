// Bits that say which of its tokens a row of a prompt sees (KvRows::seen in backends/ops.h).
//
// The including file declares seen, a buffer of words with binding SEEN_AT, and has p.seen_words and p.seen_at.

// Bit i: the row sees token first + i. Anything for tokens behind the row's own; only the row's words are read.
uint seen_bits(uint row, uint first) {
	const uint bit = p.seen_at + first, word = bit / 32u, shift = bit % 32u, last = p.seen_words - 1u;
	const uint row_at = KV_AT(SEEN_AT) + row * p.seen_words;
	const uint low = seen[row_at + min(word, last)], high = seen[row_at + min(word + 1u, last)];
	return shift == 0u ? low : low >> shift | high << 32u - shift;
}
