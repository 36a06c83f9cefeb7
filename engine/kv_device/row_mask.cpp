// Which f16 tokens a row of a sequence sees.
#include "engine/kv_device/row_mask.h"
#include <algorithm>

namespace kvrun {

RowMasks::~RowMasks() {
	for (const Range& r : ranges_) pool_.tables().give(r.at, r.words);
}

static uint32_t row_words(const KvSequence& s) {
	return s.plan().n_groups * s.plan().n_heads * s.cache().n_pages(0, Tier::F16) * 4;
}

// Appends the f16 live bits of all token sets, as `hide` changes those of each: hide(group, head, bits).
template <class F> static void append_live(const KvSequence& s, std::vector<uint32_t>& words, F hide) {
	const size_t n = size_t(s.cache().n_pages(0, Tier::F16)) * 4;
	for (uint32_t g = 0; g < s.plan().n_groups; ++g)
		for (uint32_t h = 0; h < s.plan().n_heads; ++h) {
			const std::span<const uint32_t> live = s.cache().live(g, Tier::F16, h);
			words.insert(words.end(), live.begin(), live.begin() + ptrdiff_t(n));
			hide(g, h, std::span(words).last(n));
		}
}

static void hide_slot(const KvSequence& s, uint32_t slot, std::span<uint32_t> bits) {
	const uint32_t page = s.plan().page[int(Tier::F16)], in_page = slot % page;
	bits[slot / page * 4 + in_page / 32] &= ~(1u << in_page % 32);
}

// Hides the tokens before the window of a row at `position`.
static void hide_older(const KvSequence& s, uint32_t g, uint32_t h, uint32_t position, std::span<uint32_t> bits) {
	const uint32_t window = s.plan().window;
	if (!window || position < window) return;
	for (uint32_t slot = 0; slot < s.cache().n_f16_slots(); ++slot) {
		const uint32_t at = s.cache().position(g, Tier::F16, h, slot); // kNone of an empty slot is behind any window
		if (at <= position - window) hide_slot(s, slot, bits);
	}
}

void RowMasks::add(Backend& be, const KvSequence& s, uint32_t n, bool causal) {
	const uint32_t n_masks = s.plan().window ? n : causal ? n - 1 : 0;
	if (!n_masks || !s.plan().shape.n_layers) return; // without layers nothing is read
	const uint32_t pos = s.n_tokens() - n;
	std::vector<uint32_t> words, n_pages;
	words.reserve(size_t(n_masks) * row_words(s));
	for (uint32_t i = 0; i < n_masks; ++i) {
		append_live(s, words, [&](uint32_t g, uint32_t h, std::span<uint32_t> bits) {
			for (uint32_t later = i + 1; causal && later < n; ++later)
				hide_slot(s, s.cache().token_slot(g, h, later), bits);
			hide_older(s, g, h, pos + i, bits);
		});
		n_pages.push_back(s.cache().token_f16_pages(causal ? i : n - 1));
	}
	add(be, s, words, n_pages);
}

void RowMasks::add_next(Backend& be, const KvSequence& s) {
	if (!s.plan().window) return;
	std::vector<uint32_t> words;
	append_live(s, words,
	            [&](uint32_t g, uint32_t h, std::span<uint32_t> bits) { hide_older(s, g, h, s.n_tokens(), bits); });
	const uint32_t n_pages = s.cache().n_pages(0, Tier::F16);
	add(be, s, words, {&n_pages, 1});
}

void RowMasks::add(Backend& be, const KvSequence& s, std::span<const uint32_t> words,
                   std::span<const uint32_t> n_pages) {
	const KvPlan& p = s.plan();
	const uint32_t stride = s.cache().n_pages(0, Tier::F16) * 4;
	ranges_.reserve(ranges_.size() + 1);
	Range r{&s, pool_.tables().take(uint32_t(words.size())), uint32_t(words.size()), {}};
	for (uint32_t i = 0; i < n_pages.size(); ++i)
		r.masks.push_back({n_pages[i], r.at + i * row_words(s), p.n_heads == 1 ? 0 : stride,
		                   p.n_groups == 1 ? 0 : p.n_heads * stride});
	ranges_.push_back(std::move(r));
	be.write(pool_.tables().buffer(), size_t(ranges_.back().at) * 4, std::as_bytes(words));
}

const RowMask* RowMasks::of(const KvSequence& s, uint32_t i) const {
	const auto r = std::ranges::find(ranges_, &s, &Range::seq);
	return r == ranges_.end() || i >= r->masks.size() ? nullptr : &r->masks[i];
}

} // namespace kvrun
