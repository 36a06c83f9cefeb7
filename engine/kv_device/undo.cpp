// Copies of older tokens that a prompt overwrites, kept until the prompt is done.
#include "engine/kv_device/undo.h"
#include "engine/core/round.h"
#include <algorithm>

namespace kvrun {

void KvUndo::begin(Backend& be, const KvSequence& s) {
	be_ = &be;
	const View sums = s.all_sums();
	if (!sums) return;
	try {
		sums_ = be.alloc(sums.bytes(), Mem::Device, "attention sums before a prompt");
	} catch (const Error& e) {
		if (e.code != Code::OutOfMemory) throw;
		complete_ = false;
		return;
	}
	be.copy(view(sums_, 0, DType::F32, sums.shape[0]), sums);
}

void KvUndo::save(const KvSequence& s, uint32_t l, const KvMoves& moves) {
	if (!be_ || !complete_) return;
	const uint32_t n_kv = s.plan().shape.n_kv_heads, page = s.plan().page[int(Tier::F16)];
	const std::span<const uint32_t> pages = s.cache().pages(l, Tier::F16);
	std::vector<uint32_t> next(n_kv, 0); // by kv head: its first unused row
	std::vector<SlotCell> cells;
	for (const KvMove& m : moves.stores) {
		const auto at = std::ranges::find(pages, m.page);
		if (at == pages.end()) continue; // a new page of this prompt
		const size_t p = size_t(at - pages.begin());
		const auto [h0, h1] = heads_of(m.head, n_kv);
		for (uint32_t h = h0; h < h1; ++h) {
			const std::span<const uint32_t> live = s.cache().live(l, Tier::F16, s.plan().n_heads == 1 ? 0 : h);
			for (uint32_t slot = m.slot; slot < m.slot + m.n; ++slot)
				if (live[p * 4 + slot / 32] >> slot % 32 & 1)
					cells.push_back({next[h]++, h, page, s.f16_slot(l, h, m.page, slot)});
		}
	}
	if (cells.empty()) return;
	try {
		save_slots(s, saved_.emplace_back(), cells, *std::ranges::max_element(next));
	} catch (const Error& e) {
		if (e.code != Code::OutOfMemory) throw;
		complete_ = false; // the device may still use what is saved so far
	}
}

void KvUndo::save_slots(const KvSequence& s, Saved& save, std::span<const SlotCell> cells, uint32_t n_rows) {
	const KvShape shape = s.plan().shape;
	const auto bytes = [&](uint32_t dim) {
		return align_up(size_t(n_rows) * shape.n_kv_heads * dim * 2, kBufferAlign);
	};
	const size_t keys = bytes(shape.head_dim);
	save.memory = be_->alloc(keys + bytes(shape.v_dim()), Mem::Device, "tokens before a prompt");
	save.kv = {view(save.memory, 0, DType::F16, shape.n_kv_heads, n_rows, shape.head_dim),
	           view(save.memory, keys, DType::F16, shape.n_kv_heads, n_rows, shape.v_dim()), 0};
	StepTable table;
	save.rows = lay_rows(s.pool(), cells, shape.n_kv_heads, table);
	table.upload(*be_, save.words);
	for (const ChunkRows& r : save.rows)
		be_->kv_load({save.kv.k, save.kv.v, r.first}, r.n, r.dst(save.words, shape.n_kv_heads));
}

void KvUndo::restore(KvSequence& s) {
	if (!complete_) fail(Code::OutOfMemory, "no memory was left to keep what a prompt overwrites");
	if (!be_) return;
	for (const Saved& save : saved_)
		for (const ChunkRows& r : save.rows)
			be_->kv_store({save.kv.k, save.kv.v, r.first}, r.n, r.dst(save.words, s.plan().shape.n_kv_heads));
	if (sums_) be_->copy(s.all_sums(), view(sums_, 0, DType::F32, s.all_sums().shape[0]));
	be_->submit();
	be_->wait();
}

} // namespace kvrun
