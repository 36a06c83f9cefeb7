// Layers that attend to entries of blocks beside a window (DeepSeek V4): their metadata and tensors.
#include "models/compressed.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

constexpr uint32_t kShortBlock = 4, kLongBlock = 128; // tokens of blocks that overlap and are chosen, of the others
constexpr uint32_t kMostSharing = 512, kMostShared = 512, kSharedStep = 8, kMostLowRank = 1 << 16;
constexpr const char* kBlockSizes = "attention.compress_ratios";

uint32_t number_in(const ConfigKeys& k, const char* key, uint32_t highest, uint32_t step = 1) {
	const uint32_t v = k.u32(key);
	if (v == 0 || v > highest || v % step)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} to {}{}", k.g.name(), k.key(key), v, step, highest,
		     step > 1 ? fmt::format(", multiples of {}", step) : "");
	return v;
}

std::string block_tensor(uint32_t l, const char* what) { return fmt::format("blk.{}.{}.weight", l, what); }

} // namespace

Latent read_shared_latent(const ConfigKeys& k, Config& c, LayerSizes& sizes) {
	Latent t;
	t.rank = number_in(k, "attention.key_length", kMostShared, kSharedStep);
	t.rotated = number_in(k, "rope.dimension_count", std::min(t.rank, 128u), kSharedStep);
	t.no_rope = true, t.rope_dim = kSharedStep; // no rotated key beside it
	t.q_rank = number_in(k, "attention.q_lora_rank", kMostLowRank);
	t.out_groups = number_in(k, "attention.output_group_count", c.n_heads);
	t.out_rank = number_in(k, "attention.output_lora_rank", kMostLowRank);
	if (c.n_heads > kMostSharing)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs up to {} heads on one latent", k.g.name(),
		     k.key("attention.head_count"), c.n_heads, kMostSharing);
	if (c.n_heads % t.out_groups)
		fail(Code::Format, "{}: {} heads do not divide into {} groups; the file is damaged", k.g.name(), c.n_heads,
		     t.out_groups);
	t.nope_dim = t.rank, t.v_dim = t.rank;
	if (k.u32("attention.head_count_kv", 1) != 1)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} with 1", k.g.name(), k.key("attention.head_count_kv"),
		     k.u32("attention.head_count_kv"), k.arch);
	c.head_dim = t.rank, c.n_kv_heads = 1;
	sizes.n_kv_heads.assign(c.n_layers, 1);
	return t;
}

uint32_t draft_layers(const ConfigKeys& k) {
	const uint32_t all = k.u32("block_count"), said = k.u32("nextn_predict_layers", 0);
	if (said == 0 || said >= all) return said;
	return k.g.find_tensor(block_tensor(all - said, "nextn.eh_proj")) ? said : 0;
}

void read_blocks(const ConfigKeys& k, const Family& f, Config& c) {
	if (!f.compressed) return;
	if (!k.u32("attention.sliding_window", 0))
		fail(Code::Unsupported, "{}: key {} is 0; kvrun runs {} with a window", k.g.name(),
		     k.key("attention.sliding_window"), k.arch);
	const std::vector<int64_t> ratios = k.g.ints(k.key(kBlockSizes)); // perhaps also of draft layers
	if (ratios.size() < c.n_layers)
		fail(Code::Format, "{}: key {} has {} elements, the model has {} layers; the file is damaged", k.g.name(),
		     k.key(kBlockSizes), ratios.size(), c.n_layers);
	// Layers with blocks have the first RoPE, which is extended; the others have one of their own.
	Rope plain{.dim = c.ropes[0].dim, .theta = c.ropes[0].theta, .neox = c.ropes[0].neox};
	c.ropes[0].theta = k.positive("attention.compress_rope_freq_base", 160000);
	bool any = false;
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		Layer& layer = c.layers[l];
		if (ratios[l] != 0 && ratios[l] != kShortBlock && ratios[l] != kLongBlock)
			fail(Code::Unsupported, "{}: key {} is {} for layer {}; kvrun runs 0, {} and {}", k.g.name(),
			     k.key(kBlockSizes), ratios[l], l, kShortBlock, kLongBlock);
		layer.blocks = {uint32_t(ratios[l]), ratios[l] == kShortBlock};
		layer.rope = layer.blocks.tokens ? 0 : 1;
		if (layer.blocks.chosen) layer.indexed = true, layer.index_layer = l;
		any |= layer.blocks.chosen;
	}
	c.ropes.push_back(std::move(plain));
	if (!any) return;
	Indexer& x = c.indexer;
	x.block = kShortBlock, x.of_latent = x.of_entries = true, x.neox = f.neox;
	x.n_heads = number_in(k, "attention.indexer.head_count", 256);
	x.dim = number_in(k, "attention.indexer.key_length", 256, kSharedStep);
	x.most = number_in(k, "attention.indexer.top_k", 1 << 24);
	if (x.dim < c.ropes[0].dim)
		fail(Code::Unsupported, "{}: key {} is {}, of which RoPE takes {}", k.g.name(),
		     k.key("attention.indexer.key_length"), x.dim, c.ropes[0].dim);
}

void add_shared_latent_specs(std::vector<TensorSpec>& out, const Layer& layer, uint32_t l, uint32_t dim) {
	const Latent& t = layer.latent;
	const uint32_t n = layer.n_heads;
	const auto matrix = [&](const char* what, uint32_t rows, uint32_t cols) {
		out.push_back({block_tensor(l, what), rows, cols, true});
	};
	const auto vector = [&](const char* what, uint32_t n) { out.push_back({block_tensor(l, what), 1, n, false}); };
	matrix("attn_q_a", t.q_rank, dim), vector("attn_q_a_norm", t.q_rank);
	matrix("attn_q_b", n * t.rank, t.q_rank);
	matrix("attn_kv", t.rank, dim), vector("attn_kv_a_norm", t.rank);
	vector("attn_sinks", n);
	matrix("attn_output_a", t.out_groups * t.out_rank, n / t.out_groups * t.rank);
	matrix("attn_output_b", dim, t.out_groups * t.out_rank);
}

void add_block_specs(std::vector<TensorSpec>& out, const Config& c, uint32_t l) {
	const Blocks& b = c.layers[l].blocks;
	if (!b.tokens) return;
	const auto compressor = [&](const char* name, uint32_t dim) {
		const auto of = [&](const char* what) { return fmt::format("blk.{}.{}_compressor_{}.weight", l, name, what); };
		const uint32_t width = b.width(dim);
		out.push_back({of("kv"), width, c.dim, true});
		out.push_back({of("gate"), width, c.dim, true});
		out.push_back({of("ape"), 1, width * b.tokens, false, b.tokens});
		out.push_back({of("norm"), 1, dim, false});
	};
	compressor("attn", c.layers[l].head_dim);
	if (!b.chosen) return;
	const Indexer& x = c.indexer;
	compressor("indexer", x.dim);
	out.push_back({block_tensor(l, "indexer.attn_q_b"), x.n_heads * x.dim, c.layers[l].latent.q_rank, true});
	out.push_back({block_tensor(l, "indexer.proj"), x.n_heads, c.dim, true});
}

void read_token_experts(const ConfigKeys& k, const Family& f, Config& c) {
	if (!f.compressed) return;
	const uint32_t n = k.u32("hash_layer_count", 0);
	if (n > c.n_layers)
		fail(Code::Format, "{}: key {} is {}, the model has {} layers; the file is damaged", k.g.name(),
		     k.key("hash_layer_count"), n, c.n_layers);
	for (uint32_t l = 0; l < n; ++l) {
		Experts& e = c.layers[l].experts;
		e.by_token = true, e.choice_bias = false;
		const GgufTensor* t = k.g.find_tensor(fmt::format("blk.{}.{}", l, kTokenExperts));
		if (!t || t->type != DType::U32) continue; // check_tensor() says so
		std::vector<uint32_t> ids(t->bytes / 4);
		k.g.read(*t, 0, std::as_writable_bytes(std::span(ids)));
		const auto wrong = std::ranges::find_if(ids, [&](uint32_t id) { return id >= e.n; });
		if (wrong != ids.end())
			fail(Code::Format, "{}: tensor {} names expert {} of {}; the file is damaged", k.g.name(), t->name, *wrong,
			     e.n);
	}
}

} // namespace kvrun
