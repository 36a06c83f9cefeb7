// Keys of an indexer.
#include "engine/kv_device/index.h"
#include <algorithm>

namespace kvrun {

KvPlan with_index(KvPlan p, const IndexShape& index) {
	p.chosen = index.n_layers && !p.fetches() ? (index.most + std::max(index.local, 1u)) * index.chosen_block() : 0;
	p.choices = index.heads, p.chosen_from = index.from;
	p.index_token_bytes = p.chosen ? index.token_bytes() : 0;
	return p;
}

View IndexSequence::words(uint32_t id) const {
	const KvPool::Addr a = pool_.addr(id);
	const View chunk = pool_.chunk(a.chunk);
	return view(*chunk.buf, chunk.at + size_t(a.at) * 4, DType::U32, shape_.page_words());
}

std::unique_ptr<IndexSequence> IndexSequence::fork() const {
	auto f = std::make_unique<IndexSequence>(be_, pool_, shape_);
	f->pages_ = pages_, f->n_tokens_ = n_tokens_;
	for (const std::vector<uint32_t>& ids : pages_)
		for (const uint32_t id : ids) pool_.share(id);
	return f;
}

void IndexSequence::truncate(uint32_t n) {
	n_tokens_ = std::min(n, n_tokens_);
	for (std::vector<uint32_t>& ids : pages_)
		for (const uint32_t kept = pages_of(n_tokens_); ids.size() > kept; ids.pop_back()) pool_.free(ids.back());
}

uint32_t IndexSequence::take_page(uint32_t l) {
	const uint32_t id = pool_.alloc(shape_.first + l, shape_.page_words(), 0);
	if (id == kNone)
		fail(Code::OutOfMemory,
		     "the cache's budget of {:.1f} MiB has no room for more keys of the indexer; raise --kv-budget",
		     double(pool_.budget_bytes()) / (1 << 20));
	return id;
}

void IndexSequence::make_room(uint32_t n) {
	if (shape_.keys(n_tokens_ + n) == shape_.keys(n_tokens_)) return;
	const uint32_t first = shape_.keys(n_tokens_) / IndexShape::kPageKeys; // page of the next key
	for (uint32_t l = 0; l < shape_.n_layers; ++l) {
		std::vector<uint32_t>& ids = pages_[l];
		ids.reserve(pages_of(n_tokens_ + n));
		if (first < ids.size() && pool_.shared(ids[first])) {
			const uint32_t id = take_page(l);
			be_.copy(words(id), words(ids[first]));
			pool_.free(std::exchange(ids[first], id));
		}
		while (ids.size() < pages_of(n_tokens_ + n)) ids.push_back(take_page(l));
	}
}

void IndexSequence::save_device(const std::function<void(std::span<const std::byte>)>& sink) const {
	std::vector<std::byte> bytes(size_t(shape_.page_words()) * 4);
	for (const std::vector<uint32_t>& ids : pages_)
		for (uint32_t i = 0; i < pages_of(n_tokens_); ++i) {
			const View v = words(ids[i]);
			be_.read(*v.buf, v.at, bytes);
			be_.submit();
			be_.wait();
			sink(bytes);
		}
}

void IndexSequence::restore(uint32_t n_tokens, const std::function<void(std::span<std::byte>)>& source) {
	reset();
	make_room(n_tokens);
	std::vector<std::byte> bytes(size_t(shape_.page_words()) * 4);
	for (const std::vector<uint32_t>& ids : pages_)
		for (const uint32_t id : ids) {
			source(bytes);
			const View v = words(id);
			be_.write(*v.buf, v.at, bytes);
			be_.submit();
			be_.wait();
		}
	append(n_tokens);
}

void IndexSequence::fill(uint32_t n, std::span<const uint16_t> halves) {
	const uint32_t before = shape_.keys(n_tokens_) / IndexShape::kPageKeys;
	make_room(n);
	std::vector<uint16_t> page(size_t(shape_.page_words()) * 2);
	for (size_t i = 0; i < page.size(); ++i) page[i] = halves[i % halves.size()];
	for (const std::vector<uint32_t>& ids : pages_)
		for (uint32_t i = before; i < ids.size(); ++i) {
			const View v = words(ids[i]);
			be_.write(*v.buf, v.at, std::as_bytes(std::span(page)));
			be_.submit();
			be_.wait();
		}
	append(n);
}

} // namespace kvrun
