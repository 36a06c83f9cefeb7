// How far a result may be from the cpu backend's.
#include "backends/tolerance.h"
#include "backends/backend.h"
#include "engine/core/error.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

std::string_view attend_tolerance(const DeviceInfo& info, bool prompt, bool packed, std::string_view plain,
                                  bool latent) {
	if (packed && latent) return "attend packed latents";
	return packed && info.int8_attend ? "attend int8" : prompt && info.half_matmul ? "attend_prompt f16" : plain;
}

std::string_view matmul_tolerance(const DeviceInfo& info, DType w, bool swiglu, bool decode) {
	if (info.int8_matmul && tensor_type_info(w).int8 && (decode || !info.half_matmul))
		return swiglu ? "swiglu int8" : "matmul int8";
	if (!decode && info.half_matmul) return swiglu ? "swiglu f16" : "matmul f16";
	return swiglu ? "swiglu" : decode ? "matvec" : "matmul";
}

Tolerance tolerance(std::string_view what) {
	struct Row {
		std::string_view what;
		Tolerance t;
	};
	// Sums in another order differ by about 1e-6 of rms. exp() on a device may be off by a few ULP per unit of its
	// argument. A half differs from its value by up to 2^-11 of it, and may round to either side.
	constexpr Row table[] = {
	    {"embed", {1e-6, 1e-6}},
	    {"rmsnorm", {1e-5, 1e-6}},
	    {"activate", {1e-5, 1e-6}},
	    {"gaussian_top_k", {1e-5, 2e-5}}, // what is left is small beside what it is the difference of
	    {"matvec", {1e-5, 5e-5}},
	    {"matmul", {1e-5, 5e-5}},
	    {"swiglu", {1e-4, 1e-4}},
	    {"matmul f16", {1e-3, 4e-3}}, // both operands rounded: about 2^-12 of each product, up to 5 deviations
	    {"swiglu f16", {4e-3, 8e-3}},
	    // x rounded to 8 bits: 0.006 of a sum's size (rms) if elements are of similar size, several times that if one
	    // is large.
	    {"matmul int8", {1e-3, 6e-2}},
	    {"swiglu int8", {1e-2, 2e-1}},
	    {"route", {1e-5, 1e-6}},
	    {"expert_sum", {1e-5, 1e-6}},
	    {"stream_coefs", {1e-5, 1e-5}},
	    {"stream_attend", {1e-4, 1e-4}}, // a score of 10 is off by 1e-5
	    {"stream_gate", {1e-3, 1e-5}},   // rounding decides the sign of a sum near 0, and 1e-3 of what is gated
	    {"index_score", {1e-4, 1e-4}},
	    {"short_conv", {1e-5, 1e-5}},
	    {"pool_blocks", {1e-5, 1e-5}},
	    {"ssm_scan", {1e-4, 1e-4}},
	    {"selective_scan", {1e-4, 1e-4}},
	    {"delta_rule", {1e-4, 1e-4}}, // sums of sums: an error of one token stays in the state
	    {"rope", {1e-5, 1e-5}},
	    {"kv", {1e-3, 1e-5, 6e-8}}, // last: the unit of the smallest halves
	    {"attend", {1e-4, 1e-4}},
	    {"attend_prompt", {1e-4, 1e-4}},
	    {"attend packed", {2e-4, 2e-4}},
	    // Decoded to halves: each differs from its value by up to 2^-12 of it, a sum by 1.4e-4 of its size, up to 10
	    // deviations with the scores.
	    {"attend packed latents", {5e-4, 1.5e-3}},
	    // Queries, packed keys and values, and weights are each rounded. A score of tens, as of heads that look up one
	    // token, is then off by hundredths, and so is the weight, relative to its size.
	    {"attend_prompt f16", {2e-3, 1e-2}},
	    // A query rounded to 8 bits changes a score by about 0.005 of the queries' and keys' sizes, up to 5 deviations,
	    // and a weight by the same relative amount.
	    {"attend int8", {1e-2, 6e-2}},
	    {"copy", {0, 0}},
	};
	for (const Row& r : table)
		if (r.what == what) return r.t;
	fail(Code::NotFound, "no tolerance for '{}'; add a row to tolerance() in backends/tolerance.cpp", what);
}

static double rms_of(std::span<const float> values) {
	double squares = 0;
	size_t finite = 0;
	for (float v : values)
		if (std::isfinite(v)) squares += double(v) * double(v), ++finite;
	return finite ? std::sqrt(squares / double(finite)) : 0;
}

Difference compare(std::span<const float> x, std::span<const float> ref, Tolerance t, double rms) {
	KV_ASSERT(x.size() == ref.size());
	Difference d;
	d.n = x.size();
	if (rms < 0) rms = rms_of(ref);
	double worst = -1; // largest error / tolerance
	for (size_t i = 0; i < x.size(); ++i) {
		const double error = std::abs(double(x[i]) - double(ref[i])),
		             allowed = t.rel * std::abs(double(ref[i])) + t.slack * rms + t.least;
		const bool finite_x = std::isfinite(x[i]), bad = !finite_x || !(error <= allowed);
		d.n_nonfinite += !finite_x;
		if (std::isfinite(error)) d.max_error = std::max(d.max_error, error);
		const double ratio = !std::isfinite(error) ? INFINITY : allowed > 0 ? error / allowed : error > 0 ? 1e30 : 0;
		if (ratio > worst) worst = ratio, d.worst = i, d.allowed = allowed;
		if (!bad) continue;
		if (d.n_bad++ < 5) d.bad.push_back(i);
	}
	return d;
}

} // namespace kvrun
