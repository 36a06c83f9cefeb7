// One sequence on a device: page table and live bits kept equal to the cache's.
#include "engine/run/kv_state.h"
#include "shaders/shared/kv_page.h"
#include <algorithm>
#include <cstring>

namespace kvrun {

KvState::KvState(Backend& be, const KvPlan& plan, KvPool& pool, uint32_t max_tokens, uint64_t seed)
	: be_(be), plan_(plan), pool_(pool), cache_(plan, pool, seed), max_tokens_(max_tokens), layers_(plan.shape.n_layers) {
	// A first guess; fit_tables() makes them longer when a method needs more.
	for (const Tier t : kAllTiers) {
		const bool used = t == Tier::Recent || plan.fill[int(t)] != Fill::None;
		const bool whole = t == Tier::Recent ? plan.keeps_all : true;
		if (used) tier_pages_[int(t)] = whole ? max_tokens / std::max(plan.page[int(t)], 1u) + 2 : 8;
	}
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
	const size_t at = (size_t(plan_.shape.n_layers) + group * plan_.n_heads) * table_pages_ * 16;
	return view(tables_, at, DType::U32, plan_.n_heads, table_pages_, 4);
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
	const size_t rows = size_t(table_pages_) * (layers_.size() + size_t(plan_.n_groups) * plan_.n_heads);
	tables_ = be_.alloc(rows * 16, Mem::Device, "kv tables");
	for (Layer& L : layers_) {
		L.table.assign(size_t(table_pages_) * 4, kNone); // no page starts at this word: everything will differ
		std::fill(std::begin(L.version), std::end(L.version), UINT64_MAX);
	}
	live_.assign(size_t(plan_.n_groups) * plan_.n_heads * table_pages_ * 4, 0x5a5a5a5au);
}

// Writes to the device what differs between `now` and the mirror at word `at`, in one piece.
void KvState::write_changed(std::vector<uint32_t>& mirror, size_t at, std::span<const uint32_t> now, size_t device_word) {
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
	std::vector<uint32_t> now(ids.size() * 4);
	std::vector<PageRun> runs;
	for (uint32_t p = 0; p < ids.size(); ++p) {
		const KvPool::Addr own = pool_.addr(ids[p]), k = pool_.addr(k_ids[p]), v = pool_.addr(v_ids[p]);
		const KvPool::Addr params = blocks.empty() ? own : pool_.addr(blocks[p]);
		now[p * 4 + 0] = k.at + plan_.formats[k.format].k_codes_at;
		now[p * 4 + 1] = v.at + plan_.formats[v.format].v_codes_at;
		now[p * 4 + 2] = params.at + plan_.formats[params.format].k_params_at;
		now[p * 4 + 3] = own.at + plan_.formats[own.format].v_params_at;
		const PageRun run{t, {k.chunk, v.chunk, params.chunk, own.chunk}, tier_first(t) + p, 1};
		if (!runs.empty() && runs.back().chunk == run.chunk) ++runs.back().n;
		else runs.push_back(run);
	}
	std::vector<PageRun>& all = layers_[l].runs;
	std::erase_if(all, [&](const PageRun& r) { return r.tier == t; });
	all.insert(std::find_if(all.begin(), all.end(), [&](const PageRun& r) { return r.tier > t; }), runs.begin(), runs.end());
	const size_t at = size_t(tier_first(t)) * 4;
	write_changed(layers_[l].table, at, now, size_t(l) * table_pages_ * 4 + at);
}

void KvState::sync_live(uint32_t l, Tier t) {
	const size_t group = plan_.n_groups == 1 ? 0 : l;
	for (uint32_t h = 0; h < plan_.n_heads; ++h) {
		const size_t at = ((group * plan_.n_heads + h) * table_pages_ + tier_first(t)) * 4;
		write_changed(live_, at, cache_.live(l, t, h), layers_.size() * table_pages_ * 4 + at);
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

} // namespace kvrun
