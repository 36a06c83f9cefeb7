// Entries of blocks and experts by token in files: keys, tensors, caches and their errors.
#include "engine/run/cache_layers.h"
#include "engine/run/memory_plan.h"
#include "models/compressed.h"
#include "tests/host/file_edits.h"

using namespace kvrun;

TEST_CASE("blocks: what the files say, and which caches a model has") {
	const Config c = config_of(golden("deepseek4"));
	REQUIRE(c.n_layers == 3);
	CHECK((c.layers[0].blocks == Blocks{} && c.layers[1].blocks == Blocks{4, true}));
	CHECK(c.layers[2].blocks == Blocks{128, false});
	CHECK(block_sizes(c) == std::vector<uint32_t>{4, 128});
	for (uint32_t l = 0; l < 3; ++l) {
		const Layer& layer = c.layers[l];
		CHECK((layer.window.tokens == 24 && layer.sinks && layer.rope == (l ? 0 : 1) && has_indexer(c, l) == (l == 1)));
		CHECK((layer.latent.out_groups == 2 && layer.latent.out_rank == 16 && layer.latent.rotated == 16));
		CHECK((layer.experts.by_token == (l == 0) && layer.experts.choice_bias == (l != 0)));
		CHECK(layer.experts.gating == Gating::SqrtSoftplus);
	}
	CHECK((c.ropes.size() == 2 && c.ropes[0].scaling == RopeScaling::Yarn && c.ropes[1].theta == 10000));
	CHECK(std::abs(rope_attention_scale(c.ropes[0]) - 1) < 1e-6f);
	CHECK((c.indexer.of_entries && c.indexer.most == 64 && c.indexer.block == 4 && c.streams.weighs_output));
	const CacheLayers layers(c);
	REQUIRE(layers.blocks().size() == 2);
	CHECK((!layers.both_kinds() && layers.main_shape().n_layers == 3 && layers.window().tokens == 24));
	CHECK((layers.blocks()[0].tokens == 4 && layers.blocks()[0].chosen && layers.blocks()[0].shape.n_layers == 1));
	CHECK((layers.blocks()[1].tokens == 128 && !layers.blocks()[1].chosen));
	CHECK((layers.policy_block() == 4 && layers.block(2).cache == 1 && layers.block(2).index == 0));
	// The pool: windows, states of the indexer and of both layers with blocks, keys of the indexer, entries.
	CHECK(layers.model_layers(c) == std::vector<uint32_t>{0, 1, 2, 1, 1, 2, 1, 1, 2});
	CHECK(layers.states().words == std::vector<uint32_t>{10 * 64, 10 * 32, 4 * 32});
	const KvPlan plan = plan_of_model(layers, parse_policy("fp16"), 512);
	CHECK((plan.block == 4 && plan.chosen == 64 && plan.shape.n_layers == 1));
	CHECK(index_bytes(layers, 511) == 127 * 64 * 2);
	CHECK(model_memory(c, 0, 64).window_bytes > 0);
}

TEST_CASE("blocks: what files may not say") {
	const Bytes good = golden("deepseek4");
	const auto with_ratio = [&](uint32_t layer, uint32_t tokens) {
		Bytes b = good;
		const std::string key = "deepseek4.attention.compress_ratios";
		const size_t at = place_of(b, key) + key.size() + 4 + 4 + 8 + layer * 4; // behind types and length
		std::memcpy(b.data() + at, &tokens, 4);
		return b;
	};
	check_refused(with_ratio(1, 8), "compress_ratios is 8 for layer 1; kvrun runs 0, 4 and 128");
	check_refused(with_ratio(2, 4), "tensor blk.2.attn_compressor_kv.weight is (32, 32)");
	check_refused(with_u32(good, "deepseek4.attention.sliding_window", 0), "kvrun runs deepseek4 with a window");
	check_refused(with_u32(good, "deepseek4.attention.output_group_count", 3), "4 heads do not divide into 3 groups");
	check_refused(with_u32(good, "deepseek4.attention.head_count_kv", 2), "attention.head_count_kv is 2");
	check_refused(with_u32(good, "deepseek4.attention.indexer.key_length", 8), "is 8, of which RoPE takes 16");
	check_refused(with_u32(good, "deepseek4.hash_layer_count", 4), "hash_layer_count is 4, the model has 3 layers");
	check_refused(with_u32(good, "deepseek4.hash_layer_count", 2), "tensor blk.1.ffn_gate_tid2eid.weight is missing");
	check_refused(with_u32(good, "deepseek4.expert_gating_func", 5), "expert_gating_func is 5");
	check_needed(good, "",
	             {"blk.2.attn_compressor_ape.weight", "blk.1.indexer_compressor_norm.weight",
	              "blk.0.attn_output_a.weight", "blk.1.indexer.proj.weight"});
}
