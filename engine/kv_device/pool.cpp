// Device memory of the cache: pages of all sequences and policies of an engine, by layer.
#include "engine/kv_device/pool.h"
#include <algorithm>

namespace kvrun {

KvPool::KvPool(Backend& be, uint32_t n_layers, size_t budget_bytes, std::vector<uint32_t> parts)
    : be_(be), device_(be.info()), budget_(budget_bytes), layers_(n_layers), tables_(be, "kv tables"),
      sums_(be, "attention sums"), balances_(be, "channel balancers"), host_(be) {
	const uint64_t most = std::min<uint64_t>({device_.max_view_bytes, device_.max_buffer_bytes, UINT32_MAX});
	most_words_ = most / 16 * 4; // arenas round sizes up to 4 words
	for (uint32_t l = 0; l < parts.size(); ++l) layers_.at(l).part = parts[l];
}

uint32_t KvPool::alloc(uint32_t layer, uint32_t words, uint32_t table_bytes) {
	KV_ASSERT(words > 0 && layer < layers_.size());
	const size_t cost = size_t(words) * 4 + table_bytes;
	if (used_ + cost > budget_) return kNone;
	if (free_ids_.empty()) { // both lists grow before either has the new id
		if (pages_.size() == pages_.capacity()) pages_.reserve(pages_.size() * 2 + 1);
		free_ids_.reserve(pages_.capacity()); // so that free() cannot throw
		free_ids_.push_back(uint32_t(pages_.size()));
		pages_.push_back({});
	}
	uint32_t chunk = 0;
	const uint64_t at = find_room(layer, words, chunk);
	const uint32_t id = free_ids_.back();
	free_ids_.pop_back();
	pages_[id] = {chunk, uint32_t(at), words, uint32_t(cost), 1};
	used_ += cost;
	layers_[layer].used += words;
	return id;
}

void KvPool::free(uint32_t id) noexcept {
	Page& p = pages_[id];
	if (--p.owners) return;
	Chunk& c = chunks_[p.chunk];
	c.memory.give(p.at, p.words);
	used_ -= p.cost;
	layers_[c.layer].used -= p.words;
	free_ids_.push_back(id);
}

uint64_t KvPool::find_room(uint32_t layer, uint32_t words, uint32_t& chunk) {
	for (const bool grown : {false, true}) {
		for (const uint32_t c : layers_[layer].chunks)
			if (const uint64_t at = chunks_[c].memory.take_within(words); at != FreeRanges::kNowhere) {
				chunk = c;
				return at;
			}
		if (!grown) add_room(layer, words);
	}
	fail(Code::Internal, "a page of {} words found no room", words);
}

// The layer's buffer grows to the expected size, else by an eighth. Only one layer is copied at a time, so the memory
// that exists twice is small compared with the whole cache. Where a buffer cannot grow (it has the largest size of a
// binding, or there is no memory for both copies), the layer gets another buffer.
void KvPool::add_room(uint32_t layer, uint32_t words) {
	constexpr uint64_t kSlack = 4, kLeast = 4096; // words
	Layer& L = layers_[layer];
	const uint64_t allocated = allocated_bytes() / 4, budget = budget_ / 4;
	const uint64_t spare = budget > allocated ? budget - allocated : 0; // extra growth stays within the budget
	if (!L.chunks.empty()) {
		WordArena& last = chunks_[L.chunks.back()].memory;
		const uint64_t need = last.words() + words + kSlack;
		const uint64_t want =
		    L.expected > last.words() ? L.expected + kSlack : last.words() + last.words() / 8 + kLeast;
		const uint64_t size = std::min(std::max(need, std::min(want, last.words() + spare)), most_words_);
		if (size >= need) try {
				return last.grow(size);
			} catch (const Error& e) {
				if (e.code != Code::OutOfMemory) throw;
			}
	}
	const uint64_t want = L.expected > L.used ? L.expected - L.used + kSlack : kLeast;
	const uint64_t size = std::max<uint64_t>(words + kSlack, std::min({want, spare, most_words_}));
	Chunk fresh{WordArena(be_, "kv pages", L.part), layer};
	try {
		fresh.memory.grow(size);
	} catch (const Error& e) {
		if (e.code != Code::OutOfMemory || size <= words + kSlack) throw;
		fresh.memory.grow(words + kSlack);
	}
	for (const uint32_t c : L.chunks) // reuse a released chunk
		if (!chunks_[c].memory.words()) {
			chunks_[c] = std::move(fresh);
			return;
		}
	L.chunks.reserve(L.chunks.size() + 1);
	chunks_.push_back(std::move(fresh));
	L.chunks.push_back(uint32_t(chunks_.size() - 1));
}

void KvPool::reserve_hint(uint32_t layer, size_t words) {
	Layer& L = layers_[layer];
	L.expected = L.used + words;
}

void KvPool::trim() {
	for (Chunk& c : chunks_)
		if (c.memory.empty()) c.memory.release();
	for (WordArena* a : {&tables_, &sums_, &balances_})
		if (a->empty()) a->release();
	for (Layer& L : layers_) L.expected = 0;
}

size_t KvPool::allocated_bytes() const {
	size_t bytes = tables_.bytes() + sums_.bytes() + balances_.bytes();
	for (const Chunk& c : chunks_) bytes += c.memory.bytes();
	return bytes;
}

} // namespace kvrun
