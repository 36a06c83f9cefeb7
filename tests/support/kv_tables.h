// Page tables of an op test, as in a step: page entries, live bits and factors of all sequences in one array of words,
// which work items refer to.
#pragma once
#include "tests/support/rig.h"

namespace kvrun {

// The words of work items.
template <class Work> Words words_of_work(const std::vector<Work>& work) {
	Words out(work.size() * sizeof(Work) / 4);
	std::memcpy(out.data(), work.data(), out.size() * 4);
	return out;
}
template <class Work> View upload_work(Rig& rig, const std::vector<Work>& work) {
	constexpr uint32_t n = sizeof(Work) / 4;
	if (work.empty()) return rig.u32(Words(n, 0), 1, n);
	return rig.u32(words_of_work(work), uint32_t(work.size()), n);
}

struct KvTables {
	// pages (n, 4), live (masks, n, 4), factors (n) or none.
	KvTables(Rig& rig, const Words& pages, const Words& live, const Words& factors = {}) {
		n_pages = uint32_t(pages.size() / 4);
		Words all(12, 0xffffffffu); // other sequences' entries lie before and between
		const auto put = [&](const Words& w) {
			const uint32_t at = uint32_t(all.size());
			all.insert(all.end(), w.begin(), w.end());
			all.resize((all.size() + 7) / 4 * 4, 0xffffffffu);
			return at;
		};
		live_at = put(live), pages_at = put(pages), factors_at = put(factors);
		live_stride = live.size() > pages.size() ? n_pages * 4 : 0;
		view = rig.u32(all, uint32_t(all.size()));
	}
	// A work item of pages first .. first + n - 1.
	AttendWork item(uint32_t row, uint32_t part, uint32_t first, uint32_t n, uint32_t balance = 0) const {
		return {.row = row,
		        .part = part,
		        .n_pages = n,
		        .pages = pages_at + first * 4,
		        .live = live_at + first * 4,
		        .live_stride = live_stride,
		        .factors = factors_at + first,
		        .balance = balance};
	}
	View view; // u32 words
	uint32_t n_pages, pages_at, live_at, factors_at, live_stride;
};

} // namespace kvrun
