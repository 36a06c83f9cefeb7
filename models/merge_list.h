// The list of merges of a GGUF file: pairs of texts to join, in order of rank.
#pragma once
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/gguf.h"

namespace kvrun {

constexpr uint64_t kMaxMerges = uint64_t(1) << 21, kMaxMergeBytes = uint64_t(32) << 20;

// Calls f(rank, left, right) for each merge; `file` is for messages.
template <class F> void each_merge(const Gguf& g, const std::string& file, F&& f) {
	const char* key = "tokenizer.ggml.merges";
	const GgufEntry* e = g.find(key);
	if (e && (e->count > kMaxMerges || e->bytes.size() > kMaxMergeBytes))
		fail(Code::Format, "{}: key {} has {} merges in {} bytes, at most {} in {} are accepted; the file is damaged",
		     file, key, e->count, e->bytes.size(), kMaxMerges, kMaxMergeBytes);
	uint32_t rank = 0;
	for (std::string_view merge : g.texts(key)) {
		const size_t space = merge.find(' ', 1);
		if (space == merge.npos || space + 1 == merge.size())
			fail(Code::Format, "{}: key {}: element {} is '{}', expected two parts; the file is damaged", file, key,
			     rank, one_line(merge, 80));
		f(rank++, merge.substr(0, space), merge.substr(space + 1));
	}
}

} // namespace kvrun
