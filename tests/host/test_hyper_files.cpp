// Hyper-connections, attention residuals and n-grams in files: keys, tensors, rows of the table, and their errors.
#include "engine/core/f16.h"
#include "engine/run/cache_layers.h"
#include "engine/run/stream_memory.h"
#include "models/hyper_streams.h"
#include "models/ngram_table.h"
#include "tests/host/file_edits.h"

using namespace kvrun;

TEST_CASE("hyper-connections: what the converter's files say") {
	const Config c = config_of(golden("qwen4exp")), plain = config_of(golden("qwen4exp_plain"));
	CHECK((c.streams.n == 4 && c.streams.rank == 16 && c.streams.hyper()));
	CHECK((plain.streams.n == 2 && plain.streams.rank == 12));
	CHECK(c.final_norm.empty());
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		CHECK_FALSE(c.layers[l].attn_norm);
		CHECK(c.layers[l].mlp_input == MlpInput::Raw);
		CHECK(attends(c.layers[l]) == (l == 3));
		CHECK(c.layers[l].output_gate == (l == 3));
	}
	CHECK(c.layers[0].recurrent.gate_function == Activation::Sigmoid);
	for (uint32_t l = 0; l < plain.n_layers; ++l) CHECK(attends(plain.layers[l]) == (l == 1 || l == 3));
	CHECK(c.layer_input_dim == 0);
	CHECK(c.indexer.all_up_to() == 64 + 3); // whole blocks of 4 tokens, and up to 3 behind them
	CHECK_FALSE(plain.ngrams.longest);
	const NGrams& g = c.ngrams;
	CHECK((g.longest == 3 && g.layer == 1 && g.per_length == 2 && g.dim == 8 && g.taps == 4));
	CHECK((g.separator == 2 && g.image == 2));
	CHECK((g.rows() == 4 && g.width() == 32 && g.span() == 10));
	CHECK(g.first == std::vector<uint64_t>{0, 89, 186, 287});
	CHECK(g.sizes == std::vector<uint64_t>{89, 97, 101, 103});
	// The convolution's state is a page behind those of recurrent layers; behind it are the latest keys of the indexer.
	const CacheLayers layers(c), without(plain);
	CHECK(layers.states().n_layers() == 5);
	CHECK(layers.ngram_state() == 3u);
	CHECK((layers.states().words[3] == 9 * 4 * 32 && layers.states().words[4] == 3 * 16));
	CHECK(layers.model_layers(c) == std::vector<uint32_t>{3, 0, 1, 2, 1, 3, 3});
	CHECK_FALSE(without.ngram_state());
	// A row of the residual stream has all streams; activations are counted with them.
	Arena dry(nullptr);
	CHECK(take_streams(dry, c, 3).shape[1] == 4 * 32);
	CHECK(StreamMemory::bytes(c, 8) > StreamMemory::bytes(plain, 8));
}

TEST_CASE("hyper-connections: with a matrix between streams, and without one") {
	const Bytes mixed = golden("glm5_next"), plain = golden("hy_v4");
	const Config c = config_of(mixed), without = config_of(plain);
	const Streams &a = c.streams, &b = without.streams;
	CHECK((a.kind == StreamKind::Manifold && a.hyper() && a.n == 4 && a.rounds == 4 && a.coefs() == 24));
	CHECK((a.eps == 1e-6f && a.post_scale == 2 && a.post_eps == 0 && !a.weighs_output));
	CHECK((b.kind == StreamKind::Manifold && b.n == 4 && b.rounds == 0 && b.coefs() == 8));
	CHECK((b.eps == 0.01f && b.post_scale == 1.5f && b.post_eps == b.eps && b.weighs_output));
	CHECK(StreamMemory::bytes(c, 8) > StreamMemory::bytes(without, 8));
	CHECK((!c.ngrams.longest && c.layer_input_dim == 0 && c.layers[0].attn_norm));
	check_refused(with_u32(mixed, "glm5-next.hyper_connection.count", 5), "key glm5-next.hyper_connection.count is 5");
	check_refused(with_u32(mixed, "glm5-next.hyper_connection.count", 3),
	              "tensor blk.0.hc_attn_fn.weight is (24, 128)");
	check_refused(with_u32(mixed, "glm5-next.hyper_connection.sinkhorn_iterations", 0),
	              "key glm5-next.hyper_connection.sinkhorn_iterations is 0; kvrun runs 1 to 1000");
	check_refused(with_f32(plain, "hy_v4.hyper_connection.epsilon", -1), "key hy_v4.hyper_connection.epsilon is -1");
	check_refused(with_f32(plain, "hy_v4.hyper_connection.magnitude", 0), "key hy_v4.hyper_connection.magnitude is 0");
	check_needed(plain, "",
	             {"blk.1.hc_ffn_fn.weight", "blk.1.hc_attn_base.weight", "blk.1.hc_attn_scale.weight",
	              "output_hc_base.weight", "output_hc_scale.weight"});
}

TEST_CASE("attention residuals: what files say, and wrong ones") {
	const Bytes good = golden("kimi_k3");
	const Config c = config_of(good);
	const Streams& s = c.streams;
	CHECK((s.kind == StreamKind::Attended && !s.hyper() && s.n == 3 && s.block == 2));
	const uint32_t own[] = {1, 1, 2, 2}, read[] = {1, 2, 2, 3};
	for (uint32_t l = 0; l < 4; ++l) CHECK((s.own(l) == own[l] && s.read(l) == read[l] && s.begins(l) == (l % 2 == 0)));
	Arena dry(nullptr);
	CHECK(take_streams(dry, c, 5).shape[0] == 5);
	CHECK(dry.bytes() >= 5 * 3 * 32 * sizeof(float));
	for (const Layer& l : c.layers) CHECK((l.gate_cap == 0.75f && l.up_cap == 1.25f));
	CHECK((c.layers[0].experts.n == 0 && c.layers[1].experts.latent_dim == 24 && c.layers[1].experts.latent_norm));
	CHECK((c.layers[1].recurrent.full_gate && !c.layers[1].recurrent.full_gates && c.layers[1].recurrent.bound == -2));
	CHECK((c.layers[2].output_gate && !c.layers[2].gate_by_head && c.layers[2].latent.q_rank == 40));
	CHECK(config_of(with_u32(good, "kimi-k3.attn_res.block_size", 4)).streams.n == 2);
	CHECK(config_of(with_u32(good, "kimi-k3.attn_res.block_size", 0)).streams.kind == StreamKind::None);
	CHECK(config_of(with_f32(good, "kimi-k3.activation.situ_linear_beta", -1)).layers[1].up_cap == 0);
	check_refused(with_f32(good, "kimi-k3.activation.situ_beta", 0), "key kimi-k3.activation.situ_beta is 0");
	check_refused(with_u32(good, "kimi-k3.expert_latent_length", 33), "key kimi-k3.expert_latent_length is 33");
	check_refused(with_u32(good, "kimi-k3.expert_latent_length", 16),
	              "tensor blk.1.ffn_routed_down.weight is (24, 32)");
	check_refused(with_f32(good, "kimi-k3.kda.gate_lower_bound", 1), "key kimi-k3.kda.gate_lower_bound is 1");
	check_needed(good, "",
	             {"blk.1.attn_res_score.weight", "blk.1.ffn_res_score.weight", "output_res_score.weight",
	              "blk.1.ffn_routed_down.weight", "blk.1.ffn_routed_up.weight", "blk.1.ssm_g.weight",
	              "blk.1.ssm_f_b.weight", "blk.2.attn_gate.weight"});
}

TEST_CASE("hyper-connections: what files may not say") {
	const Bytes good = golden("qwen4exp");
	check_refused(with_u32(good, "qwen4exp.hyper_connection.count", 1),
	              "key qwen4exp.hyper_connection.count is 1; kvrun runs 2 to 4");
	check_refused(with_u32(good, "qwen4exp.hyper_connection.count", 5), "key qwen4exp.hyper_connection.count is 5");
	check_refused(with_u32(good, "qwen4exp.hyper_connection.low_rank", 0), "hyper_connection.low_rank is 0");
	check_refused(with_u32(good, "qwen4exp.hyper_connection.low_rank", 17),
	              "tensor output_hc_down.weight is (16, 128), the config says (17, 128)");
	check_refused(with_u32(good, "qwen4exp.ple.ngram_size", 1), "key qwen4exp.ple.ngram_size is 1; kvrun runs 2 to 8");
	check_refused(with_u32(good, "qwen4exp.ple.ngram_size", 4),
	              "key qwen4exp.ple.layer_multipliers has 3 numbers, expected 4");
	check_refused(with_u32(good, "qwen4exp.ple.heads_per_ngram", 33), "66 rows of n-grams for a token");
	check_refused(with_u32(good, "qwen4exp.ple.heads_per_ngram", 3),
	              "key qwen4exp.ple.head_offsets has 4 numbers, expected 6");
	check_refused(with_u32(good, "qwen4exp.ple.conv_kernel", 8), "a convolution over 22; kvrun runs up to");
	check_refused(with_u32(good, "qwen4exp.ple.conv_kernel", 3), "tensor blk.1.ple_conv1d.weight is (128, 4)");
	check_refused(with_u32(good, "qwen4exp.embedding_length_per_layer_input", 4),
	              "tensor per_layer_token_embd.weight has 392 rows of 8, the keys say 390 of 4");
	const auto array = [&](const char* key, size_t element_bytes, size_t i, uint64_t v) {
		Bytes b = good; // key, type, type of elements, their number
		std::memcpy(&b[place_of(b, key) + std::strlen(key) + 4 + 4 + 8 + i * element_bytes], &v, element_bytes);
		return b;
	};
	check_refused(array("qwen4exp.ple.layers", 4, 0, 4), "key qwen4exp.ple.layers is 4, the model has 4 layers");
	check_refused(array("qwen4exp.ple.layers", 4, 0, 2), "tensor blk.2.ple_key.weight is missing");
	check_refused(array("qwen4exp.ple.head_vocab_sizes", 8, 1, 0), "row 1 of a token's n-grams is one of 0 from 89 on");
	check_refused(array("qwen4exp.ple.head_vocab_sizes", 8, 3, 106), "has 392 rows of 8, the keys say 393 of 8");
	check_refused(array("qwen4exp.ple.head_offsets", 8, 0, uint64_t(1) << 40), "row 0 of a token's n-grams");
	check_refused(array("qwen4exp.ple.head_offsets", 8, 0, UINT64_MAX), "qwen4exp.ple.head_offsets");
	check_needed(good, "",
	             {"output_hc_norm.weight", "output_hc_down.weight", "output_hc_up.weight", "blk.0.hc_attn_norm.weight",
	              "blk.0.hc_attn_down.weight", "blk.0.hc_attn_up.weight", "blk.0.hc_attn_inject.weight",
	              "blk.3.hc_ffn_norm.weight", "blk.3.hc_ffn_inject.weight", "blk.1.ple_key.weight",
	              "blk.1.ple_value.weight", "blk.1.ple_norm_conv.weight", "per_layer_token_embd.weight"});
	// Files without an indexer, and of a converter that lost which layers have one, attend to all tokens.
	CHECK(config_of(array("qwen4exp.attention.compress_ratios", 4, 3, 0)).indexer.block == 0);
}

TEST_CASE("n-grams: rows of the table") {
	const Bytes bytes = golden("qwen4exp");
	const Gguf file = Gguf::parse("test.gguf", bytes);
	const Config c = read_config(file);
	const NGramTable table(file, c);
	REQUIRE(table.reach() == 2);
	// Of the prompt in tests/golden/tiny, by transformers; token 2 separates.
	const std::vector<uint32_t> text = {1,   106, 103, 278, 160, 37, 2,   210, 195, 194, 265, 86,
	                                    112, 50,  2,   2,   5,   7,  267, 269, 214, 188, 200, 79};
	const uint32_t want[24][4] = {{25, 90, 286, 333},  {54, 153, 235, 296}, {13, 92, 192, 379},  {29, 109, 234, 313},
	                              {59, 130, 209, 318}, {72, 107, 275, 334}, {64, 161, 250, 342}, {5, 92, 197, 378},
	                              {80, 172, 235, 342}, {44, 170, 232, 312}, {16, 169, 225, 348}, {49, 94, 218, 320},
	                              {18, 130, 205, 302}, {37, 107, 218, 358}, {44, 100, 254, 360}, {49, 118, 190, 327},
	                              {78, 120, 201, 294}, {68, 134, 188, 307}, {46, 165, 220, 289}, {33, 95, 256, 353},
	                              {0, 90, 273, 343},   {57, 171, 227, 344}, {15, 102, 281, 341}, {29, 120, 195, 320}};
	std::vector<uint32_t> rows(4);
	for (size_t t = 0; t < text.size(); ++t) {
		CAPTURE(t);
		for (const size_t before : {t, std::min<size_t>(t, 2)}) { // older tokens do not matter
			table.rows_of(std::span(text).subspan(t - before, before + 1), rows);
			CHECK(std::ranges::equal(rows, want[t]));
		}
	}
	// Rows of images are one token.
	const uint32_t image[] = {5, 1u << 31}, as_token[] = {5, c.ngrams.image};
	std::vector<uint32_t> other(4);
	table.rows_of(image, rows), table.rows_of(as_token, other);
	CHECK(rows == other);
	// Values are those rows, side by side; of many tokens, which threads read, as of one.
	const GgufTensor& t = *file.find_tensor(kNGramTable);
	std::vector<uint16_t> halves(t.bytes / 2);
	file.read(t, 0, std::as_writable_bytes(std::span(halves)));
	const std::vector<float> all = table.read(text, 24);
	REQUIRE(all.size() == 24 * 32);
	for (size_t i = 0; i < all.size(); ++i) CHECK(all[i] == f16_to_f32(halves[want[i / 32][i % 32 / 8] * 8 + i % 8]));
	for (size_t n = 1; n <= 24; ++n) {
		const std::vector<float> last = table.read(std::span(text).first(n), 1);
		CHECK(std::ranges::equal(last, std::span(all).subspan((n - 1) * 32, 32)));
	}
}
