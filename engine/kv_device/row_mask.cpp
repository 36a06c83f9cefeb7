// Which f16 tokens each row of one sequence sees in a step of several tokens.
#include "engine/kv_device/row_mask.h"
#include <algorithm>

namespace kvrun {

RowMasks::~RowMasks() {
	for (const Range& r : ranges_) pool_.tables().give(r.at, r.words);
}

void RowMasks::add(Backend& be, const KvSequence& s, uint32_t n) {
	if (n < 2 || !s.plan().shape.n_layers) return; // nothing is read
	const KvCache& c = s.cache();
	const KvPlan& p = s.plan();
	const uint32_t page = p.page[int(Tier::F16)], stride = c.n_pages(0, Tier::F16) * 4;
	const uint32_t row_words = p.n_groups * p.n_heads * stride;
	std::vector<uint32_t> words;
	words.reserve(size_t(n - 1) * row_words);
	for (uint32_t i = 0; i + 1 < n; ++i)
		for (uint32_t g = 0; g < p.n_groups; ++g)
			for (uint32_t h = 0; h < p.n_heads; ++h) {
				const std::span<const uint32_t> live = c.live(g, Tier::F16, h);
				const size_t at = words.size();
				words.insert(words.end(), live.begin(), live.begin() + stride);
				for (uint32_t later = i + 1; later < n; ++later) {
					const uint32_t slot = c.token_slot(g, h, later), in_page = slot % page;
					words[at + slot / page * 4 + in_page / 32] &= ~(1u << in_page % 32);
				}
			}
	ranges_.reserve(ranges_.size() + 1);
	Range r{&s, pool_.tables().take(uint32_t(words.size())), uint32_t(words.size()), {}};
	for (uint32_t i = 0; i + 1 < n; ++i)
		r.masks.push_back({c.token_f16_pages(i), r.at + i * row_words, p.n_heads == 1 ? 0 : stride,
		                   p.n_groups == 1 ? 0 : p.n_heads * stride});
	ranges_.push_back(std::move(r));
	be.write(pool_.tables().buffer(), size_t(ranges_.back().at) * 4, std::as_bytes(std::span(words)));
}

const RowMask* RowMasks::of(const KvSequence& s, uint32_t i) const {
	const auto r = std::ranges::find(ranges_, &s, &Range::seq);
	return r == ranges_.end() || i >= r->masks.size() ? nullptr : &r->masks[i];
}

} // namespace kvrun
