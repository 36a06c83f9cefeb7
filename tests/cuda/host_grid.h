// Runs CUDA kernels on the host: included before a .cu source that is compiled as plain C++. It replaces the toolkit's
// headers and executes a grid block by block, the threads of a block as fibers in a fixed order.
//
// What is undefined on a GPU is an error here, thrown from launch(): threads of a block that wait at different
// barriers, or of which some have left; warp functions that not every lane calls; reads of shared memory that this
// block has not written; and accesses of two threads to one element of shared memory, one of them a write, without a
// barrier in between.
#pragma once
#include "engine/core/f16.h"
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#define KV_CUDA_STANDIN
#define KV_HOST_GRID
#define KV_CUDA_BUILD host_run
// clang-format off
#define KV_KERNEL(name, Args) #name, host_grid::entry_of<Args, name##_kernel>()
// clang-format on

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
	unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
	unsigned x, y;
};
struct alignas(16) uint4 {
	unsigned x, y, z, w;
};
struct alignas(16) float4 {
	float x, y, z, w;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim; // of the running fiber

namespace host_grid {

struct Error : std::runtime_error {
	using std::runtime_error::runtime_error;
};

struct Site { // where a thread waits
	const char* file;
	int line;
	bool operator==(const Site&) const = default;
};

constexpr unsigned kWarp = 32, kMostThreads = 1024;

// Runs every thread of every block; `entry` was made by KV_KERNEL. Throws Error.
void launch(const void* entry, dim3 grid, unsigned threads, const void* args);

template <class Args, void (*Kernel)(Args)> void call(const void* args) {
	Args a;
	std::memcpy(&a, args, sizeof a);
	Kernel(a);
}
template <class Args, void (*Kernel)(Args)> const void* entry_of() {
	return reinterpret_cast<const void*>(&call<Args, Kernel>);
}

// ---- waiting. Each returns when all threads concerned have called it.

void sync_block(Site);
// Every lane gives a value; afterwards brought() returns those of the warp. The mask must be all lanes. memory: writes
// of lanes to shared memory before it are visible to the others after it, which shuffles and votes do not guarantee.
void sync_warp(unsigned mask, uint64_t value, Site, bool memory = false);
uint64_t brought(unsigned lane);

inline unsigned lane() { return threadIdx.x % kWarp; }

template <class T> T shuffle(unsigned mask, T value, unsigned from, Site site) {
	static_assert(sizeof(T) <= 8);
	uint64_t bits = 0;
	std::memcpy(&bits, &value, sizeof value);
	sync_warp(mask, bits, site);
	if (from >= kWarp) from = lane();
	bits = brought(from);
	std::memcpy(&value, &bits, sizeof value);
	return value;
}
unsigned ballot(unsigned mask, bool vote, Site); // lanes that vote true

// ---- shared memory

// State for the checks of one element: who wrote it last, who has read it since.
struct Access {
	uint64_t written = 0, read = 0; // number of the interval between two barriers of a block, 0: never
	uint32_t written_warp_time = 0, read_warp_time = 0;
	uint16_t writer = 0, reader = 0, read_warp = 0; // kMany: several
};
struct Times {                                // of the running block
	uint64_t now = 0, block_began = 0;        // barriers passed and blocks begun since the program started
	uint32_t warp[kMostThreads / kWarp] = {}; // memory barriers of each warp in this block
};
inline Times times;
constexpr uint16_t kMany = UINT16_MAX;

[[noreturn]] void fail_access(const char* what); // names the thread

// Whether an access of `warp` at warp_time, since the last barrier, precedes the current operation of warp `mine`.
inline bool in_order(unsigned warp, uint32_t warp_time, unsigned mine) {
	return warp == mine && warp_time < times.warp[mine];
}
inline void check_read(Access& a) {
	const uint16_t me = uint16_t(threadIdx.x), warp = uint16_t(me / kWarp);
	if (a.written < times.block_began) fail_access("shared memory is read that this block has not written");
	if (a.written == times.now && a.writer != me && !in_order(a.writer / kWarp, a.written_warp_time, warp))
		fail_access("shared memory is read that another thread writes without a barrier between");
	const bool first = a.read != times.now;
	a.reader = first || a.reader == me ? me : kMany;
	a.read_warp = first || a.read_warp == warp ? warp : kMany;
	a.read = times.now, a.read_warp_time = times.warp[warp];
}
inline void check_write(Access& a) {
	const uint16_t me = uint16_t(threadIdx.x), warp = uint16_t(me / kWarp);
	if (a.written == times.now && a.writer != me && !in_order(a.writer / kWarp, a.written_warp_time, warp))
		fail_access("two threads write one element of shared memory without a barrier between");
	if (a.read == times.now && a.reader != me && !in_order(a.read_warp, a.read_warp_time, warp))
		fail_access("shared memory is written that another thread reads without a barrier between");
	a.written = times.now, a.writer = me, a.written_warp_time = times.warp[warp];
}

template <class T> class Element {
 public:
	Element(T& value, Access& access) : value_(value), access_(access) {}
	operator T() const {
		check_read(access_);
		return value_;
	}
	T operator=(T x) {
		check_write(access_);
		return value_ = x;
	}
	T operator=(const Element& other) { return *this = T(other); }
	T operator+=(T x) { return *this = T(*this) + x; }
	T operator*=(T x) { return *this = T(*this) * x; }

 private:
	T& value_;
	Access& access_;
};

[[noreturn]] void fail_index(uint32_t i, uint32_t n);

} // namespace host_grid

namespace kvrun::cuda {

template <class T, uint32_t N> class Shared {
 public:
	host_grid::Element<T> operator[](uint32_t i) {
		if (i >= N) host_grid::fail_index(i, N);
		return {values_[i], access_[i]};
	}
	float4 quad(uint32_t i) { return {(*this)[i], (*this)[i + 1], (*this)[i + 2], (*this)[i + 3]}; }
	void set_quad(uint32_t i, float4 x) {
		(*this)[i] = x.x, (*this)[i + 1] = x.y, (*this)[i + 2] = x.z, (*this)[i + 3] = x.w;
	}

 private:
	T values_[N] = {};
	host_grid::Access access_[N];
};

} // namespace kvrun::cuda

// ---- the names that kernels use

#define KV_HERE                                                                                                        \
	host_grid::Site { __FILE__, __LINE__ }
#define __syncthreads() host_grid::sync_block(KV_HERE)
#define __syncwarp() host_grid::sync_warp(0xffffffffu, 0, KV_HERE, true)
#define __shfl_sync(mask, value, from) host_grid::shuffle(mask, value, unsigned(from) % 32, KV_HERE)
#define __shfl_xor_sync(mask, value, bits) host_grid::shuffle(mask, value, host_grid::lane() ^ unsigned(bits), KV_HERE)
#define __shfl_down_sync(mask, value, n) host_grid::shuffle(mask, value, host_grid::lane() + unsigned(n), KV_HERE)
#define __shfl_up_sync(mask, value, n) host_grid::shuffle(mask, value, host_grid::lane() - unsigned(n), KV_HERE)
#define __ballot_sync(mask, vote) host_grid::ballot(mask, vote, KV_HERE)
#define __popc(x) std::popcount(unsigned(x))
#define __any_sync(mask, vote) (host_grid::ballot(mask, vote, KV_HERE) != 0)
#define __all_sync(mask, vote) (host_grid::ballot(mask, vote, KV_HERE) == (mask))

// Threads run one at a time, so a plain update is atomic.
template <class T> T atomicAdd(T* p, T x) { return std::exchange(*p, *p + x); }
template <class T> T atomicMax(T* p, T x) { return std::exchange(*p, *p < x ? x : *p); }
template <class T> T atomicMin(T* p, T x) { return std::exchange(*p, x < *p ? x : *p); }
template <class T> T atomicOr(T* p, T x) { return std::exchange(*p, *p | x); }
template <class T> T atomicExch(T* p, T x) { return std::exchange(*p, x); }
template <class T> T atomicCAS(T* p, T expected, T x) { return std::exchange(*p, *p == expected ? x : *p); }

struct __half {
	unsigned short bits;
};
inline __half __ushort_as_half(unsigned short x) { return {x}; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline float __half2float(__half x) { return kvrun::f16_to_f32(x.bits); }
inline __half __float2half_rn(float x) { return {kvrun::f32_to_f16(x)}; }
inline float __fmul_rn(float x, float y) { return x * y; }
// Byte i of the result is byte (choice >> 4 i) & 7 of y * 2^32 + x.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned choice) {
	unsigned r = 0;
	for (unsigned i = 0; i < 4; ++i)
		r |= unsigned((uint64_t(y) << 32 | x) >> (choice >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
	return r;
}
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
