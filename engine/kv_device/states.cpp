// States of recurrent layers.
#include "engine/kv_device/states.h"
#include "engine/core/round.h"
#include "engine/kv_device/step.h"
#include "shared/work.h"
#include <algorithm>
#include <tuple>

namespace kvrun {
namespace {

View words_at(const KvPool& pool, const KvPool::Addr& a, uint32_t n) {
	const View chunk = pool.chunk(a.chunk);
	return view(*chunk.buf, chunk.at + size_t(a.at) * 4, DType::F32, n);
}

// View of a chunk from word `from` on.
View chunk_from(const KvPool& pool, uint32_t c, uint32_t from) {
	const View chunk = pool.chunk(c);
	return view(*chunk.buf, chunk.at + size_t(from) * 4, DType::F32, uint32_t(chunk.elements() - from));
}

} // namespace

StateSequence::StateSequence(Backend& be, KvPool& pool, const StateShape& shape)
    : be_(be), pool_(pool), shape_(shape) {}

std::unique_ptr<StateSequence> StateSequence::fork() const {
	auto f = std::make_unique<StateSequence>(be_, pool_, shape_);
	f->pages_ = pages_;
	f->n_tokens_ = n_tokens_; // earlier states stay with this sequence
	for (const uint32_t id : pages_) pool_.share(id);
	return f;
}

void StateSequence::free_pages(std::vector<uint32_t>& pages) {
	for (const uint32_t id : pages) pool_.free(id);
	pages.clear();
}

void StateSequence::drop_earlier() {
	for (Earlier& e : earlier_) free_pages(e.pages);
	earlier_.clear();
}

void StateSequence::reset() {
	drop_earlier();
	free_pages(pages_);
	n_tokens_ = 0;
}

uint32_t StateSequence::exact_position(uint32_t n) const {
	if (n >= n_tokens_) return n_tokens_;
	uint32_t best = 0;
	for (const Earlier& e : earlier_)
		if (e.n_tokens <= n) best = e.n_tokens;
	return best;
}

void StateSequence::truncate(uint32_t n) {
	KV_ASSERT(n > 0 && exact_position(n) == n);
	for (Earlier& e : earlier_)
		if (n < n_tokens_ && e.n_tokens == n) std::swap(pages_, e.pages), n_tokens_ = n;
	drop_earlier();
}

View StateSequence::page(uint32_t l) const { return words_at(pool_, pool_.addr(pages_[l]), shape_.words[l]); }

void StateSequence::take_pages(std::vector<uint32_t>& out) const {
	out.reserve(shape_.n_layers());
	try {
		for (uint32_t l = 0; l < shape_.n_layers(); ++l) {
			const uint32_t id = pool_.alloc(shape_.first + l, shape_.words[l], 0);
			if (id == kNone)
				fail(
				    Code::OutOfMemory,
				    "the cache's budget of {:.1f} MiB has no room for a state of {:.1f} MiB of recurrent layers; raise "
				    "--kv-budget",
				    double(pool_.budget_bytes()) / (1 << 20), double(shape_.bytes()) / (1 << 20));
			out.push_back(id);
		}
	} catch (...) {
		for (const uint32_t id : out) pool_.free(id);
		out.clear();
		throw;
	}
}

void StateSequence::save_device(const std::function<void(std::span<const std::byte>)>& sink) const {
	std::vector<std::byte> bytes;
	for (uint32_t l = 0; l < pages_.size(); ++l) {
		const View v = page(l);
		bytes.resize(v.bytes());
		be_.read(*v.buf, v.at, bytes);
		be_.submit();
		be_.wait();
		sink(bytes);
	}
}

void StateSequence::restore(uint32_t n_tokens, const std::function<void(std::span<std::byte>)>& source) {
	reset();
	if (n_tokens == 0) return;
	take_pages(pages_);
	n_tokens_ = n_tokens;
	std::vector<std::byte> bytes;
	for (uint32_t l = 0; l < shape_.n_layers(); ++l) {
		const View v = page(l);
		bytes.resize(v.bytes());
		source(bytes);
		be_.write(*v.buf, v.at, bytes);
		be_.submit();
		be_.wait();
	}
}

void StateSequence::fill(uint32_t n, std::span<const float> words) {
	restore(n_tokens_ + n, [&](std::span<std::byte> bytes) {
		const auto from = std::as_bytes(words);
		for (size_t at = 0; at < bytes.size(); at += from.size())
			std::ranges::copy(from.first(std::min(from.size(), bytes.size() - at)), bytes.begin() + ptrdiff_t(at));
	});
}

// ---- a step

StateStep::StateStep(Backend& be, Buffer& table, std::span<const StateOfRow> rows, bool in_place)
    : be_(be), table_(table) {
	KV_ASSERT(!rows.empty());
	const StateShape& shape = rows[0].seq->shape();
	groups_.resize(shape.n_layers());
	rows_.reserve(rows.size());
	try {
		for (const auto& [s, draft] : rows) {
			if (draft == 0) s->drop_earlier();
			Row& r = rows_.emplace_back(Row{s, {}, true, draft});
			if (draft) {
				while (rows_[r.before].seq != s || rows_[r.before].draft + 1 != draft) ++r.before;
				KV_ASSERT(r.before + 1 < rows_.size());
			}
			// all pages of a sequence are shared, or none
			r.in_place = in_place && !draft && !s->pages_.empty() && !s->pool_.shared(s->pages_[0]);
			if (r.in_place) {
				r.to = s->pages_;
				continue;
			}
			try {
				s->take_pages(r.to);
			} catch (const Error& e) { throw RowError(rows_.size() - 1, e); }
		}
		const size_t bytes = size_t(shape.n_layers()) * align_up(rows.size() * STATE_WORDS, 64) * 4;
		if (table_.bytes() < bytes) table_ = be.alloc(bytes, Mem::Device, "rows of states");
	} catch (...) {
		give_pages();
		throw;
	}
}

StateStep::~StateStep() {
	if (ended_) return;
	give_pages();
	for (Row& r : rows_)
		if (used_ && r.in_place) r.seq->reset();
}

void StateStep::give_pages() noexcept {
	for (Row& r : rows_) {
		if (r.in_place) continue;
		for (const uint32_t id : r.to) r.seq->pool_.free(id);
		r.to.clear();
	}
}

void StateStep::write(size_t at_word, std::span<const uint32_t> words) {
	be_.write(table_, at_word * 4, std::as_bytes(words));
}

// Appends items of layer l to `words`.
void StateStep::add_groups(uint32_t l, bool first, uint32_t n, std::vector<uint32_t>& words) {
	const KvPool& pool = rows_[0].seq->pool_;
	const StateShape& shape = rows_[0].seq->shape_;
	struct Item {
		uint32_t draft, from_chunk, to_chunk;
		uint32_t words[STATE_WORDS];
		bool goes_with(const Item& x) const {
			return draft == x.draft && from_chunk == x.from_chunk && to_chunk == x.to_chunk;
		}
	};
	std::vector<Item> items;
	for (uint32_t i = 0; i < rows_.size(); ++i) {
		const Row& r = rows_[i];
		const KvPool::Addr to = pool.addr(r.to[l]);
		const bool own = !first, zero = first && !r.draft && r.seq->pages_.empty();
		const KvPool::Addr from = own || zero ? to : pool.addr(r.draft ? rows_[r.before].to[l] : r.seq->pages_[l]);
		items.push_back({r.draft, from.chunk, to.chunk, {i, n, zero ? STATE_ZERO : from.at, to.at}});
	}
	// A draft goes on from what a group before its own writes.
	std::ranges::stable_sort(items, [](const Item& a, const Item& b) {
		return std::tuple(a.draft, a.from_chunk, a.to_chunk) < std::tuple(b.draft, b.from_chunk, b.to_chunk);
	});
	groups_[l].clear();
	for (size_t i = 0; i < items.size();) {
		size_t end = i;
		const size_t at = words.size();
		for (; end < items.size() && items[end].goes_with(items[i]); ++end)
			words.insert(words.end(), items[end].words, items[end].words + STATE_WORDS);
		const View work = view(table_, at * 4, DType::U32, uint32_t(end - i), STATE_WORDS);
		const auto places = [&](uint32_t from) {
			return StateRows{work, chunk_from(pool, items[i].from_chunk, from),
			                 chunk_from(pool, items[i].to_chunk, from)};
		};
		groups_[l].push_back({places(0), places(std::min(shape.conv_words, shape.words[l]))});
		i = end;
	}
}

void StateStep::one_row_each() {
	std::vector<uint32_t> words;
	for (uint32_t l = 0; l < groups_.size(); ++l) add_groups(l, true, 1, words);
	write(0, words);
}

void StateStep::piece(uint32_t l, bool first, uint32_t n) {
	KV_ASSERT(rows_.size() == 1);
	std::vector<uint32_t> words;
	add_groups(l, first, n, words);
	write(0, words);
}

std::span<const StateGroup> StateStep::groups(uint32_t l) {
	used_ = true;
	return groups_[l];
}

void StateStep::end(uint32_t n_tokens) {
	for (Row& r : rows_) {
		if (r.draft) {
			r.seq->earlier_.push_back({r.seq->n_tokens_, std::move(r.seq->pages_)});
			r.seq->pages_ = std::move(r.to);
		} else if (!r.in_place) {
			r.seq->free_pages(r.seq->pages_);
			r.seq->pages_ = std::move(r.to);
		}
		r.seq->n_tokens_ += n_tokens;
	}
	ended_ = true;
}

} // namespace kvrun
