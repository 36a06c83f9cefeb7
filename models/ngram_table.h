// The table of n-grams (Config::ngrams). It may be larger than the rest of the model: it stays in the file, from which
// the rows that tokens need are read.
#pragma once
#include "models/config.h"

namespace kvrun {

class NGramTable {
 public:
	// File and config must outlive the table.
	NGramTable(const Gguf&, const Config&);
	// The tokens before the last one of `text` that its n-grams may reach.
	uint32_t reach() const { return grams_.longest - 1; }
	// Rows of the table for the last token of `text`, of which the latest reach() + 1 tokens count: rows[j] for j <
	// NGrams::rows(). Of length n there are NGrams::per_length rows, j on:
	//   hash = text[-1] * factors[0] ^ text[-2] * factors[1] ^ .. (n tokens),  row = first[j] + hash % sizes[j]
	// Numbers beyond the vocabulary are rows of images (NGrams::image). From the latest separator before the last token
	// on, and before the text's beginning, all tokens are separators.
	void rows_of(std::span<const uint32_t> text, std::span<uint32_t> rows) const;
	// What the last n tokens of `text` read, (n, NGrams::width()) f32. Throws Error{Io}.
	std::vector<float> read(std::span<const uint32_t> text, uint32_t n) const;

 private:
	const Gguf& file_;
	const NGrams& grams_;
	uint32_t vocab_;
	const GgufTensor* table_;
};

} // namespace kvrun
