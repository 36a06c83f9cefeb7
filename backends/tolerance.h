// How far a result may be from the cpu backend's: |x - ref| <= rel * |ref| + slack * rms(ref) + least.
#pragma once
#include "engine/core/dtype.h"
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct Tolerance {
	double rel, slack, least = 0;
};
// By name: embed, rmsnorm, activate, matvec (decode), matmul (prompt), swiglu, the last two also with the suffix "f16"
// (DeviceInfo::half_matmul), matvec and swiglu with "int8" (int8_matmul), route (weights of experts), expert_sum,
// stream_gate, stream_coefs, stream_attend, index_score, short_conv, pool_blocks, delta_rule, ssm_scan,
// selective_scan, rope, kv (K and V as f16), attend, attend_prompt, "attend packed", "attend packed latents",
// "attend_prompt f16", "attend int8", copy. Throws Error{NotFound} for other names.
Tolerance tolerance(std::string_view what);
struct DeviceInfo;
// The tolerance's name for matmul by a weight of this type.
std::string_view matmul_tolerance(const DeviceInfo&, DType, bool swiglu, bool decode);
// The tolerance's name for attention on a device; `plain` if nothing is rounded. prompt: rows of a prompt; packed: over
// pages, some of them packed.
std::string_view attend_tolerance(const DeviceInfo&, bool prompt, bool packed, std::string_view plain,
                                  bool latent = false);

// Factor of attention's tolerance for queries of this rms. An error of a score is proportional to the size of the
// query, and changes the weight by as much, relative to its size. The tolerances above suffice up to an rms of 8.
// Queries are larger in models whose scores are not divided by sqrt(head_dim): they are multiplied by it beforehand.
constexpr double score_factor(double queries_rms) { return queries_rms > 8 ? queries_rms / 8 : 1; }

struct Difference {
	size_t n = 0, n_bad = 0; // elements compared, elements outside the tolerance (non-finite ones included)
	size_t n_nonfinite = 0;  // NaN or infinity in x
	size_t worst = 0;        // index of the element furthest outside (or nearest to) its tolerance
	double max_error = 0;    // largest |x - ref|
	double allowed = 0;      // at `worst`
	std::vector<size_t> bad; // the first 5
};
// rms: of the values that the slack is relative to, where they are not all of ref; negative: of ref.
Difference compare(std::span<const float> x, std::span<const float> ref, Tolerance, double rms = -1);

struct OpComparison { // one output of one op, computed by two backends
	std::string_view op, output;
	const std::string& shape; // of the op, for messages
	const Difference& difference;
	std::span<const float> x, ref; // packed codes as numbers
	bool codes;
};
using OpObserver = std::function<void(const OpComparison&)>;

} // namespace kvrun
