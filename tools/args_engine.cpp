// Options of every command that runs a model: file, device, context and cache; and opening what they name.
#include "tools/args_engine.h"
#include "engine/core/utf8.h"
#include "tools/env.h"
#include "tools/terminal.h"
#include <algorithm>

namespace kvrun {

void add_engine_options(CLI::App& app, EngineArgs& a) {
	add_text(app, "-m,--model", a.model, "FILE", "read the model from this .gguf file (the first part of a split one)")
	    ->required();
	add_text(app, "--device", a.device, "NAME",
	         "run on this device: its index or part of its name in `kvrun devices`, or cpu [best; a CPU only if there "
	         "is no GPU]");
	add_integer(app, "-c,--ctx-size", a.ctx, 0, 1 << 24,
	            "longest sequence in tokens; 0: what fits, at most the trained context [0]");
	add_integer(app, "--ubatch-size", a.ubatch, 1, 65536,
	            "(-ub) prompt tokens that go through a layer together; changes speed only [512]");
	add_text(app, "--kv", a.kv, "POLICY", "keep the KV cache this way; see `kvrun plan --help` [fp16]");
	add_text(
	    app, "--cache-type-k", a.type_k, "TYPE",
	    "(-ctk) keys as f16, q8, q4, q2 or q1 (q8_0, q4_0 too), rounded per token; the short form of a policy [f16]");
	add_text(app, "--cache-type-v", a.type_v, "TYPE", "(-ctv) the same for values [f16]");
	add_bytes(app, "--kv-budget", a.kv_budget,
	          "let the KV cache take this much memory, as in 512M or 2G; 0: what is free [0]");
	app.add_flag("--check", a.check,
	             "run every operation on the cpu backend too and stop at the first that differs (slow)");
}

std::vector<KvPolicy> cache_policies(const EngineArgs& a) {
	const bool types = !a.type_k.empty() || !a.type_v.empty();
	if (types && !a.kv.empty())
		fail(Code::Invalid, "--kv {} and -ctk/-ctv say the same thing twice; give one", one_line(a.kv));
	if (types) return {policy_from_types(a.type_k.empty() ? "f16" : a.type_k, a.type_v.empty() ? "f16" : a.type_v)};
	return parse_policies(a.kv.empty() ? "fp16" : a.kv);
}

KvPolicy cache_policy(const EngineArgs& a) {
	const std::vector<KvPolicy> all = cache_policies(a);
	return all.size() == 1 ? all.front() : parse_policy(a.kv); // which says what is wrong with a list
}

BackendOptions backend_options(const std::string& device, bool check) {
	BackendOptions o = options_from_environment();
	if (!device.empty()) o.device = device;
	o.check |= check;
	return o;
}

SessionOptions session_options(const EngineArgs& a, const KvPolicy& policy, uint64_t seed) {
	return {.kv = policy, .ctx = uint32_t(a.ctx), .seed = seed};
}

std::unique_ptr<Engine> open_engine(const EngineArgs& a, uint32_t max_rows) {
	EngineOptions o;
	o.model = a.model;
	o.backend = backend_options(a.device, a.check);
	o.ubatch = uint32_t(a.ctx ? std::min(a.ctx, a.ubatch) : a.ubatch);
	o.max_rows = max_rows;
	o.kv_budget = a.kv_budget;
	Progress progress;
	auto engine = Engine::open(o, [&](uint64_t done, uint64_t total) {
		if (done < total)
			progress.show("loading", double(done) / double(total));
		else
			progress.clear(); // warnings that follow begin on an empty line
	});
	progress.clear();
	const DeviceInfo d = engine->backend().info();
	if (d.is_cpu)
		say_stats(fmt::format("running on a CPU device: {}, driver {}", one_line(d.name), one_line(d.driver)));
	return engine;
}

} // namespace kvrun
