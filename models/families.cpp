// Model families: one row per architecture that files name.
#include "models/families.h"

namespace kvrun {
namespace {

constexpr Family kFamilies[] = {
    {.arch = "llama"},
    {.arch = "qwen2", .neox = true, .layer = {.qkv_bias = true}},
    {.arch = "qwen3", .neox = true, .layer = {.qk_norm = QkNorm::Head}},
    {.arch = "phi3",
     .neox = true,
     .partial_rotary = true,
     .strips_after_special = true,
     .layer = {.fused_qkv = true, .fused_gate_up = true}},
};

} // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view arch) {
	for (const Family& f : kFamilies)
		if (arch == f.arch) return &f;
	return nullptr;
}

std::string family_names(std::string_view between) {
	std::string out;
	for (const Family& f : kFamilies) {
		if (!out.empty()) out += between;
		out += f.arch;
	}
	return out;
}

void describe_layers(Config& c, Layer layer) {
	layer.n_heads = c.n_heads, layer.n_kv_heads = c.n_kv_heads, layer.head_dim = c.head_dim;
	layer.hidden_dim = c.hidden_dim, layer.window = c.sliding_window;
	c.layers.assign(c.n_layers, layer);
}

} // namespace kvrun
