// Chooses the kernel and constants of an op on the states of recurrent layers.
#include "backends/vulkan/kernel_choice_parts.h"
#include <algorithm>
#include <bit>

namespace kvrun::vk {

ConvChoice choose_short_conv(const Caps& c, uint32_t taps, uint32_t flags) {
	const uint32_t tile = c.is_cpu ? 0 : 16; // cores have enough to do, and the rows before a tile are read twice
	return {{Kernel::short_conv,
	         {{SPEC_LOCAL_X, kShortConvLocal}, {SPEC_TAPS, taps}, {SPEC_TILE, tile}, {SPEC_FLAGS, flags}}},
	        tile};
}
Choice choose_pool_blocks(uint32_t flags) {
	return {Kernel::pool_blocks, {{SPEC_LOCAL_X, kPoolLocal}, {SPEC_FLAGS, flags}}};
}
// On a software driver an invocation takes whole columns: a barrier costs more than sharing a column would save.
// On GPUs an invocation holds 16 rows of two columns: each word of k and q that it reads from shared memory, which is
// slower than arithmetic, then serves two columns. The invocations that share them fit a subgroup. Intel's GPUs before
// Xe2, and with decays by channel all of Intel's, have registers for one column and none for tokens loaded ahead.
static StateChoice choose_state_kernel(Kernel kernel, const Caps& c, uint32_t k_dim, uint32_t v_dim, bool by_channel) {
	const bool few = few_registers(c) || (c.vendor == kIntel && by_channel), ahead = !c.is_cpu && !few;
	const uint32_t subgroup = !c.subgroup_ops ? 32 : c.can_narrow() ? c.subgroup_min : c.subgroup;
	const uint32_t slices = c.is_cpu ? 1 : std::min(std::bit_ceil(ceil_div(k_dim, 16)), subgroup);
	const uint32_t lane_cols = c.is_cpu || few || v_dim == 1 ? 1 : 2;
	// Keys, queries, decays by channel, what removes and values of the workgroup's columns in 16 KiB of shared memory.
	const bool removal = kernel == Kernel::delta_removal;
	const uint32_t tile = k_dim > (removal ? 64 : 128) || (c.is_cpu && by_channel) ? 4 : 8;
	const uint32_t fewest = std::max(1u, tile / slices),
	               most = std::max(fewest, std::min(kLocal, c.workgroup) / slices);
	const uint32_t n = std::clamp(std::bit_ceil(ceil_div(v_dim, lane_cols)), fewest,
	                              std::bit_floor(c.is_cpu ? most : std::min(most, 32u)));
	return {{kernel,
	         {{SPEC_LOCAL_X, n * slices},
	          {SPEC_HEAD_DIM, k_dim},
	          {SPEC_STATE_ROWS, align_up(ceil_div(k_dim, slices), 4)},
	          {SPEC_STATE_COLS, n * lane_cols},
	          {SPEC_LANE_COLS, lane_cols},
	          {SPEC_TILE, tile},
	          {SPEC_AHEAD, ahead}}},
	        n * lane_cols};
}
StateChoice choose_delta_rule(const Caps& c, uint32_t k_dim, uint32_t v_dim, DeltaForm form) {
	const Kernel kernel = form.removal ? Kernel::delta_removal : Kernel::delta_rule;
	StateChoice how = choose_state_kernel(kernel, c, k_dim, v_dim, form.by_channel);
	if (form.by_channel) how.spec.push_back({SPEC_FLAGS, DELTA_BY_CHANNEL | (form.bounded ? DELTA_BOUNDED : 0)});
	return how;
}
StateChoice choose_ssm_scan(const Caps& c, uint32_t k_dim, uint32_t v_dim) {
	return choose_state_kernel(Kernel::ssm_scan, c, k_dim, v_dim, false);
}

Choice choose_selective_scan(uint32_t k_dim) {
	return {Kernel::selective_scan, {{SPEC_LOCAL_X, kSelectiveLocal}, {SPEC_HEAD_DIM, k_dim}}};
}

} // namespace kvrun::vk
