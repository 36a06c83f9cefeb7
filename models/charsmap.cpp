// Walks through the double array of a SentencePiece normalizer.
#include "models/charsmap.h"
#include <algorithm>
#include <cstring>

namespace kvrun {
namespace {

constexpr const char* kCharsmapKey = "tokenizer.ggml.precompiled_charsmap";
constexpr size_t kMaxCharsmap = size_t(16) << 20; // of the whole map; real ones have a quarter of a megabyte
// Bytes of a key. Real ones have a few characters; damaged arrays may have keys without an end.
constexpr size_t kMaxKeyBytes = 64;
constexpr size_t kMaxReplacement = 256; // bytes of a replacement; the longest of NFKC has 33

// A unit is a node that is reached by the byte in bits 0 to 7. Its children are at its place xor `unit_offset` xor
// their byte; a value, if there is one (bit 8), is at the child of byte 0. A unit with bit 31 is such a value.
constexpr uint32_t kUnitValue = 1u << 31;
constexpr uint32_t unit_label(uint32_t unit) { return unit & (kUnitValue | 0xff); } // that of a value equals no byte
constexpr bool unit_has_value(uint32_t unit) { return unit >> 8 & 1; }
constexpr uint32_t unit_offset(uint32_t unit) { return (unit >> 10) << ((unit >> 9 & 1) * 8); }

} // namespace

Charsmap::Charsmap(const Gguf& g) {
	const GgufEntry* e = g.find(kCharsmapKey);
	if (!e) return;
	const bool is_bytes = e->type == GgufType::Array && (e->element == GgufType::U8 || e->element == GgufType::I8);
	if (!is_bytes) fail(Code::Format, "{}: key {} is no array of bytes; the file is damaged", g.name(), kCharsmapKey);
	const std::string_view all(reinterpret_cast<const char*>(e->bytes.data()), e->bytes.size());
	if (all.empty()) return;
	uint32_t n = 0;
	if (all.size() < sizeof n || all.size() > kMaxCharsmap)
		fail(Code::Format, "{}: key {} has {} bytes, expected 4 to {}; the file is damaged", g.name(), kCharsmapKey,
		     all.size(), kMaxCharsmap);
	std::memcpy(&n, all.data(), sizeof n);
	if (n % sizeof(uint32_t) != 0 || n > all.size() - sizeof n)
		fail(Code::Format, "{}: key {} has an array of {} bytes in {}, expected a multiple of 4; the file is damaged",
		     g.name(), kCharsmapKey, n, all.size());
	units_.resize(n / sizeof(uint32_t));
	if (n > 0) std::memcpy(units_.data(), all.data() + sizeof n, n);
	texts_ = all.substr(sizeof n + n);
	if (!texts_.empty() && texts_.back() != '\0')
		fail(Code::Format, "{}: key {} ends inside a text; the file is damaged", g.name(), kCharsmapKey);
	for (size_t i = 0; i < units_.size(); ++i) {
		if (!(units_[i] & kUnitValue)) continue;
		const size_t at = units_[i] & ~kUnitValue;
		if (at >= texts_.size())
			fail(Code::Format, "{}: key {}: unit {} has a text at {} of {} bytes; the file is damaged", g.name(),
			     kCharsmapKey, i, at, texts_.size());
		if (std::string_view(texts_).substr(at, kMaxReplacement + 1).find('\0') == std::string_view::npos)
			fail(Code::Format, "{}: key {}: unit {} has a text of more than {} bytes; the file is damaged", g.name(),
			     kCharsmapKey, i, kMaxReplacement);
	}
}

Charsmap::Hit Charsmap::longest(std::string_view text) const {
	size_t bytes = 0, place = 0; // of the longest key so far, of its text
	size_t at = unit_offset(unit(0));
	for (size_t n = 0; n < std::min(text.size(), kMaxKeyBytes); ++n) {
		const uint8_t byte = uint8_t(text[n]);
		at ^= byte;
		const uint32_t node = unit(at);
		if (byte == 0 || unit_label(node) != byte) break;
		at ^= unit_offset(node);
		if (!unit_has_value(node)) continue;
		const uint32_t value = unit(at);
		if (!(value & kUnitValue)) continue;
		bytes = n + 1;
		place = value & ~kUnitValue;
	}
	if (bytes == 0) return {0, {}};
	return {bytes, texts_.data() + place};
}

} // namespace kvrun
