// Device memory handed out in ranges of 32-bit words.
#include "engine/kv_device/word_arena.h"
#include "engine/core/round.h"
#include <algorithm>

namespace kvrun {

uint32_t WordArena::take(uint32_t words) {
	uint64_t at = ranges_.take(words, kAlign);
	if (at == FreeRanges::kNowhere) {
		grow(std::max<uint64_t>(this->words() * 2, this->words() + words + kAlign));
		at = ranges_.take(words, kAlign);
	}
	return uint32_t(at);
}

void WordArena::grow(uint64_t words) {
	words = align_up(words, kAlign);
	Buffer larger = part_ == kNone ? be_->alloc(words * 4, Mem::Device, label_)
	                               : be_->alloc_part(part_, words * 4, Mem::Device, label_);
	if (buffer_) be_->copy(kvrun::view(larger, 0, DType::U32, uint32_t(this->words())), words_of(buffer_));
	buffer_ = std::move(larger); // the backend keeps the old memory until the copy is done
	ranges_.grow(words);
}

void WordArena::release() {
	KV_ASSERT(empty());
	buffer_ = {};
	ranges_ = FreeRanges(0);
}

} // namespace kvrun
