// The indexer of sparse attention: keys and tensors of files, pages of its keys, which rows choose.
#include "backends/cpu/open_cpu.h"
#include "engine/kv_device/index.h"
#include "engine/kv_device/index_step.h"
#include "engine/run/cache_layers.h"
#include "engine/run/memory_plan.h"
#include "engine/run/positions.h"
#include "engine/run/prompt_memory.h"
#include "models/model.h"
#include "models/prediction.h"
#include "tests/host/file_edits.h"

using namespace kvrun;

static Bytes with_block(Bytes b, uint32_t layer, uint32_t tokens) {
	const std::string key = "qwen4exp.attention.compress_ratios";
	std::memcpy(&b[place_of(b, key) + key.size() + 4 + 4 + 8 + 4 * layer], &tokens, 4); // after types and length
	return b;
}

TEST_CASE("indexer: what files say, and what they may not") {
	const Bytes good = golden("qwen4exp_sparse");
	const Config c = config_of(good);
	const Indexer& x = c.indexer;
	CHECK((x.n_heads == 2 && x.dim == 16 && x.block == 4 && x.most == 2 && x.all_up_to() == 11));
	for (uint32_t l = 0; l < c.n_layers; ++l) CHECK(c.layers[l].indexed == (l == 3));
	CHECK_FALSE(config_of(golden("qwen35")).indexer.block);
	check_refused(with_block(good, 3, 3),
	              "key qwen4exp.attention.compress_ratios is 3; kvrun runs powers of two up to 32");
	check_refused(with_block(good, 3, 64), "compress_ratios is 64; kvrun runs powers of two up to 32");
	check_refused(with_block(good, 3, uint32_t(-4)), "qwen4exp.attention.compress_ratios");
	CHECK_FALSE(config_of(with_block(good, 0, 8)).layers[0].indexed); // the layer is recurrent
	const std::string key = "qwen4exp.attention.indexer.";
	check_refused(with_u32(good, key + "head_count", 0), "head_count is 0; kvrun runs 1 to 256");
	check_refused(with_u32(good, key + "head_count", 3), "tensor blk.3.indexer.q_proj.weight is (32, 32)");
	check_refused(with_u32(good, key + "key_length", 20), "key_length is 20; kvrun runs multiples of 8");
	check_refused(with_u32(good, key + "key_length", 264), "key_length is 264; kvrun runs 1 to 256");
	check_refused(with_u32(good, key + "top_k", 3), "kvrun runs at least one block of 4");
	check_needed(good, "",
	             {"blk.3.indexer.q_proj.weight", "blk.3.indexer.k_proj.weight", "blk.3.indexer.q_norm.weight",
	              "blk.3.indexer.k_norm.weight"});
}

TEST_CASE("indexer: on attention's latent of queries, of each layer or shared by some") {
	const Bytes good = golden("glm_dsa");
	const Config every = config_of(golden("deepseek32")), some = config_of(good);
	for (const Config* c : {&every, &some}) {
		const Indexer& x = c->indexer;
		CHECK((x.of_latent && x.n_heads == (c == &every ? 4u : 8u) && x.dim == 64));
		CHECK((x.block == 1 && x.most == 8 && x.all_up_to() == 8));
	}
	CHECK((every.indexer.neox && !every.ropes[0].neox && !some.indexer.neox));
	CHECK((has_indexer(every, 0) && has_indexer(every, 1)));
	CHECK((has_indexer(some, 0) && !has_indexer(some, 1) && has_indexer(some, 2) && !has_indexer(some, 3)));
	CHECK((some.layers[1].indexed && some.layers[1].index_layer == 0 && some.layers[3].index_layer == 2));
	const CacheLayers all(every), shared(some);
	CHECK((all.index_shape().n_layers == 2 && !all.shares_index()));
	CHECK((shared.index_shape().n_layers == 2 && shared.shares_index()));
	CHECK((shared.index(0) == 0 && shared.index(1) == 0 && shared.index(2) == 1 && shared.index(3) == 1));
	CHECK(shared.model_layers(some).back() == 2);

	const std::string types = "glm-dsa.attention.indexer.types";
	const auto with_type = [&](uint32_t layer, std::byte owns) {
		Bytes b = good;
		b[place_of(b, types) + types.size() + 4 + 4 + 8 + layer] = owns; // after types and length
		return b;
	};
	check_refused(with_type(0, std::byte(0)),
	              "indexer.types is 0; kvrun runs models whose first layer with attention has");
	check_refused(with_type(1, std::byte(1)), "tensor blk.1.indexer.attn_q_b.weight is missing");
	std::string other = types;
	other.back() = 'x';
	const Config by_tensors = config_of(renamed(good, types, other)); // files of GLM-5 do not have the key
	for (uint32_t l = 0; l < some.n_layers; ++l) CHECK(by_tensors.layers[l].index_layer == some.layers[l].index_layer);
	check_needed(good, "",
	             {"blk.2.indexer.attn_q_b.weight", "blk.2.indexer.attn_k.weight", "blk.2.indexer.proj.weight",
	              "blk.2.indexer.k_norm.weight", "blk.2.indexer.k_norm.bias"});
	check_refused(with_u32(good, "glm-dsa.attention.q_lora_rank", 0), "its indexer on a latent of queries");
	CHECK_FALSE(prediction_config(some).indexer.block);
}

TEST_CASE("indexer: of heads that choose blocks for KV heads") {
	const Bytes good = golden("minimax_m3");
	const Config c = config_of(good);
	const Indexer& x = c.indexer;
	CHECK((x.n_heads == 2 && x.dim == 16 && x.block == 1 && x.pool == 4 && x.local == 1 && x.most == 2));
	CHECK((!x.of_latent && x.neox && x.all_up_to() == 12));
	for (uint32_t l = 0; l < c.n_layers; ++l)
		CHECK((c.layers[l].indexed == (l > 0) && has_indexer(c, l) == (l > 0) && c.layers[l].clamped_mlp));
	const CacheLayers layers(c);
	const IndexShape& s = layers.index_shape();
	CHECK((s.n_layers == 2 && s.heads == 2 && s.from == 1 && s.chosen_block() == 4 && !layers.shares_index()));
	CHECK((s.keys(13) == 13 && s.blocks(0) == 0 && s.blocks(4) == 0 && s.blocks(5) == 1 && s.blocks(12) == 2));
	CHECK((!s.chooses(12) && s.chooses(13)));
	const KvPlan plan = with_index(make_plan(parse_policy("fp16"), layers.main_shape()), s);
	CHECK((plan.chosen == 12 && plan.choices == 2 && plan.chosen_from == 1 && plan.index_token_bytes == 2 * 16 * 2));
	const std::string key = "minimax-m3.attention.indexer.";
	check_refused(with_u32(good, key + "block_size", 3), "block_size is 3; kvrun runs powers of two from 2 to 256");
	check_refused(with_u32(good, key + "block_size", 512), "block_size is 512; kvrun runs 1 to 256");
	check_refused(with_u32(good, key + "local_blocks", 0), "local_blocks is 0; kvrun runs 1 to");
	check_refused(with_u32(good, key + "top_k", 1), "top_k is 1; kvrun runs more than 1 local blocks");
	check_refused(with_u32(good, key + "head_count", 4), "head_count is 4; kvrun runs one for each of 2 KV heads");
	check_needed(good, "",
	             {"blk.1.indexer.q_proj.weight", "blk.2.indexer.k_proj.weight", "blk.1.indexer.q_norm.weight",
	              "blk.2.indexer.k_norm.weight"});
}

TEST_CASE("indexer: of gated blocks, in layers between recurrent ones; and with RoPE on the last channels") {
	const Bytes gated = golden("glm5_next"), last = golden("hy_v4");
	const Config c = config_of(gated), other = config_of(last);
	const Indexer &x = c.indexer, &y = other.indexer;
	CHECK((x.of_latent && x.gated && x.block == 2 && x.most == 4 && !x.rope_last && x.norm_eps == 1e-6f));
	CHECK((y.of_latent && !y.gated && y.block == 1 && y.most == 8 && y.rope_last && y.norm_eps == other.norm_eps));
	CHECK(config_of(with_f32(last, "hy_v4.attention.layer_norm_rms_epsilon", 0.25f)).indexer.norm_eps == 0.25f);
	for (uint32_t l = 0; l < 4; ++l) {
		CHECK((attends(c.layers[l]) == (l % 2 == 1) && c.layers[l].indexed == attends(c.layers[l])));
		CHECK(has_indexer(c, l) == (l % 2 == 1));
		CHECK((other.layers[l].index_layer == std::min(l, 1u) && other.layers[l].sinks));
		CHECK((c.layers[l].recurrent.bound == (l % 2 ? 0.f : -2.f) && c.layers[l].limits_gate));
	}
	// The file has no rotated key; kvrun's has the fewest channels that a cache can have.
	const Latent& t = c.layers[1].latent;
	CHECK((t.no_rope && t.rope_dim == 8 && t.nope_dim == 16 && !c.ropes[0].rotates));
	CHECK(c.layers[1].attention_scale == 0.25f);
	CHECK_FALSE(other.layers[1].latent.no_rope);
	// The state behind the last block has keys and gates.
	const CacheLayers layers(c);
	CHECK((layers.index_shape().n_layers == 2 && layers.index_shape().block == 2));
	CHECK(layers.states().words[layers.index_state(3)] == 2 * 64);
	check_refused(with_u32(gated, "glm5-next.attention.indexer.kpool", 3),
	              "key glm5-next.attention.indexer.kpool is 3; kvrun runs powers of two from 2 to 32");
	check_refused(with_u32(gated, "glm5-next.attention.indexer.kpool", 4),
	              "tensor blk.1.indexer_compressor_ape.weight is (2, 64)");
	check_refused(with_u32(gated, "glm5-next.attention.indexer.top_k", 1), "at least one block of 2");
	check_needed(gated, "", {"blk.3.indexer_compressor_gate.weight", "blk.3.indexer_compressor_ape.weight"});
	const std::string tail = "glm5-next.attention.indexer.kpool_select_tail";
	Bytes headless = gated;
	headless[place_of(headless, tail) + tail.size() + 4] = std::byte(0); // behind the type
	check_refused(headless, "kpool_select_tail is false; kvrun always reads the tokens behind the last block");
}

TEST_CASE("indexer: heads whose last channels RoPE turns have these first on the device") {
	TensorSpec q{"q", 2 * 12, 4, true, 2};
	q.halves = q.swapped = q.flat = true, q.first = 8;
	const auto at = [&](uint32_t row) { return std::pair(row_place(q, 24, row).to, row_place(q, 24, row).n); };
	CHECK((at(0) == std::pair(4u, 8u) && at(7) == std::pair(11u, 1u) && at(8) == std::pair(0u, 4u)));
	CHECK((at(12) == std::pair(16u, 8u) && at(20) == std::pair(12u, 4u) && at(23) == std::pair(15u, 1u)));
}

TEST_CASE("indexer: its keys are counted by plans, per token, and not where a policy fetches") {
	const Config c = config_of(golden("qwen4exp_sparse"));
	const CacheLayers layers(c);
	const IndexShape& x = layers.index_shape();
	CHECK((x.n_layers == 1 && x.dim == 16 && x.block == 4 && x.most == 2));
	CHECK(x.token_bytes() == 16 * 2 / 4);
	CHECK(x.first == layers.states().first + layers.states().n_layers());
	CHECK((!x.chooses(11) && x.chooses(12)));
	CHECK((x.keys(3) == 0 && x.keys(12) == 3));
	const KvPlan f16 = plan_of_model(layers, parse_policy("fp16"), 64),
	             packed = plan_of_model(layers, parse_policy("rtn8"), 64);
	const KvPlan fetching = plan_of_model(layers, parse_policy("specache2,fetch_mode=sync"), 64);
	CHECK((f16.chosen == (x.most + 1) * x.block && !f16.has_positions()));
	CHECK((packed.chosen && packed.has_positions()));
	CHECK((!fetching.chosen && fetching.index_token_bytes == 0));
	CHECK(bytes_at(f16, 100).index == 100 * x.token_bytes());
	CHECK(bytes_at(fetching, 100).index == 0);
	KvPlan dense = packed;
	dense.chosen = 0;
	REQUIRE(packed.n_groups == 1); // layers share positions, which the first pays for
	CHECK(packed.table_bytes(0) - dense.table_bytes(0) == (128 * 4 + 16) * packed.n_heads);
	CHECK(packed.table_bytes(1) == dense.table_bytes(1));
}

TEST_CASE("indexer: sequences share pages of keys until they write to them") {
	const std::unique_ptr<Backend> be = make_cpu_backend();
	IndexShape shape;
	shape.n_layers = 2, shape.dim = 8, shape.block = 4, shape.most = 1;
	KvPool pool(*be, 2, size_t(1) << 20);
	const size_t page = size_t(shape.page_words()) * 4;
	constexpr uint32_t kPerPage = IndexShape::kPageKeys * 4; // tokens
	const auto same = [&](const KvPool::Addr& a, const KvPool::Addr& b) { return a.chunk == b.chunk && a.at == b.at; };
	{
		IndexSequence a(*be, pool, shape);
		a.make_room(3); // no whole block
		CHECK(pool.used_bytes() == 0);
		a.append(3);
		a.make_room(1);
		CHECK(pool.used_bytes() == 2 * page);
		a.append(1);
		const std::vector<uint16_t> keys = {1, 2, 3, 4, 5, 6, 7, 8, 9};
		a.fill(kPerPage, keys);
		CHECK(a.n_tokens() == kPerPage + 4);
		CHECK(pool.used_bytes() == 4 * page);
		auto b = a.fork();
		CHECK(pool.used_bytes() == 4 * page);
		CHECK(same(a.page(0, 1), b->page(0, 1)));
		b->make_room(3); // no new key: the page stays shared
		CHECK(same(a.page(0, 1), b->page(0, 1)));
		b->make_room(4);
		CHECK(pool.used_bytes() == 6 * page);
		CHECK(same(a.page(1, 0), b->page(1, 0)));
		CHECK_FALSE(same(a.page(1, 1), b->page(1, 1)));
		b->append(4);
		// The copy has the keys of the page.
		std::vector<std::byte> of_a, of_b;
		a.save_device([&](std::span<const std::byte> x) { of_a.insert(of_a.end(), x.begin(), x.end()); });
		b->save_device([&](std::span<const std::byte> x) { of_b.insert(of_b.end(), x.begin(), x.end()); });
		CHECK(of_a.size() == 4 * page);
		CHECK(of_a == of_b);
		IndexSequence back(*be, pool, shape);
		size_t at = 0;
		back.restore(a.n_tokens(), [&](std::span<std::byte> to) {
			std::copy_n(of_a.begin() + ptrdiff_t(at), to.size(), to.begin());
			at += to.size();
		});
		CHECK(at == of_a.size());
		std::vector<std::byte> again;
		back.save_device([&](std::span<const std::byte> x) { again.insert(again.end(), x.begin(), x.end()); });
		CHECK(again == of_a);
		back.reset();
		b->truncate(kPerPage);
		CHECK(b->n_tokens() == kPerPage);
		CHECK(pool.used_bytes() == 4 * page); // of a; b shares the first ones
		a.truncate(kPerPage + 100);           // longer than it is
		CHECK(a.n_tokens() == kPerPage + 4);
	}
	CHECK(pool.used_bytes() == 0);
}

TEST_CASE("indexer: a budget without room for its keys leaves the sequence as it was") {
	const std::unique_ptr<Backend> be = make_cpu_backend();
	IndexShape shape;
	shape.n_layers = 2, shape.dim = 8, shape.block = 4, shape.most = 1;
	const size_t page = size_t(shape.page_words()) * 4;
	KvPool pool(*be, 2, 3 * page);
	IndexSequence a(*be, pool, shape);
	a.make_room(4), a.append(4);
	CHECK_THROWS_WITH_AS(a.make_room(IndexShape::kPageKeys * 4), doctest::Contains("keys of the indexer"), Error);
	CHECK(a.n_tokens() == 4);
	a.truncate(4); // gives back what make_room() took
	CHECK(pool.used_bytes() == 2 * page);
}

TEST_CASE("indexer: choices of a prompt that layers share are counted by plans, and bound the rows of a block") {
	const auto fixed = [](const char* name) {
		return model_memory(open_model(std::string("synth:") + name).config, 0, 64).fixed_bytes;
	};
	// layers 3 to 5 attend to what layer 2 has chosen
	const uint64_t shared = fixed("glm-5.2,layers=8,experts=8,used=2:q4_k"),
	               apart = fixed("glm-5.2,layers=3,experts=8,used=2:q4_k");
	CHECK(shared == apart + PromptMemory::kChoiceBytes);
	CHECK(PromptMemory::rows_that_choose(IndexStep::words(1 << 20)) == 512);
	CHECK(PromptMemory::rows_that_choose(IndexStep::words(4096)) == 131072);
}

TEST_CASE("indexer: positions of the latest tokens of a text, around images") {
	RopeAxes axes;
	CHECK_FALSE(axes);
	TextPositions plain(axes);
	const std::vector<uint32_t> text = {5, 6, 7, 8, 9};
	CHECK(plain.latest(text, 1) == Position{4, 4, 4, 4});
	CHECK(plain.latest(text, 5) == Position{0, 0, 0, 0});
	axes.time = 2, axes.line = axes.column = 1;
	REQUIRE(axes);
	TextPositions lines(axes);
	std::vector<uint32_t> with_image = {
	    5, 6, kFirstImageRow | kLineMark, kFirstImageRow + 1, (kFirstImageRow + 2) | kLineMark, 7, 8};
	std::vector<Position> all;
	TextPositions(axes).append({}, with_image, all);
	for (uint32_t n = 1; n <= with_image.size(); ++n) CHECK(lines.latest(with_image, n) == all[with_image.size() - n]);
	with_image.resize(4); // shorter than what was counted
	CHECK(lines.latest(with_image, 1) == all[3]);
	for (uint32_t i = 0; i < 100; ++i) with_image.push_back(9);
	all.clear();
	TextPositions(axes).append({}, with_image, all);
	for (const uint32_t n : {1u, 17u, TextPositions::kLatest})
		CHECK(lines.latest(with_image, n) == all[with_image.size() - n]);
}
