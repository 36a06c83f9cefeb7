// The indexer's part of a decode step or a piece of a prompt.
#include "engine/kv_device/index_step.h"
#include <algorithm>
#include <array>
#include <map>

namespace kvrun {
namespace {

constexpr uint32_t kItemKeys = 64;              // of a work item, or a block of more
constexpr size_t kMostScores = size_t(4) << 20; // of a call

void fit(Backend& be, Buffer& b, size_t bytes, const char* label) {
	if (b.bytes() < bytes) b = be.alloc(bytes + bytes / 2, Mem::Device, label);
}

} // namespace

IndexStep::IndexStep(Backend& be, IndexScratch& scratch, KvPool& pool, std::vector<IndexRow> rows, uint32_t first_layer,
                     uint32_t n_layers)
    : be_(be), scratch_(scratch), pool_(pool), rows_(std::move(rows)), first_layer_(first_layer), n_layers_(n_layers) {
	const auto any = std::ranges::find_if(rows_, [](const IndexRow& r) { return r.seq != nullptr; });
	KV_ASSERT(any != rows_.end());
	shape_ = any->seq->shape();
	StepTable table;
	for (uint32_t l = first_layer_; l < first_layer_ + n_layers_; ++l) {
		const size_t at = table.take(rows_.size() * 2);
		for (uint32_t i = 0; i < rows_.size(); ++i) {
			const IndexRow& r = rows_[i];
			uint32_t to = kSkip, chunk = kNone;
			if (r.seq && (r.position + 1) % shape_.block == 0) {
				const uint32_t key = r.position / shape_.block;
				const KvPool::Addr page = r.seq->page(l, key / IndexShape::kPageKeys);
				chunk = page.chunk, to = page.at + key % IndexShape::kPageKeys * (shape_.dim / 2);
			}
			std::ranges::copy(std::array{to, kSkip}, table.at(at + size_t(i) * 2, 2).begin());
			chunks_.push_back(chunk);
		}
	}
	table.upload(be_, scratch_.places);
}

KvDst IndexStep::destination(uint32_t l, uint32_t first, uint32_t& n) const {
	const uint32_t n_rows = uint32_t(rows_.size()), of = l - first_layer_;
	uint32_t chunk = kNone, end = first;
	for (; end < n_rows && end < first + n; ++end) {
		const uint32_t c = chunks_[size_t(of) * n_rows + end];
		if (c == kNone) continue;
		if (chunk != kNone && chunk != c) break;
		chunk = c;
	}
	n = end - first;
	const size_t at = of * align_up(size_t(n_rows) * 2, size_t(64)) + size_t(first) * 2;
	const View to = chunk == kNone ? words_of(scratch_.places) : pool_.chunk(chunk); // none is stored
	return {to, to, table_view(scratch_.places, at, n, 1, 2), 1};
}

void IndexStep::plan(uint32_t first, uint32_t n) {
	first_ = first, n_ = n, most_ = 1;
	StepTable table;
	const uint32_t heads = shape_.heads, pool = std::max(shape_.pool, 1u);
	std::vector<uint32_t> seen(n), of_choices;
	for (uint32_t i = 0; i < n; ++i) {
		if (rows_[first + i].seq) most_ = std::max(most_, seen[i] = rows_[first + i].position + 1);
		of_choices.insert(of_choices.end(), heads, shape_.of_entries ? shape_.keys(seen[i]) : seen[i]);
	}
	seen_at_ = table.put(of_choices);
	groups_.assign(n_layers_, {});
	const uint32_t item_keys = std::max(kItemKeys, pool);
	for (uint32_t l = 0; l < n_layers_; ++l) {
		std::map<uint32_t, std::vector<uint32_t>> items; // by chunk: words of work items
		for (uint32_t i = 0, same = 1; i < n; i += same, same = 1) {
			const IndexRow& r = rows_[first + i];
			while (i + same < n && rows_[first + i + same].seq == r.seq) ++same; // rows of one sequence
			const uint32_t keys = chooses(first + i + same - 1) ? shape_.blocks(seen[i + same - 1]) * pool : 0;
			for (uint32_t key = 0; key < keys; key += item_keys) {
				const KvPool::Addr page = r.seq->page(first_layer_ + l, key / IndexShape::kPageKeys);
				const uint32_t word = page.at + key % IndexShape::kPageKeys * (shape_.dim / 2);
				std::vector<uint32_t>& of = items[page.chunk];
				of.insert(of.end(),
				          {i * heads, same * heads, key / pool, std::min(item_keys, keys - key), word, 0, 0, 0});
			}
		}
		for (const auto& [chunk, words] : items)
			groups_[l].push_back({chunk, table.put(words), uint32_t(words.size() / INDEX_WORDS)});
	}
	table.upload(be_, scratch_.words);
}

View IndexStep::choose(uint32_t l, const View& q, const View& weights, uint32_t first, const View& to) {
	const uint32_t n = q.shape[0];
	if (first != first_ || n != n_) plan(first, n);
	const uint32_t all = n * shape_.heads; // choices
	const uint32_t capacity = align_up(std::max(shape_.blocks(most_), 1u), 4u),
	               n_words = shape_.of_entries ? words(shape_.keys(most_) + n) : words(most_);
	fit(be_, scratch_.score, size_t(all) * capacity * 4, "scores of an indexer");
	if (!to) fit(be_, scratch_.bits, size_t(all) * n_words * 4, "choices of an indexer");
	const View score = view(scratch_.score, 0, DType::F32, all, capacity);
	const View bits = to ? to : view(scratch_.bits, 0, DType::U32, all, n_words);
	View queries = q; // each choice's
	queries.shape[0] = all, queries.shape[1] /= shape_.heads;
	for (const Group& g : groups_[l - first_layer_])
		be_.index_score(score, queries, weights, pool_.chunk(g.chunk),
		                table_view(scratch_.words, g.at, g.n_work, INDEX_WORDS), shape_.pool);
	be_.index_pick(bits, score, table_view(scratch_.words, seen_at_, all),
	               shape_.of_entries ? 1 : shape_.chosen_block(), shape_.most, shape_.local);
	return bits;
}

uint32_t IndexStep::most_rows(const IndexShape& shape, uint32_t last_position) {
	const uint32_t of_choice = std::max(shape.blocks(last_position + 1), words(last_position + 1)); // scores, bits
	return uint32_t(std::max<size_t>(kMostScores / (size_t(of_choice) * shape.heads), 1));
}

} // namespace kvrun
