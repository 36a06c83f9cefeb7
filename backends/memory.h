// Device memory: Buffer owns a piece of it, View is a typed window into a Buffer.
// Shapes are (outermost, ..., innermost).
#pragma once
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include <concepts>
#include <span>
#include <utility>

namespace kvrun {

class Backend;

enum class Mem : uint8_t {
	Device,   // fastest for the device; the host writes and reads it by copies
	Upload,   // small, written by the host every step, read by the device
	Readback, // written by the device, read by the host
	Host,     // pinned host memory: both sides copy from and to it; the host uses Backend::host_bytes()
	Arrival,  // as Device; Backend::transfer() may write it, from Host or Mapped
	// Host memory that ops read in place, over the bus: weights. As Device where DeviceInfo::mapped_bytes is 0.
	Mapped,
};

struct WeightRows { // rows of a weight as they lie in a file
	std::span<const std::byte> bytes;
	std::span<const float> factors; // one per row if has_row_factor(); empty: all are 1

	template <class Bytes>
	requires std::convertible_to<const Bytes&, std::span<const std::byte>> WeightRows(const Bytes& b,
	                                                                                  std::span<const float> f = {})
	    : bytes(b), factors(f) {}
	float factor(size_t row) const { return factors.empty() ? 1 : factors[row]; }
	WeightRows rows(size_t first, size_t n, size_t row_bytes) const {
		return {bytes.subspan(first * row_bytes, n * row_bytes), factors.empty() ? factors : factors.subspan(first, n)};
	}
};

class Buffer { // the only owner of device memory; move-only
 public:
	Buffer() = default;
	Buffer(Backend& b, uint32_t id, size_t bytes, Mem mem = Mem::Device)
	    : backend_(&b), id_(id), mem_(mem), bytes_(bytes) {}
	Buffer(Buffer&& o) noexcept { swap(o); }
	Buffer& operator=(Buffer&& o) noexcept {
		Buffer gone(std::move(*this));
		swap(o);
		return *this;
	}
	~Buffer();
	uint32_t id() const { return id_; }
	size_t bytes() const { return bytes_; }
	Mem mem() const { return mem_; }
	explicit operator bool() const { return backend_ != nullptr; }

 private:
	void swap(Buffer& o) noexcept {
		std::swap(backend_, o.backend_);
		std::swap(id_, o.id_);
		std::swap(mem_, o.mem_);
		std::swap(bytes_, o.bytes_);
	}
	Backend* backend_ = nullptr;
	uint32_t id_ = 0;
	Mem mem_ = Mem::Device;
	size_t bytes_ = 0;
};

struct View { // a typed, row-major window into a Buffer; never owns
	const Buffer* buf = nullptr;
	size_t at = 0; // bytes from the start of the buffer: a multiple of 4, of 16 for activations and for K and V
	DType type = DType::F32;
	uint32_t shape[4] = {1, 1, 1, 1}; // outermost first, trailing ones
	explicit operator bool() const { return buf != nullptr; }
	size_t elements() const { return size_t(shape[0]) * shape[1] * shape[2] * shape[3]; }
	size_t row_elements() const { return size_t(shape[1]) * shape[2] * shape[3]; }
	size_t bytes() const { return dtype_row_bytes(type, elements()); } // of a plain (not quantised) view
};

inline View view(const Buffer& b, size_t at, DType t, uint32_t d0, uint32_t d1 = 1, uint32_t d2 = 1, uint32_t d3 = 1) {
	return View{&b, at, t, {d0, d1, d2, d3}};
}
// All of a buffer as u32 words.
inline View words_of(const Buffer& b) { return view(b, 0, DType::U32, uint32_t(b.bytes() / 4)); }
// Rows [first, first + n) of a plain (not quantised) view.
inline View rows(const View& v, uint32_t first, uint32_t n) {
	KV_ASSERT(!is_quantised(v.type) && uint64_t(first) + n <= v.shape[0]);
	View r = v;
	r.at += first * v.row_elements() * dtype_info(v.type).bytes;
	r.shape[0] = n;
	return r;
}
// The 32-bit words of an f16 view.
inline View as_words(const View& v) {
	KV_ASSERT(v.type == DType::F16);
	return view(*v.buf, v.at, DType::U32, uint32_t(v.elements() / 2));
}

} // namespace kvrun
