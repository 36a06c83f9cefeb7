// Words of BERT's tokenizer; the rules are those of Hugging Face's BertNormalizer and BertPreTokenizer.
#include "models/bert_words.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <array>
#include <utf8proc.h>

namespace kvrun {
namespace {

bool is_white(int32_t c) {
	if (c == '\t' || c == '\n' || c == '\r') return true; // other control characters are dropped
	const auto k = utf8proc_category(c);
	return k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

bool is_cleaned(int32_t c) {
	if (c == 0xfffd) return true;
	const auto k = utf8proc_category(c);
	return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

// A word of its own. Two blocks begin or end as in the models' tokenizer, which is not where Unicode has them.
bool is_ideograph(int32_t c) {
	constexpr std::array<std::pair<int32_t, int32_t>, 7> kBlocks = {{{0x3400, 0x4dbf},
	                                                                 {0x4e00, 0x9fff},
	                                                                 {0xf900, 0xfaff},
	                                                                 {0x20000, 0x2a6df},
	                                                                 {0x2a700, 0x2b81f},
	                                                                 {0x2b920, 0x2ceaf},
	                                                                 {0x2f800, 0x2fa1f}}};
	return std::any_of(kBlocks.begin(), kBlocks.end(), [&](auto b) { return c >= b.first && c <= b.second; });
}

bool is_punct(int32_t c) {
	if (c < 0x80) return c > ' ' && c < 0x7f && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z');
	const auto k = utf8proc_category(c);
	return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

int combining_class(int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Canonical order: marks between two characters of class 0 are sorted by class. Hostile texts have millions of them.
void order_marks(std::vector<int32_t>& s) {
	const auto is_mark = [](int32_t c) { return combining_class(c) != 0; };
	for (auto at = s.begin(); (at = std::find_if(at, s.end(), is_mark)) != s.end();) {
		const auto end = std::find_if_not(at, s.end(), is_mark);
		std::stable_sort(at, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
		at = end;
	}
}

} // namespace

void BertWords::add(int32_t c) {
	std::array<int32_t, 32> parts = {c}; // no character has a longer decomposition
	utf8proc_ssize_t n = 1;
	if (rules_.strip_accents && c >= 0x80)
		n = utf8proc_decompose_char(c, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, nullptr);
	for (utf8proc_ssize_t i = 0; i < n; ++i) {
		const int32_t part = parts[size_t(i)];
		if (rules_.strip_accents && part >= 0x80) {
			if (utf8proc_category(part) == UTF8PROC_CATEGORY_MN) continue;
			reorder_ |= combining_class(part) != 0;
		}
		if (rules_.lowercase && part == 0x130) { // the only one whose small form has two characters
			run_.insert(run_.end(), {'i', 0x307});
			continue;
		}
		run_.push_back(rules_.lowercase ? utf8proc_tolower(part) : part);
	}
}

// The characters up to white space, or one ideograph; false at the end of the text.
bool BertWords::fill() {
	run_.clear();
	used_ = 0;
	reorder_ = false;
	while (at_ < text_.size()) {
		const size_t n = utf8_char(text_, at_);
		int32_t c = 0xfffd;
		if (n > 0) utf8proc_iterate(reinterpret_cast<const uint8_t*>(text_.data()) + at_, utf8proc_ssize_t(n), &c);
		const bool alone = is_ideograph(c);
		if (alone && !run_.empty()) break;
		at_ += std::max<size_t>(n, 1);
		if (is_white(c)) {
			if (!run_.empty()) break;
			continue;
		}
		if (is_cleaned(c)) continue;
		add(c);
		if (alone) break;
	}
	if (reorder_) order_marks(run_);
	return !run_.empty() || at_ < text_.size();
}

std::optional<std::string_view> BertWords::next() {
	while (used_ == run_.size())
		if (!fill()) return {};
	const auto begin = run_.begin() + std::ptrdiff_t(used_);
	const auto end = is_punct(*begin) ? begin + 1 : std::find_if(begin, run_.end(), is_punct);
	word_.clear();
	for (auto c = begin; c != end; ++c) {
		uint8_t bytes[4];
		word_.append(reinterpret_cast<const char*>(bytes), size_t(utf8proc_encode_char(*c, bytes)));
	}
	used_ = size_t(end - run_.begin());
	return word_;
}

} // namespace kvrun
