// Which weights lie in host memory: the planner's order, llama.cpp's options, budgets, and fits.
#include "backends/weight_rows.h"
#include "engine/run/tuning_file.h"
#include "engine/run/weight_fit.h"
#include "engine/run/weight_ring.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

struct Shape {
	explicit Shape(const std::string& name) : file(Gguf::open(name)), config(read_config(file)) {}
	WeightPlan plan() const { return {file, config}; }
	WeightPlan placed(const WeightOptions& o) const {
		WeightPlan p = plan();
		p.apply(o);
		return p;
	}
	// On a card with this much free memory.
	WeightPlan fitted(uint64_t free_bytes, const FitGoal& goal, WeightOptions o = {}) const {
		return place_weights(file, config, device_row_bytes, o, goal, {"card", free_bytes});
	}
	Gguf file;
	Config config;
};

const Shape& mixture() {
	static const Shape s("synth:qwen3-30b-a3b:q4_k");
	return s;
}
const Shape& dense() {
	static const Shape s("synth:llama-3.1-8b:q4_k");
	return s;
}
std::vector<uint32_t> layers_in_host(const WeightPlan& p, WeightPart part) {
	std::vector<uint32_t> out;
	for (const WeightGroup& g : p.groups())
		if (g.in_host && g.part == part) out.push_back(g.layer);
	std::ranges::sort(out);
	return out;
}
std::vector<uint32_t> first(uint32_t from, uint32_t to) {
	std::vector<uint32_t> out;
	for (; from < to; ++from) out.push_back(from);
	return out;
}

constexpr uint64_t kGiB = uint64_t(1) << 30;

} // namespace

TEST_CASE("weight plan: what a token reads least of leaves first") {
	const WeightPlan p = mixture().plan();
	CHECK(p.host_bytes() == 0);
	CHECK(p.host_text() == "");
	REQUIRE(p.groups().size() == 1 + 48 + 48 + 1); // no dense MLP
	CHECK(p.groups()[0].part == WeightPart::Embedding);
	for (uint32_t l = 0; l < 48; ++l) { // after that experts, from the first layer on
		CHECK(p.groups()[1 + l].part == WeightPart::Experts);
		CHECK(p.groups()[1 + l].layer == l);
		CHECK(p.groups()[1 + l].token_bytes * 16 == p.groups()[1 + l].bytes); // 8 of 128
		CHECK(p.groups()[49 + l].part == WeightPart::Attention);
		CHECK(p.groups()[49 + l].layer == 47 - l);
	}
	CHECK(p.groups().back().part == WeightPart::Output);
	uint64_t bytes = p.fixed_bytes();
	std::vector<size_t> tensors;
	for (const WeightGroup& g : p.groups()) {
		bytes += g.bytes;
		tensors.insert(tensors.end(), g.tensors.begin(), g.tensors.end());
	}
	CHECK(bytes == p.bytes());
	std::ranges::sort(tensors);
	CHECK(std::ranges::adjacent_find(tensors) == tensors.end()); // each in one group

	const WeightPlan d = dense().plan();
	REQUIRE(d.groups().size() == 1 + 32 + 32 + 1);
	CHECK(d.groups()[1].part == WeightPart::Mlp);
	CHECK(d.groups()[1].layer == 31);
	CHECK(d.groups()[33].part == WeightPart::Attention);
	// all but the embedding, of which one row counts
	const WeightGroup& embed = d.groups()[0];
	CHECK(d.device_token_bytes() == d.bytes() - embed.bytes + embed.token_bytes);
}

TEST_CASE("weight plan: an embedding that is the output projection, too, leaves last") {
	const Shape tied(KVRUN_SOURCE_DIR "/tests/golden/tiny/llama_tied.gguf");
	const WeightPlan p = tied.plan();
	CHECK(p.groups().back().part == WeightPart::Output);
	CHECK(std::ranges::none_of(p.groups(), [](const WeightGroup& g) { return g.part == WeightPart::Embedding; }));
	const GgufTensor& t = *tied.file.find_tensor("token_embd.weight");
	CHECK(p.groups().back().token_bytes == t.bytes / t.rows() * (t.rows() + 1)); // a row is also looked up
}

TEST_CASE("weight plan: the table of inputs of layers leaves first; a token reads a row for each layer") {
	const Shape e4b("synth:gemma-4-e4b:q4_k");
	const WeightPlan p = e4b.plan();
	const WeightGroup& table = p.groups().front();
	CHECK(table.part == WeightPart::Embedding);
	CHECK(table.tensors.size() == 1);
	const GgufTensor& t = *e4b.file.find_tensor("per_layer_token_embd.weight");
	CHECK(t.cols() == 42 * 256);
	CHECK(table.token_bytes == t.bytes / t.rows());
	const GgufTensor& embed = *e4b.file.find_tensor("token_embd.weight"); // each layer also looks up a row
	CHECK(p.groups().back().token_bytes == embed.bytes / embed.rows() * (embed.rows() + 43));
}

TEST_CASE("weight plan: experts of values leave with those of MLPs; a token reads its own of both") {
	const Shape horizon(KVRUN_SOURCE_DIR "/tests/golden/tiny/k2_horizon_values.gguf");
	const WeightPlan p = horizon.plan();
	const auto group = std::ranges::find(p.groups(), WeightPart::Experts, &WeightGroup::part);
	REQUIRE(group != p.groups().end());
	uint64_t bytes = 0;
	for (const char* what : {"ffn_gate", "ffn_up", "ffn_down"})
		bytes += horizon.file.find_tensor(fmt::format("blk.1.{}_exps.weight", what))->bytes * 3 / 8;
	bytes += horizon.file.find_tensor("blk.1.attn_v_exps.weight")->bytes * 2 / 6;
	CHECK((group->tensors.size() == 4 && group->token_bytes == bytes));
}

TEST_CASE("weight plan: -ngl, --cpu-moe and --n-cpu-moe mean what they mean in llama.cpp") {
	const WeightPlan none = dense().placed({.gpu_layers = 0});
	CHECK(none.device_bytes() == none.fixed_bytes());
	CHECK(none.host_text() == "embedding, MLP of 32 layers, attention of 32 layers, output");
	const WeightPlan some = dense().placed({.gpu_layers = 12}); // the last layers stay
	CHECK(layers_in_host(some, WeightPart::Mlp) == first(0, 20));
	CHECK(layers_in_host(some, WeightPart::Attention) == first(0, 20));
	CHECK(layers_in_host(some, WeightPart::Output).size() == 1);
	CHECK(dense().placed({.gpu_layers = 32}).host_text() == "embedding, output");
	CHECK(dense().placed({.gpu_layers = 33}).host_bytes() == 0);
	CHECK(dense().placed({.gpu_layers = 99}).host_bytes() == 0);
	CHECK(dense().placed({.cpu_moe_layers = UINT32_MAX}).host_bytes() == 0); // a dense model has no experts

	CHECK(mixture().placed({.cpu_moe_layers = UINT32_MAX}).host_text() == "experts of 48 layers");
	const WeightPlan moe = mixture().placed({.cpu_moe_layers = 7});
	CHECK(moe.host_text() == "experts of 7 layers");
	CHECK(layers_in_host(moe, WeightPart::Experts) == first(0, 7));
	CHECK(moe.in_host().size() == tensor_specs(mixture().config).size());
	CHECK(std::ranges::count(moe.in_host(), true) == 7 * 3); // gate, up, down
}

TEST_CASE("weight plan: a budget is kept with as little in host memory as that takes; one that cannot be is refused") {
	const WeightPlan all = mixture().plan();
	for (const uint64_t budget : {all.bytes(), 6 * kGiB, 1 * kGiB, all.fixed_bytes()}) {
		const WeightPlan p = mixture().placed({.budget = budget});
		CHECK(p.device_bytes() <= budget);
		const auto last = std::ranges::find(p.groups(), false, &WeightGroup::in_host);
		CHECK(std::none_of(last, p.groups().end(), [](const WeightGroup& g) { return g.in_host; }));
		if (last != p.groups().begin()) CHECK(p.device_bytes() + std::prev(last)->bytes > budget);
	}
	CHECK_THROWS_WITH_AS(mixture().placed({.budget = all.fixed_bytes() - 1}),
	                     doctest::Contains("norms, biases and routers"), Error);
}

TEST_CASE("weight fit: as much leaves as the asked context under the asked policy needs") {
	const FitGoal f16{{parse_policy("fp16")}, 32768}, packed{{parse_policy("kivi2")}, 32768};
	CHECK(mixture().fitted(64 * kGiB, f16).host_bytes() == 0);
	const WeightPlan p = mixture().fitted(8 * kGiB, f16), q = mixture().fitted(8 * kGiB, packed);
	CHECK(p.host_bytes() > 8 * kGiB);
	CHECK(q.host_bytes() < p.host_bytes()); // a smaller cache leaves room for more weights
	const auto cache = [](const WeightPlan& w) {
		return memory_account(model_memory(mixture().config, w, 512), fit_memory(8 * kGiB), 32768).cache;
	};
	const CacheLayers layers(mixture().config);
	const uint64_t need = bytes_at(plan_of_model(layers, f16.kv[0], 32768), 32768).total();
	CHECK(cache(p) >= need);
	WeightPlan one_less = mixture().plan(); // the groups before this one are not enough
	for (size_t i = 0; p.groups()[i + 1].in_host; ++i) one_less.move_next();
	one_less.set_ring(one_less.ring_within(kGiB));
	CHECK(one_less.host_bytes() < p.host_bytes());
	CHECK(cache(one_less) < need);
	// several policies: the largest counts; with a budget for caches: the budget
	CHECK(mixture().fitted(8 * kGiB, {{packed.kv[0], f16.kv[0]}, 32768}).host_bytes() == p.host_bytes());
	CHECK(mixture().fitted(8 * kGiB, {{f16.kv[0]}, 32768, 1 * kGiB}).host_bytes() < p.host_bytes());
	// auto takes a smaller cache before moving weights
	CHECK(mixture().fitted(18 * kGiB, {{parse_policy("auto")}, 65536}).host_bytes() == 0);
	CHECK(mixture().fitted(18 * kGiB, {{parse_policy("fp16")}, 65536}).host_bytes() > 0);
	CHECK(mixture().fitted(8 * kGiB, f16, {.fit = false}).host_bytes() == 0);
	// without a cache, the weights alone decide
	const Shape scans("synth:falcon-mamba-7b:q4_k");
	for (const char* kv : {"fp16", "auto"}) {
		const FitGoal goal{{parse_policy(kv)}, 4096};
		CHECK(scans.fitted(8 * kGiB, goal).host_bytes() == 0);
		const WeightPlan part = scans.fitted(2 * kGiB, goal);
		CHECK(part.host_bytes() > 0);
		CHECK(part.device_bytes() < 2 * kGiB);
	}
}

TEST_CASE(
    "weight fit: auto weighs bits of the cache against weights on the device, by rates and by the expected loss") {
	const auto weighed = [](uint64_t memory, double bus, double bandwidth, std::string* trade = nullptr) {
		const FitGoal goal{{parse_policy("auto")}, 32768, 0, 512, bus, bandwidth};
		return place_weights(mixture().file, mixture().config, device_row_bytes, {}, goal, {"card", memory}, trade);
	};
	const auto fitted = [](uint64_t memory, const char* kv) {
		return mixture().fitted(memory, {{parse_policy(kv)}, 32768});
	};
	std::string trade = "before";
	const WeightPlan usual = weighed(8 * kGiB, 0, 0, &trade);
	CHECK(usual.host_bytes() < fitted(8 * kGiB, "fp16").host_bytes());
	CHECK(usual.host_bytes() >= fitted(8 * kGiB, "turbo2/1").host_bytes());
	CHECK(trade.starts_with("turbo"));
	CHECK(trade.find(" GiB against fp16: experts of ") != std::string::npos);
	CHECK(trade.find(" more layers stay on the device, ") != std::string::npos);
	// by any rates: the least log(time) + loss / 0.1
	const CacheLayers layers(mixture().config);
	std::vector<uint64_t> chosen;
	for (const auto& [bus, bandwidth] : {std::pair(1e12, 3e11), {25e9, 3e11}, {12e9, 1e12}, {1e6, 3e11}, {1e12, 1e9}}) {
		double least = 1e30;
		uint64_t best = 0;
		for (const CacheStep& step : auto_steps(parse_policy("auto"), layers.main_shape(), nullptr)) {
			const WeightPlan p = mixture().fitted(8 * kGiB, {{step.policy}, 32768});
			const uint64_t cache = bytes_at(plan_of_model(layers, step.policy, 32768), 32768).total();
			const double cost =
			    std::log(double(p.host_token_bytes()) / bus + double(p.device_token_bytes() + cache) / bandwidth) +
			    10 * step.kld;
			if (cost < least) least = cost, best = p.host_bytes();
		}
		chosen.push_back(best);
		CHECK(weighed(8 * kGiB, bus, bandwidth).host_bytes() == best);
	}
	CHECK(*std::ranges::min_element(chosen) < *std::ranges::max_element(chosen)); // rates matter
	// f16 moves nothing
	trade = "before";
	CHECK(weighed(64 * kGiB, 0, 0, &trade).host_bytes() == 0);
	CHECK(trade == "before");
	// time is bytes by rates
	CHECK(step_seconds(usual, 1000, 2, 4) ==
	      doctest::Approx(double(usual.host_token_bytes()) / 2 + double(usual.device_token_bytes() + 1000) / 4));
}

TEST_CASE("weight fit: the ring has two slots for the largest layer, if these are an eighth of the memory at most") {
	const auto layer_bytes = [](const Shape& s, bool whole) { // of the largest layer, experts alone or all of it
		std::vector<uint64_t> n(s.config.n_layers);
		const WeightPlan plan = s.plan();
		for (const WeightGroup& g : plan.groups())
			if (g.part == WeightPart::Experts ||
			    (whole && (g.part == WeightPart::Mlp || g.part == WeightPart::Attention)))
				n[g.layer] += g.bytes;
		return *std::ranges::max_element(n);
	};
	const auto about = [](uint64_t slot, uint64_t layer) { return slot >= layer && slot < layer + 8192; };
	const WeightPlan moe = mixture().placed({.cpu_moe_layers = 7});
	CHECK(moe.ring().bytes() == 0); // only place_weights() knows the memory
	CHECK(moe.ring_within(kGiB).slots == 2);
	CHECK(about(moe.ring_within(kGiB).slot_bytes, layer_bytes(mixture(), false)));
	CHECK(mixture().placed({.cpu_moe_layers = 1}).ring_within(kGiB).slots == 1);
	CHECK(mixture().plan().ring_within(kGiB).bytes() == 0);
	const WeightPlan all = dense().placed({.gpu_layers = 0});
	CHECK(about(all.ring_within(kGiB).slot_bytes, layer_bytes(dense(), true)));
	// less memory: parts of a layer; then one slot for one tensor; then nothing
	uint64_t bytes = UINT64_MAX;
	for (uint64_t most = kGiB; most > 1 << 20; most = most * 3 / 4) {
		const RingSize r = all.ring_within(most);
		CHECK(r.bytes() <= most);
		CHECK(r.bytes() <= bytes);
		bytes = r.bytes();
	}
	CHECK(bytes == 0);
	const Shape oss("synth:gpt-oss-120b:mxfp4"); // a tensor of a layer's experts has half a GiB
	CHECK(oss.placed({.cpu_moe_layers = 36}).ring_within(kGiB).slots == 1);
	CHECK(mixture().fitted(8 * kGiB, {}).ring().bytes() <= kGiB);
	CHECK(mixture().fitted(8 * kGiB, {}).ring().bytes() > kGiB / 4);
	// nor more than an eighth of what is in host memory
	const WeightPlan little = mixture().fitted(16 * kGiB, {});
	CHECK(little.host_bytes() < 3 * kGiB);
	CHECK(little.ring().bytes() > 0);
	CHECK(little.ring().bytes() <= little.host_bytes() / 8);
	CHECK(mixture().fitted(64 * kGiB, {}).ring().bytes() == 0);
}

TEST_CASE("weight ring: how often the kernels of a prompt read a weight") {
	Experts none, some;
	some.n = 128, some.used = 8;
	CHECK(block_reads(none, 128, 512).dense == 1);
	CHECK(block_reads(none, 129, 512).dense == 2);
	CHECK(block_reads(none, 4096, 512).dense == 32);
	CHECK(block_reads(none, 100, 32).dense == 4); // slices of 32, 32, 32 and 4 rows
	CHECK(block_reads(none, 512, 512).experts == 0);
	CHECK(block_reads(some, 1, 512).experts == doctest::Approx(8. / 128));
	CHECK(block_reads(some, 512, 512).experts == doctest::Approx(1));   // each expert has about 32 rows: one tile
	CHECK(block_reads(some, 4096, 512).experts == doctest::Approx(8));  // in each slice
	CHECK(block_reads(some, 2048, 2048).experts == doctest::Approx(2)); // two tiles each
}

TEST_CASE("weight fit: devices that share memory, read none, or have too little of it") {
	const auto place = [](const WeightOptions& o, const DeviceRoom& room) {
		return place_weights(mixture().file, mixture().config, device_row_bytes, o, {}, room);
	};
	CHECK(place({.gpu_layers = 0}, {"igpu", 8 * kGiB, true, 0}).host_bytes() == 0);
	CHECK(place({}, {"card", 8 * kGiB, false, 0}).host_bytes() == 0);
	CHECK_THROWS_WITH_AS(place({.gpu_layers = 0}, {"card", 8 * kGiB, false, 0}),
	                     doctest::Contains("card reads no weights in host memory"), Error);
	CHECK_THROWS_WITH_AS(place({}, {"card", 8 * kGiB, false, 4 * kGiB}),
	                     doctest::Contains("in host memory, which has 4.0 GiB for card"), Error);
	const WeightPlan p = place({}, {"card", 8 * kGiB});
	const std::string text = weights_text(p, "card");
	CHECK(text.starts_with("weights: "));
	CHECK(text.find(" GiB on card, ") != std::string::npos);
	CHECK(text.find("in host memory, read over the bus; prompts copy them through ") != std::string::npos);
	const WeightPlan several = place({}, {"cards", 8 * kGiB, false, UINT64_MAX, 2});
	CHECK(several.host_bytes() > 0);
	CHECK(several.ring().slots == 4); // two on each device
	CHECK(several.ring().bytes() <= kGiB);
	CHECK(weights_text(place({.ring = 0}, {"card", 8 * kGiB}), "card").ends_with("read over the bus"));
}
