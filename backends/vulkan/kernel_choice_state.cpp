// Chooses the kernel and constants of an op on the states of recurrent layers.
#include "backends/vulkan/kernel_choice_parts.h"
#include <algorithm>
#include <bit>

namespace kvrun::vk {

Choice choose_short_conv(uint32_t taps, bool silu, bool bias) {
	const uint32_t flags = (silu ? CONV_SILU : 0) | (bias ? CONV_BIAS : 0);
	return {Kernel::short_conv, {{SPEC_LOCAL_X, kShortConvLocal}, {SPEC_TAPS, taps}, {SPEC_FLAGS, flags}}};
}
// On a software driver an invocation takes whole columns: a barrier costs more than sharing a column would save.
static StateChoice choose_state_kernel(Kernel kernel, const Caps& c, uint32_t k_dim, uint32_t v_dim) {
	const uint32_t rows = c.is_cpu ? k_dim : k_dim % 16 ? 8 : 16, slices = k_dim / rows;
	const uint32_t most = c.is_cpu ? kLocal : std::min(kLocal * 2, c.workgroup);
	const uint32_t cols =
	    std::clamp(std::bit_floor(most / slices), 1u, std::min(std::bit_ceil(v_dim), c.is_cpu ? kLocal : 32u));
	return {{kernel,
	         {{SPEC_LOCAL_X, cols * slices}, {SPEC_HEAD_DIM, k_dim}, {SPEC_STATE_ROWS, rows}, {SPEC_STATE_COLS, cols}}},
	        cols};
}
StateChoice choose_delta_rule(const Caps& c, uint32_t k_dim, uint32_t v_dim, bool by_channel) {
	StateChoice how = choose_state_kernel(Kernel::delta_rule, c, k_dim, v_dim);
	if (by_channel) how.spec.push_back({SPEC_FLAGS, DELTA_BY_CHANNEL});
	return how;
}
StateChoice choose_ssm_scan(const Caps& c, uint32_t k_dim, uint32_t v_dim) {
	return choose_state_kernel(Kernel::ssm_scan, c, k_dim, v_dim);
}

} // namespace kvrun::vk
