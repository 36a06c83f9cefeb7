// DFlash and DSpark layers in files.
#include "models/dflash.h"
#include "engine/core/utf8.h"

namespace kvrun {

constexpr uint32_t kMostBlock = 4096, kMostRank = 65536; // far beyond published files

void read_dflash_keys(const ConfigKeys& k, Config& c) {
	for (const char* key : {"conv_kernel_size", "selector_rank", "hyper_connection.count"})
		if (k.has(key))
			fail(Code::Unsupported,
			     "{}: has key {}; kvrun runs DFlash and DSpark without convolutions, selectors and "
			     "hyper-connections",
			     k.g.name(), k.key(key));
	DraftBlock& b = c.block;
	b.size = k.u32("block_size", 16);
	if (b.size < 2 || b.size > kMostBlock)
		fail(Code::Format, "{}: key {} is {}, expected 2 to {}; the file is damaged", k.g.name(), k.key("block_size"),
		     b.size, kMostBlock);
	b.mask = k.g.u32("tokenizer.ggml.mask_token_id");
	if (b.mask >= c.fusion.vocab)
		fail(Code::Invalid,
		     "{}: key tokenizer.ggml.mask_token_id is {}, the model has {} tokens; take the file that was "
		     "made for it",
		     k.g.name(), b.mask, c.fusion.vocab);
	b.causal = k.flag("attention.causal", false);
	b.value_scale = k.positive("attention.value_scale", 1);
	const GgufTensor* in = k.g.find_tensor(kMarkovIn);
	if (!in) return;
	if (in->cols() > kMostRank)
		fail(Code::Format, "{}: tensor {} has {} columns; the file is damaged", k.g.name(), kMarkovIn, in->cols());
	b.rank = uint32_t(in->cols());
	b.from_anchor = k.flag("sample_from_anchor", true);
}

void see_dflash_traits(const ConfigKeys& k, Layer& layer) {
	const auto has = [&](const char* tensor) { return k.g.find_tensor(tensor) != nullptr; };
	layer.attn_out_norm = has("blk.0.post_attention_norm.weight");
	layer.mlp_out_norm = has("blk.0.post_ffw_norm.weight");
	layer.sinks = has("blk.0.attn_sinks.weight");
	layer.v_norm = !has("blk.0.attn_v.weight"); // values are then keys
	const std::string_view act = k.g.text(k.key("hidden_activation"), "silu");
	if (act == "gelu" || act == "gelu_pytorch_tanh")
		layer.activation = Activation::GeluTanh;
	else if (act != "silu")
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs silu and gelu_pytorch_tanh", k.g.name(),
		     k.key("hidden_activation"), one_line(act));
}

void add_dflash_specs(std::vector<TensorSpec>& out, const Config& c) {
	out.push_back({kFusionNorm, 1, c.dim, false});
	if (!c.block.rank) return;
	out.push_back({kMarkovIn, c.fusion.vocab, c.block.rank, true});
	out.push_back({kMarkovOut, c.vocab, c.block.rank, true});
}

} // namespace kvrun
