// The parts of CUDA C++ that the kernels use, declared for clang without a CUDA toolkit: included before a .cu source
// that is compiled to PTX, to check that it is CUDA and not only C++. It is never run.
#pragma once
#define KV_CUDA_STANDIN
#define KV_CUDA_BUILD ptx
#define KV_KERNEL(name, Args) #name, entry_of(name##_kernel)
#define __CUDACC__ 1 // shaders/shared marks its functions if this is defined

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(n, ...) __attribute__((launch_bounds(n)))

struct dim3 {
	unsigned x, y, z;
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

#define KV_REGISTER(name, reg)                                                                                         \
	struct name##_type {                                                                                               \
		struct X {                                                                                                     \
			__device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##reg##_x(); }                          \
		} x;                                                                                                           \
		struct Y {                                                                                                     \
			__device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##reg##_y(); }                          \
		} y;                                                                                                           \
		struct Z {                                                                                                     \
			__device__ operator unsigned() const { return __nvvm_read_ptx_sreg_##reg##_z(); }                          \
		} z;                                                                                                           \
	};                                                                                                                 \
	extern const __device__ __attribute__((weak)) name##_type name
KV_REGISTER(threadIdx, tid);
KV_REGISTER(blockIdx, ctaid);
KV_REGISTER(blockDim, ntid);
KV_REGISTER(gridDim, nctaid);
#undef KV_REGISTER

__device__ inline void __syncwarp() { __nvvm_bar_warp_sync(0xffffffffu); }
__device__ inline int __shfl_xor_sync(unsigned mask, int x, int lanes) {
	return __nvvm_shfl_sync_bfly_i32(mask, x, lanes, 0x1f);
}
__device__ inline unsigned __shfl_xor_sync(unsigned mask, unsigned x, int lanes) {
	return unsigned(__nvvm_shfl_sync_bfly_i32(mask, int(x), lanes, 0x1f));
}
__device__ inline unsigned __ballot_sync(unsigned mask, bool vote) { return __nvvm_vote_ballot_sync(mask, vote); }
__device__ inline unsigned __byte_perm(unsigned x, unsigned y, unsigned choice) {
	unsigned r;
	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(choice));
	return r;
}
__device__ inline int __popc(unsigned x) { return __builtin_popcount(x); }
__device__ inline float __shfl_xor_sync(unsigned mask, float x, int lanes) {
	return __nvvm_shfl_sync_bfly_f32(mask, x, lanes, 0x1f);
}
__device__ inline double __shfl_xor_sync(unsigned mask, double x, int lanes) {
	int halves[2];
	__builtin_memcpy(halves, &x, sizeof x);
	halves[0] = __shfl_xor_sync(mask, halves[0], lanes);
	halves[1] = __shfl_xor_sync(mask, halves[1], lanes);
	__builtin_memcpy(&x, halves, sizeof x);
	return x;
}

extern "C" { // of libdevice, which is not available: the PTX names them as external functions
__device__ float erfcf(float);
__device__ float expf(float);
__device__ float expm1f(float);
__device__ float log1pf(float);
__device__ float logf(float);
__device__ float tanhf(float);
}
__device__ inline float sqrtf(float x) { return __nvvm_sqrt_rn_f(x); }
__device__ inline double sqrt(double x) { return __nvvm_sqrt_rn_d(x); }
__device__ inline float __fmul_rn(float x, float y) { return __nvvm_mul_rn_f(x, y); }
__device__ inline float fmaf(float x, float y, float z) { return __nvvm_fma_rn_f(x, y, z); }
__device__ inline float fabsf(float x) { return __builtin_fabsf(x); }
__device__ inline float fminf(float x, float y) { return __builtin_fminf(x, y); }
__device__ inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
__device__ inline float rintf(float x) { return __builtin_rintf(x); }

struct __half {
	unsigned short bits;
};
__device__ inline __half __ushort_as_half(unsigned short x) { return {x}; }
__device__ inline unsigned short __half_as_ushort(__half x) { return x.bits; }
__device__ inline float __half2float(__half x) {
	float y;
	asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
	return y;
}
__device__ inline __half __float2half_rn(float x) {
	__half y;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
	return y;
}
__device__ inline int __float_as_int(float x) {
	int y;
	__builtin_memcpy(&y, &x, sizeof y);
	return y;
}
__device__ inline float __int_as_float(int x) {
	float y;
	__builtin_memcpy(&y, &x, sizeof y);
	return y;
}
