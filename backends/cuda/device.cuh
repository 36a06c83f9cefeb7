// Shared by the kernels: half floats, reductions in a fixed order, shared memory, and the entry by which the host
// launches a kernel.
//
// The sources are compiled three ways: by nvcc; by g++ with tests/cuda/host_grid.h included first, which runs a grid on
// the host; by clang for PTX with tests/cuda/ptx_words.h. Those two headers replace the toolkit's and define
// KV_CUDA_STANDIN.
#pragma once
#ifndef KV_CUDA_STANDIN
#include <cuda_fp16.h>
#include <math.h>
#define KV_CUDA_BUILD device
#define KV_KERNEL(name, Args) #name, entry_of(name##_kernel)
#endif
#include "backends/cuda/args.h"

namespace kvrun::cuda {

#ifndef KV_HOST_GRID
// An array in shared memory; on the host, it also records which thread wrote each element.
template <class T, uint32_t N> struct alignas(16) Shared {
	T values[N];
	__device__ T& operator[](uint32_t i) { return values[i]; }
	// Elements i .. i + 3 of an array of floats; i is a multiple of 4.
	__device__ float4 quad(uint32_t i) const { return *reinterpret_cast<const float4*>(values + i); }
	__device__ void set_quad(uint32_t i, float4 x) { *reinterpret_cast<float4*>(values + i) = x; }
};
#endif

namespace KV_CUDA_BUILD {

// The address by which the runtime launches a kernel.
template <class Args> const void* entry_of(void (*kernel)(Args)) { return reinterpret_cast<const void*>(kernel); }

constexpr uint32_t kAllLanes = 0xffffffffu;

// f32 cannot hold the difference beyond 20.
__device__ inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

__device__ inline float minus_inf() { return __int_as_float(int(0xff800000u)); }

__device__ inline float half_to_float(uint32_t bits) {
	return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ inline uint32_t float_to_half(float x) { return __half_as_ushort(__float2half_rn(x)); } // to nearest even
__device__ inline float low_half(uint32_t word) { return half_to_float(word & 0xffffu); }
__device__ inline float high_half(uint32_t word) { return half_to_float(word >> 16); }
// Half i of an array of words.
__device__ inline float half_at(const uint32_t* words, uint64_t i) {
	return half_to_float(words[i / 2] >> 16 * (i % 2) & 0xffffu);
}
__device__ inline uint32_t half_pair(float low, float high) { return float_to_half(low) | float_to_half(high) << 16; }

// The float of an integer below 2^23, by instructions that are faster than a conversion.
__device__ inline float small_float(uint32_t x) { return __int_as_float(int(x | 0x4b000000u)) - 8388608.f; }
// The float of byte i of a word of signed bytes, in the same way: of the byte + 128, below the exponent of 2^23.
__device__ inline float signed_float(uint32_t word, uint32_t i) {
	return __int_as_float(int(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7540u + i))) - 8388736.f;
}

// Sums over a warp; every lane gets the result, always added in the same order.
template <class T> __device__ inline T warp_sum(T x) {
	for (uint32_t step = kWarp / 2; step; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
	return x;
}
__device__ inline float warp_max(float x) {
	for (uint32_t step = kWarp / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
	return x;
}
__device__ inline float warp_min(float x) {
	for (uint32_t step = kWarp / 2; step; step /= 2) x = fminf(x, __shfl_xor_sync(kAllLanes, x, step));
	return x;
}
// The sum over a block of up to 8 warps. A second sum needs another `partial`, because each is written only once.
__device__ inline double block_sum(double x, Shared<double, 8>& partial) {
	x = warp_sum(x);
	if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
	__syncthreads();
	double sum = 0;
	for (uint32_t w = 0; w < blockDim.x / kWarp; ++w) sum += partial[w];
	return sum;
}

// Integers that order as floats do, equal for both zeros; ~0 for NaN and +inf.
__device__ inline uint32_t float_order(float x) {
	uint32_t bits = uint32_t(__float_as_int(x));
	if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) return 0xffffffffu;
	if (bits == 0x80000000u) bits = 0;
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

} // namespace KV_CUDA_BUILD
} // namespace kvrun::cuda
