// Options of every command that runs a model: file, device, context and cache; opening the model on the device.
#include "tools/args_engine.h"
#include "backends/split_devices.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "tools/args_cache.h"
#include "tools/env.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>

namespace kvrun {

void add_engine_options(Command& c, EngineArgs& a, bool several_policies) {
	add_model_options(c, a, "the longest sequence in tokens");
	add_check(c, a.check);
	add_cache_policy(c, a.kv, several_policies ? kPolicies : kPolicy,
	                 several_policies
	                     ? "policies of the KV cache, compared with each other; kvrun help plan lists them [fp16]"
	                     : "policy of the KV cache; kvrun help plan lists them [fp16]");
	add_kv_budget(c, a.kv_budget, "the KV cache");
	add_host_memory(c, a);
}

std::vector<KvPolicy> cache_policies(const EngineArgs& a) { return parse_policies(a.kv.empty() ? "fp16" : a.kv); }

KvPolicy cache_policy(const EngineArgs& a) {
	const std::vector<KvPolicy> all = cache_policies(a);
	return all.size() == 1 ? all.front() : parse_policy(a.kv); // whose error says what is wrong with a list
}

BackendOptions backend_options(const std::string& device, bool check) {
	BackendOptions o = options_from_environment();
	if (!device.empty()) o.device = device;
	o.check |= check;
	return o;
}

BackendOptions backend_options(const ModelArgs& a) {
	BackendOptions o = backend_options(a.device, a.check);
	o.split = a.split;
	return o;
}

WeightOptions weight_options(const WeightArgs& a) {
	return {.budget = a.budget,
	        .gpu_layers = a.layers(),
	        .cpu_moe_layers = a.moe_layers(),
	        .fit = !a.no_fit,
	        .host_share = a.host_share};
}

SessionOptions session_options(const EngineArgs& a, const KvPolicy& policy, uint64_t seed) {
	return {.kv = policy, .ctx = uint32_t(a.ctx), .seed = seed};
}

static LoadProgress shown(Progress& progress) {
	return [&progress](uint64_t done, uint64_t total) {
		if (done < total)
			progress.show("loading", double(done) / double(total));
		else
			progress.clear(); // so that later warnings begin on an empty line
	};
}

std::unique_ptr<DraftModel> open_draft_model(const EngineArgs& a, const DraftArgs& draft) {
	if (!draft.has_model() || draft.is_of_model()) return nullptr;
	EngineOptions o;
	o.model = draft.what;
	o.backend = first_device(backend_options(a));
	o.ubatch = a.ubatch_within_ctx();
	o.max_rows = DraftModel::kRows;
	Progress progress;
	return std::make_unique<DraftModel>(o, open_model(a.model).tokenizer, uint32_t(a.ctx), shown(progress));
}

// -v: what was loaded, where it lies, and which kernels the device has.
static void log_engine(const Engine& e, Backend& b, KvPool& pool, double seconds) {
	if (!logs_at(1)) return;
	const DeviceInfo d = b.info();
	const auto size = [](uint64_t bytes) { return human_bytes(double(bytes)); };
	log_at(1, "# loaded in {:.2f} s: {}, {}, {} layers, vocabulary of {}, trained for {} tokens", seconds,
	       one_line(e.config().name), one_line(e.config().arch), e.config().n_layers, e.config().vocab,
	       e.config().max_seq);
	log_at(1, "# memory: weights {}{}, activations {}, at most {} for caches", size(e.weight_bytes()),
	       e.host_weight_bytes() ? fmt::format(" ({} of them on the host)", size(e.host_weight_bytes())) : "",
	       size(e.activation_bytes()), size(pool.budget_bytes()));
	log_at(1, "# device: {} ({}, {}), {} of {} free before; {}, {}", one_line(d.name), d.type, one_line(d.driver),
	       size(d.free_bytes), size(d.memory_bytes), d.half_matmul ? "matrix units in f16" : "multiplies in f32",
	       d.int8_matmul || d.int8_attend ? "integer dot products" : "no integer dot products");
}

void log_session(const Session& s) {
	if (!logs_at(1)) return;
	const KvPlan& plan = s.plan();
	log_at(1, "# cache: {}, up to {} tokens, which take {} ({:.2f} bits per element; f16: {})",
	       one_line(s.policy_text()), s.ctx(), human_bytes(double(bytes_at(plan, s.ctx()).total())),
	       stored_bits(plan, s.ctx()), human_bytes(double(plan.f16_bytes(s.ctx()))));
}

std::unique_ptr<Engine> open_engine(const EngineArgs& a, uint32_t max_rows, const DraftArgs& draft) {
	EngineOptions o;
	o.mtp = draft.predicts();
	if (draft.is_of_model()) o.draft_file = draft.what;
	o.model = a.model;
	o.loras = parse_loras(lora_text(a.loras));
	o.mmproj = a.vision.mmproj;
	o.image_rows = a.vision.rows();
	o.backend = backend_options(a);
	o.backend.transfers = std::ranges::any_of(cache_policies(a), [](const KvPolicy& p) { return p.fetch > 0; });
	o.ubatch = a.ubatch_within_ctx();
	o.max_rows = max_rows;
	o.kv_budget = a.kv_budget;
	o.host_budget = a.host_budget;
	o.offload_dir = a.offload_dir;
	o.weights = weight_options(a.weights);
	o.fit_ctx = uint32_t(a.ctx);
	o.fit_kv = cache_policies(a);
	Progress progress;
	const auto start = std::chrono::steady_clock::now();
	auto engine = Engine::open(o, shown(progress));
	progress.clear();
	log_engine(*engine, engine->backend(), engine->pool(), seconds_since(start));
	if (!engine->weights_text().empty()) say_stats(engine->weights_text());
	if (!engine->weights_trade().empty()) say_stats(fmt::format("auto: {}", engine->weights_trade()));
	const DeviceInfo d = engine->backend().info();
	if (d.is_cpu)
		say_stats(fmt::format("running on a CPU device: {}, driver {}", one_line(d.name), one_line(d.driver)));
	return engine;
}

} // namespace kvrun
