// Bits that say which of its tokens a row of a prompt sees (KvRows::seen in backends/ops.h).
//
// The including file declares seen, a buffer of words with binding SEEN_AT, and has p.seen_words, p.seen_at and
// p.seen_sets.

// Bit i: the row sees token first + i in a KV head. Anything for tokens behind the row's own; only the row's words are
// read.
uint seen_bits(uint row, uint kv_head, uint first) {
	const uint bit = p.seen_at + first, word = bit / 32u, shift = bit % 32u, last = p.seen_words - 1u;
	const uint of_row = row * p.seen_sets + min(kv_head, p.seen_sets - 1u);
	const uint row_at = KV_AT(SEEN_AT) + of_row * p.seen_words;
	const uint low = seen[row_at + min(word, last)], high = seen[row_at + min(word + 1u, last)];
	return shift == 0u ? low : low >> shift | high << 32u - shift;
}
