// One sequence on a device: page table and live bits kept equal to the cache's.
#include "engine/cache/sequence.h"
#include "shaders/shared/kv_page.h"
#include <algorithm>
#include <cstring>

namespace kvrun {

KvState::KvState(Backend& be, const KvPlan& plan, KvPool& pool, uint32_t max_tokens, uint64_t seed)
    : be_(be), plan_(plan), pool_(pool), cache_(plan, pool, seed), max_tokens_(max_tokens),
      layers_(plan.shape.n_layers) {
	// A first guess; fit_tables() makes them longer when a method needs more.
	for (const Tier t : kAllTiers) {
		const bool used = t == Tier::Recent || plan.fill[int(t)] != Fill::None;
		const bool whole = t == Tier::Recent ? plan.keeps_all : true;
		if (used) tier_pages_[int(t)] = whole ? max_tokens / std::max(plan.page[int(t)], 1u) + 2 : 8;
	}
	bool balanced = false;
	for (const LayerPlan& L : plan.layers) {
		balanced |= L.balanced;
		for (const TierPlan& t : L.tier) has_factors_ |= t.fmt.v.bits < 16 && t.fmt.v.norm == Norm::SqrtMax;
	}
	if (balanced) balance_ = be.alloc(plan.balancer_bytes() * plan.shape.n_layers, Mem::Device, "channel balancers");
}

void KvState::reset() {
	cache_.reset();
	sums_ = {}; // rather than cleared: this also ends prompts on a device that can do nothing any more
	sum_slots_ = 0;
}

uint32_t KvState::tier_first(Tier t) const {
	uint32_t first = 0;
	for (int i = 0; i < int(t); ++i) first += tier_pages_[i];
	return first;
}

View KvState::page_table(uint32_t l) const {
	return view(tables_, size_t(l) * table_pages_ * 16, DType::U32, table_pages_, 4);
}

View KvState::live_bits(uint32_t l) const {
	const size_t group = plan_.n_groups == 1 ? 0 : l;
	return view(tables_, (live_word() + group * plan_.n_heads * table_pages_ * 4) * 4, DType::U32, plan_.n_heads,
	            table_pages_, 4);
}

View KvState::factors(uint32_t l) const {
	if (!has_factors_) return {};
	return view(tables_, (factor_word() + size_t(l) * table_pages_) * 4, DType::U32, table_pages_);
}

View KvState::balance(uint32_t l) const {
	if (!plan_.layers[l].balanced) return {};
	return view(balance_, l * plan_.balancer_bytes(), DType::F16, plan_.shape.n_kv_heads, plan_.shape.head_dim);
}

// Makes the tables as long as the longest tier needs; a longer table starts empty and is written as a whole.
void KvState::fit_tables() {
	bool longer = !tables_;
	for (uint32_t l = 0; l < layers_.size(); ++l)
		for (const Tier t : kAllTiers)
			if (const uint32_t n = cache_.n_pages(l, t); n > tier_pages_[int(t)]) {
				tier_pages_[int(t)] = std::max(n, tier_pages_[int(t)] * 2);
				longer = true;
			}
	if (!longer) return;
	table_pages_ = tier_pages_[0] + tier_pages_[1] + tier_pages_[2];
	live_.assign(size_t(plan_.n_groups) * plan_.n_heads * table_pages_ * 4, 0x5a5a5a5au);
	const size_t n_factors = has_factors_ ? layers_.size() * table_pages_ : 0;
	tables_ = {}; // should there be no memory, the next attempt starts here again
	tables_ = be_.alloc((factor_word() + n_factors) * 4, Mem::Device, "kv tables");
	for (Layer& L : layers_) {
		L.table.assign(size_t(table_pages_) * 4, kNone); // no page starts at this word: everything will differ
		L.factors.assign(has_factors_ ? table_pages_ : 0, kNone);
		std::fill(std::begin(L.version), std::end(L.version), UINT64_MAX);
	}
}

// Writes to the device what differs between `now` and the mirror at word `at`, in one piece.
void KvState::write_changed(std::vector<uint32_t>& mirror, size_t at, std::span<const uint32_t> now,
                            size_t device_word) {
	size_t first = 0, last = now.size();
	while (first < last && mirror[at + first] == now[first]) ++first;
	while (last > first && mirror[at + last - 1] == now[last - 1]) --last;
	if (first == last) return;
	std::copy(now.begin() + first, now.begin() + last, mirror.begin() + at + first);
	be_.write(tables_, (device_word + first) * 4, std::as_bytes(now.subspan(first, last - first)));
}

void KvState::sync_pages(uint32_t l, Tier t) {
	const std::span<const uint32_t> ids = cache_.pages(l, t), blocks = cache_.blocks(l, t);
	const LayerPlan& L = plan_.layers[l];
	// Shared codes lie in the owner's page of the same number; only the Regular tier shares.
	const bool shares = t == Tier::Regular;
	const std::span<const uint32_t> k_ids = shares ? cache_.pages(L.k_codes_of, t) : ids;
	const std::span<const uint32_t> v_ids = shares ? cache_.pages(L.v_codes_of, t) : ids;
	std::vector<uint32_t> now(ids.size() * 4), factors(has_factors_ ? ids.size() : 0);
	std::vector<PageRun> runs;
	for (uint32_t p = 0; p < ids.size(); ++p) {
		const KvPool::Addr own = pool_.addr(ids[p]), k = pool_.addr(k_ids[p]), v = pool_.addr(v_ids[p]);
		const KvPool::Addr block = blocks.empty() ? own : pool_.addr(blocks[p]);
		const auto format = [&](const KvPool::Addr& a) -> const PageFormat& { return plan_.formats[a.format]; };
		const KvPool::Addr k_params = format(block).k_params ? block : own;
		now[p * 4 + 0] = k.at + format(k).k_codes_at;
		now[p * 4 + 1] = v.at + format(v).v_codes_at;
		now[p * 4 + 2] = k_params.at + format(k_params).k_params_at;
		now[p * 4 + 3] = own.at + format(own).v_params_at;
		if (has_factors_) factors[p] = block.at + format(block).v_params_at;
		const PageChunks chunk{k.chunk, v.chunk, k_params.chunk, own.chunk, block.chunk};
		if (!runs.empty() && runs.back().chunk == chunk)
			++runs.back().n;
		else
			runs.push_back({t, chunk, tier_first(t) + p, 1});
	}
	std::vector<PageRun>& all = layers_[l].runs;
	std::erase_if(all, [&](const PageRun& r) { return r.tier == t; });
	all.insert(std::find_if(all.begin(), all.end(), [&](const PageRun& r) { return r.tier > t; }), runs.begin(),
	           runs.end());
	const size_t first = tier_first(t);
	write_changed(layers_[l].table, first * 4, now, (size_t(l) * table_pages_ + first) * 4);
	if (has_factors_)
		write_changed(layers_[l].factors, first, factors, factor_word() + size_t(l) * table_pages_ + first);
}

void KvState::sync_live(uint32_t l, Tier t) {
	const size_t group = plan_.n_groups == 1 ? 0 : l;
	for (uint32_t h = 0; h < plan_.n_heads; ++h) {
		const size_t at = ((group * plan_.n_heads + h) * table_pages_ + tier_first(t)) * 4;
		write_changed(live_, at, cache_.live(l, t, h), live_word() + at);
	}
}

void KvState::sync() {
	fit_tables();
	for (uint32_t l = 0; l < layers_.size(); ++l)
		for (const Tier t : kAllTiers) {
			const uint64_t version = cache_.version(l, t);
			if (layers_[l].version[int(t)] == version) continue;
			layers_[l].version[int(t)] = version;
			sync_pages(l, t);
			if (l == 0 || plan_.n_groups > 1) sync_live(l, t);
		}
}

KvState::F16Slot KvState::f16_slot(uint32_t head, uint32_t page_id, uint32_t index) const {
	const KvPool::Addr a = pool_.addr(page_id);
	const PageFormat& f = plan_.formats[a.format];
	const uint32_t dim = plan_.shape.head_dim, page = f.page;
	return {a.chunk, a.at + f.k_codes_at + kv_k_word(head, 0, index, dim, 16, page),
	        a.at + f.v_codes_at + kv_v_word(head, index, 0, dim, 16, page)};
}

// ---- sums of attention

View KvState::slot_sums(uint32_t l) const {
	const uint32_t n = plan_.shape.n_kv_heads;
	return view(sums_, size_t(l) * n * sum_slots_ * 4, DType::F32, n, sum_slots_);
}

View KvState::all_sums() const {
	if (!sums_) return {};
	return view(sums_, 0, DType::F32, uint32_t(layers_.size()) * plan_.shape.n_kv_heads * sum_slots_);
}

void KvState::fit_sums() {
	if (!plan_.ranked() || cache_.n_f16_slots() <= sum_slots_) return;
	const uint32_t old_slots = sum_slots_, rows_n = uint32_t(layers_.size()) * plan_.shape.n_kv_heads;
	const uint32_t slots = std::max(cache_.n_f16_slots(), old_slots * 2);
	Buffer old = be_.alloc(size_t(rows_n) * slots * 4, Mem::Device, "attention sums");
	std::swap(old, sums_);
	sum_slots_ = slots;
	clear_sums();
	if (!old_slots) return;
	for (uint32_t r = 0; r < rows_n; ++r)
		be_.copy(view(sums_, size_t(r) * sum_slots_ * 4, DType::F32, old_slots),
		         view(old, size_t(r) * old_slots * 4, DType::F32, old_slots));
	be_.submit();
	be_.wait(); // the old sums may go now
}

void KvState::clear_sums() {
	if (!sums_) return;
	const std::vector<float> zero(size_t(layers_.size()) * plan_.shape.n_kv_heads * sum_slots_);
	be_.write(sums_, 0, std::as_bytes(std::span(zero)));
}

std::vector<float> KvState::read_sums(uint32_t first, uint32_t n) {
	fit_sums(); // a prompt that just filled the window has slots, but no step has summed anything yet
	const uint32_t n_slots = cache_.n_f16_slots(), rows_n = n * plan_.shape.n_kv_heads;
	std::vector<float> all(size_t(rows_n) * sum_slots_), out(size_t(rows_n) * n_slots);
	if (out.empty()) return out;
	be_.read(sums_, size_t(first) * plan_.shape.n_kv_heads * sum_slots_ * 4, std::as_writable_bytes(std::span(all)));
	be_.submit();
	be_.wait();
	for (uint32_t r = 0; r < rows_n; ++r)
		std::copy_n(all.begin() + size_t(r) * sum_slots_, n_slots, out.begin() + size_t(r) * n_slots);
	return out;
}

} // namespace kvrun
