// The indexer's part of a decode step or a piece of a prompt.
#include "engine/kv_device/index_step.h"
#include <algorithm>
#include <map>

namespace kvrun {
namespace {

constexpr uint32_t kItemKeys = 64;              // of a work item
constexpr size_t kMostScores = size_t(4) << 20; // of a call

void fit(Backend& be, Buffer& b, size_t bytes, const char* label) {
	if (b.bytes() < bytes) b = be.alloc(bytes + bytes / 2, Mem::Device, label);
}

} // namespace

IndexStep::IndexStep(Backend& be, IndexScratch& scratch, KvPool& pool, std::vector<IndexRow> rows)
    : be_(be), scratch_(scratch), pool_(pool), rows_(std::move(rows)) {
	const auto any = std::ranges::find_if(rows_, [](const IndexRow& r) { return r.seq != nullptr; });
	KV_ASSERT(any != rows_.end());
	shape_ = any->seq->shape();
}

KvDst IndexStep::destination(uint32_t l, uint32_t first, uint32_t& n) {
	std::vector<uint32_t> at;
	uint32_t chunk = kNone;
	for (uint32_t i = first; i < rows_.size() && i < first + n; ++i) {
		const IndexRow& r = rows_[i];
		uint32_t to = kSkip;
		if (r.seq && (r.position + 1) % shape_.block == 0) {
			const uint32_t key = r.position / shape_.block;
			const KvPool::Addr page = r.seq->page(l, key / IndexShape::kPageKeys);
			if (chunk != kNone && chunk != page.chunk) break;
			chunk = page.chunk, to = page.at + key % IndexShape::kPageKeys * (shape_.dim / 2);
		}
		at.insert(at.end(), {to, kSkip});
	}
	n = uint32_t(at.size() / 2);
	StepTable table;
	const size_t where = table.put(at);
	table.upload(be_, scratch_.words);
	const View to = chunk == kNone ? words_of(scratch_.words) : pool_.chunk(chunk); // none is stored
	return {to, to, table_view(scratch_.words, where, n, 1, 2), 1};
}

View IndexStep::choose(uint32_t l, const View& q, uint32_t first) {
	const uint32_t n = q.shape[0];
	std::vector<uint32_t> seen(n);
	std::map<uint32_t, std::vector<uint32_t>> items; // by chunk: words of work items
	uint32_t most = 1;                               // tokens that a row sees
	for (uint32_t i = 0; i < n;) {
		const IndexRow& r = rows_[first + i];
		uint32_t same = 1; // rows of one sequence
		while (i + same < n && rows_[first + i + same].seq == r.seq) ++same;
		for (uint32_t j = i; j < i + same; ++j)
			if (r.seq) most = std::max(most, seen[j] = rows_[first + j].position + 1);
		const uint32_t keys = chooses(first + i + same - 1) ? shape_.keys(seen[i + same - 1]) : 0;
		for (uint32_t key = 0; key < keys; key += kItemKeys) {
			const KvPool::Addr page = r.seq->page(l, key / IndexShape::kPageKeys);
			const uint32_t word = page.at + key % IndexShape::kPageKeys * (shape_.dim / 2);
			std::vector<uint32_t>& of = items[page.chunk];
			of.insert(of.end(), {i, same, key, std::min(kItemKeys, keys - key), word, 0, 0, 0});
		}
		i += same;
	}
	StepTable table;
	const size_t seen_at = table.put(seen);
	std::vector<size_t> at;
	for (const auto& [chunk, words] : items) at.push_back(table.put(words));
	table.upload(be_, scratch_.words);
	const uint32_t capacity = align_up(std::max(shape_.keys(most), 1u), 4u), n_words = align_up(most, 128u) / 32;
	fit(be_, scratch_.score, size_t(n) * capacity * 4, "scores of an indexer");
	fit(be_, scratch_.bits, size_t(n) * n_words * 4, "choices of an indexer");
	const View score = view(scratch_.score, 0, DType::F32, n, capacity);
	const View bits = view(scratch_.bits, 0, DType::U32, n, n_words);
	for (size_t g = 0; const auto& [chunk, words] : items)
		be_.index_score(score, q, {}, pool_.chunk(chunk),
		                table_view(scratch_.words, at[g++], uint32_t(words.size() / INDEX_WORDS), INDEX_WORDS));
	be_.index_pick(bits, score, table_view(scratch_.words, seen_at, n), shape_.block, shape_.most);
	return bits;
}

uint32_t IndexStep::most_rows(const IndexShape& shape, uint32_t last_position) {
	return uint32_t(std::max<size_t>(kMostScores / std::max(shape.keys(last_position + 1), 1u), 1));
}

} // namespace kvrun
