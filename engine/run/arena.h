// One buffer cut into views that begin at multiples of 256 bytes.
#pragma once
#include "backends/backend.h"
#include "engine/core/round.h"
#include <algorithm>

namespace kvrun {

class Arena {
 public:
	explicit Arena(const Buffer* b) : buffer_(b) {}
	View take(DType t, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1) {
		const View v{buffer_, at_, t, {d0, d1, d2, 1}};
		at_ += align_up(v.bytes(), kBufferAlign);
		return v;
	}
	size_t bytes() const { return at_; }

 private:
	const Buffer* buffer_;
	size_t at_ = 0;
};

// Allocates the bytes that `lay(Arena&)` takes, then calls it again to place the views in the new buffer.
template <class Lay> void allocate(Backend& be, Buffer& b, const char* label, Lay lay) {
	Arena dry(nullptr);
	lay(dry);
	b = be.alloc(std::max<size_t>(dry.bytes(), 256), Mem::Device, label);
	Arena real(&b);
	lay(real);
}

} // namespace kvrun
