// Sums and maxima over a workgroup, for any subgroup size; every invocation gets the result.
//
// Include after `layout(local_size_x_id = SPEC_LOCAL_X) in;` and list the shader with REDUCE in shaders/CMakeLists.txt:
// it is compiled with subgroup arithmetic and, as NO_SUBGROUP, without. Workgroups must be one-dimensional, and all
// invocations must call. The order of additions depends only on the sizes of subgroup and workgroup: same device, same
// bits.
#ifndef KVRUN_REDUCE_GLSL
#define KVRUN_REDUCE_GLSL
#ifndef NO_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

shared float reduce_scratch[gl_WorkGroupSize.x];
#ifndef NO_SUBGROUP
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 0u; // 0: not known
#endif

#ifdef NO_SUBGROUP
#define KV_REDUCE(NAME, OP)                                                                                            \
	float NAME(float v) {                                                                                              \
		const uint i = gl_LocalInvocationIndex;                                                                        \
		barrier(); /* an earlier result may still be read */                                                           \
		reduce_scratch[i] = v;                                                                                         \
		barrier();                                                                                                     \
		for (uint n = gl_WorkGroupSize.x; n > 1u;) {                                                                   \
			const uint half_n = (n + 1u) / 2u;                                                                         \
			if (i < n - half_n) reduce_scratch[i] = OP(reduce_scratch[i], reduce_scratch[i + half_n]);                 \
			barrier();                                                                                                 \
			n = half_n;                                                                                                \
		}                                                                                                              \
		return reduce_scratch[0];                                                                                      \
	}
#else
#define KV_REDUCE(NAME, OP)                                                                                            \
	float NAME(float v) {                                                                                              \
		v = KV_SUBGROUP_##OP(v);                                                                                       \
		if (gl_WorkGroupSize.x <= SUBGROUP || gl_NumSubgroups == 1u) return v; /* folds: no barrier is compiled */     \
		barrier();                                                                                                     \
		if (gl_SubgroupInvocationID == 0u) reduce_scratch[gl_SubgroupID] = v;                                          \
		barrier();                                                                                                     \
		float all_v = reduce_scratch[0];                                                                               \
		for (uint i = 1u; i < gl_NumSubgroups; ++i) all_v = OP(all_v, reduce_scratch[i]);                              \
		return all_v;                                                                                                  \
	}
#define KV_SUBGROUP_KV_ADD subgroupAdd
#define KV_SUBGROUP_max subgroupMax
#endif
#define KV_ADD(a, b) ((a) + (b))

KV_REDUCE(workgroup_sum, KV_ADD)
KV_REDUCE(workgroup_max, max)

#endif
