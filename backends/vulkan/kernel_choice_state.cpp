// Chooses the kernel and constants of an op on the states of recurrent layers.
#include "backends/vulkan/kernel_choice_parts.h"
#include <algorithm>
#include <bit>

namespace kvrun::vk {

Choice choose_short_conv(uint32_t taps) {
	return {Kernel::short_conv, {{SPEC_LOCAL_X, kShortConvLocal}, {SPEC_TAPS, taps}}};
}
// On a software driver an invocation takes whole columns: a barrier costs more than sharing a column would save.
DeltaRuleChoice choose_delta_rule(const Caps& c, uint32_t k_dim, uint32_t v_dim) {
	const uint32_t rows = c.is_cpu ? k_dim : k_dim % 16 ? 8 : 16, slices = k_dim / rows;
	const uint32_t most = c.is_cpu ? kLocal : std::min(kLocal * 2, c.workgroup);
	const uint32_t cols =
	    std::clamp(std::bit_floor(most / slices), 1u, std::min(std::bit_ceil(v_dim), c.is_cpu ? kLocal : 32u));
	return {{Kernel::delta_rule,
	         {{SPEC_LOCAL_X, cols * slices}, {SPEC_HEAD_DIM, k_dim}, {SPEC_STATE_ROWS, rows}, {SPEC_STATE_COLS, cols}}},
	        cols};
}

} // namespace kvrun::vk
