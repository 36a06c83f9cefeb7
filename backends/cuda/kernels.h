// The kernels compiled by nvcc; one function per file.
#pragma once
#include "backends/cuda/args.h"

#ifndef KV_CUDA_BUILD
#define KV_CUDA_BUILD device
#endif

namespace kvrun::cuda::KV_CUDA_BUILD {

void add_basic(Kernels&);
void add_matmul(Kernels&);
void add_experts(Kernels&);
void add_kv(Kernels&);
void add_attend(Kernels&);
void add_pack(Kernels&);
void add_score(Kernels&);
void add_fetch(Kernels&);
void add_state(Kernels&);
void add_index(Kernels&);

inline Kernels all_kernels() {
	Kernels k;
	add_basic(k), add_matmul(k), add_experts(k), add_kv(k), add_attend(k), add_pack(k), add_score(k), add_fetch(k);
	add_state(k), add_index(k);
	return k;
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
