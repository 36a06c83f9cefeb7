// Saves the device data of a sequence to a file, and restores it.
#include "engine/kv_device/sequence.h"
#include <algorithm>

namespace kvrun {

constexpr size_t kPieceBytes = 4 << 20; // bytes transferred at once

// Pages and parameter blocks by layer and tier, in the cache's order; then sums, unchanged; then balancers.
std::vector<KvSequence::Stored> KvSequence::stored() {
	std::vector<Stored> out;
	const auto add = [&](const View& v) {
		if (v.buf && v.bytes()) out.push_back({v.buf, v.at, v.bytes()});
	};
	const auto add_page = [&](uint32_t id, uint32_t words) {
		const KvPool::Addr a = pool_.addr(id);
		const View chunk = pool_.chunk(a.chunk);
		add(view(*chunk.buf, chunk.at + size_t(a.at) * 4, DType::U32, words));
	};
	for (uint32_t l = 0; l < layers_.size(); ++l)
		for (const Tier t : kAllTiers) {
			for (const uint32_t id : cache_.pages(l, t)) add_page(id, plan_.page_format(l, t).words);
			uint32_t last = kNone; // pages of one block follow each other
			for (const uint32_t id : cache_.blocks(l, t))
				if (id != last) add_page(last = id, plan_.block_format(l, t).words);
		}
	if (plan_.ranked() && cache_.n_f16_slots()) {
		fit_sums();
		const uint32_t rows = uint32_t(layers_.size()) * plan_.shape.n_kv_heads;
		for (uint32_t r = 0; r < rows; ++r) add(pool_.sums().view(sums_at_ + r * sum_slots_, cache_.n_f16_slots()));
	}
	if (balanced_) add(pool_.balances().view(balance_at_, balance_words()));
	return out;
}

size_t KvSequence::saved_device_bytes() const {
	size_t bytes = 0;
	for (const Stored& s : const_cast<KvSequence*>(this)->stored()) bytes += s.bytes;
	return bytes;
}

void KvSequence::save_device(const std::function<void(std::span<const std::byte>)>& sink) {
	copy_pages();
	const std::vector<Stored> all = stored();
	std::vector<std::byte> bytes;
	for (size_t first = 0; first < all.size();) {
		size_t n = 0, last = first;
		while (last < all.size() && (last == first || n + all[last].bytes <= kPieceBytes)) n += all[last++].bytes;
		bytes.resize(n);
		size_t at = 0;
		for (size_t i = first; i < last; at += all[i++].bytes)
			be_.read(*all[i].buffer, all[i].at, std::span(bytes).subspan(at, all[i].bytes));
		be_.submit();
		be_.wait();
		sink(bytes);
		first = last;
	}
}

std::unique_ptr<KvSequence> KvSequence::restore(Backend& be, const KvPlan& plan, KvPool& pool, uint64_t seed,
                                                std::span<const std::byte> books, uint32_t n_tokens,
                                                const std::function<void(std::span<std::byte>)>& source) {
	auto s = std::make_unique<KvSequence>(be, plan, pool, 0, seed);
	s->cache_ = KvCache::load_books(plan, pool, seed, books, n_tokens);
	if (s->balanced_) s->balance_exact_from_ = n_tokens; // which of them are the first prompt's is not known
	std::vector<std::byte> bytes;
	size_t waiting = 0;
	for (const Stored& to : s->stored()) {
		bytes.resize(to.bytes);
		source(bytes);
		be.write(*to.buffer, to.at, bytes);
		waiting += to.bytes;
		if (waiting < kPieceBytes) continue;
		be.submit();
		be.wait(); // no more staging memory than a piece takes
		waiting = 0;
	}
	be.submit();
	be.wait();
	return s;
}

} // namespace kvrun
