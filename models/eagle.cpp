// EAGLE-3 layers in files.
#include "models/eagle.h"

namespace kvrun {

constexpr size_t kStates = 3; // layers of the model whose inputs are read

void read_eagle_keys(const ConfigKeys& k, Config& c) {
	if (const uint32_t n = k.u32("block_count"); n != 1)
		fail(Code::Unsupported, "{}: {} layers; kvrun runs EAGLE-3 with one", k.g.name(), n);
	if (const size_t n = c.fusion.layers.size(); n != kStates)
		fail(Code::Unsupported, "{}: key {} has {} layers; kvrun runs EAGLE-3 with {}", k.g.name(),
		     k.key("target_layers"), n, kStates);
	c.fusion.normed = k.flag("norm_before_fc", false);
	c.fusion.normed_residual = k.flag("norm_before_residual", false);
}

void add_eagle_specs(std::vector<TensorSpec>& out, const Config& c) {
	if (c.fusion.normed) out.push_back({kFusionNorm, 1, fused_states(c), false});
	out.push_back({kEagleStateNorm, 1, c.dim, false});
}

} // namespace kvrun
