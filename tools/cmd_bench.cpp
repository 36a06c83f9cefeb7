// kvrun bench: tokens per second of prompts and of generation at given depths, and where the device's time goes.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

namespace kvrun {
namespace {

struct BenchArgs {
	EngineArgs engine;
	std::vector<int64_t> prompt = {512}, generate = {128}, depth = {0}; // tokens
	int64_t repeat = 5;                                                 // timed runs of each test
	std::string output = "md";                                          // md or json
	bool ops = false;                                                   // device time per op
};
struct Test {
	uint32_t prompt = 0, generate = 0; // tokens; exactly one is not 0
	uint32_t depth = 0;                // tokens in the cache before
	std::string name() const {
		const std::string s = prompt ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generate);
		return depth ? fmt::format("{} @ d{}", s, depth) : s;
	}
};
struct Measured {
	std::string policy;
	Test test;
	std::vector<double> tok_s; // (repeat) in the order of the runs
	size_t kv_bytes = 0;       // cache at the end of a run
	double peak = 0;           // bytes per second of the device, 0: unknown
	std::vector<OpTime> ops;   // of one run, if asked for
	double median() const {
		std::vector<double> s(tok_s);
		std::sort(s.begin(), s.end());
		const size_t h = s.size() / 2;
		return s.size() % 2 ? s[h] : (s[h - 1] + s[h]) / 2;
	}
	double min() const { return *std::min_element(tok_s.begin(), tok_s.end()); }
	double max() const { return *std::max_element(tok_s.begin(), tok_s.end()); }
};

constexpr const char* kJsonKeys =
    "JSON: version, model {file, architecture, name, weight_bytes}, device {name, driver, type, cpu,\n"
    "  peak_bytes_per_s (0: unknown)}, ubatch, results [{test, kv, n_prompt, n_gen, n_depth, kv_bytes,\n"
    "  tok_s_median, tok_s_min, tok_s_max, tok_s [..], and with --ops: ops [{op, calls, ms, bytes,\n"
    "  bytes_per_s}]}]. Keys stay; new ones may come.";

std::vector<Test> tests_of(const BenchArgs& a) {
	std::vector<Test> out;
	for (const int64_t d : a.depth) {
		for (const int64_t p : a.prompt)
			if (p > 0) out.push_back({uint32_t(p), 0, uint32_t(d)});
		for (const int64_t n : a.generate)
			if (n > 0) out.push_back({0, uint32_t(n), uint32_t(d)});
	}
	if (out.empty()) fail(Code::Invalid, "-p and -n are both 0: nothing to measure");
	return out;
}

// Tokens drawn evenly from the vocabulary: the same ones every time.
std::vector<uint32_t> some_tokens(const Engine& e, size_t n) {
	std::mt19937 rng(1);
	std::vector<uint32_t> out(n);
	for (uint32_t& t : out) t = uint32_t(rng() % e.config().vocab);
	return out;
}

// One run of a test on an empty session: seconds of the part that counts.
double run_once(Session& s, const Test& t, const std::vector<uint32_t>& tokens, bool time_ops) {
	Backend& be = s.engine().backend();
	s.reset();
	const std::span<const uint32_t> all(tokens);
	if (t.depth) s.prefill(all.first(t.depth));
	if (time_ops) {
		be.time_ops(true);
		be.op_times(/*reset=*/true);
	}
	const auto start = std::chrono::steady_clock::now();
	if (t.prompt) s.prefill(all.subspan(t.depth, t.prompt));
	for (uint32_t i = 0; i < t.generate; ++i) s.decode(tokens[t.depth + i]);
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Measured measure(Engine& e, const Test& t, const BenchArgs& a) {
	Measured m{e.plan().policy.text, t, {}, 0, e.backend().info().peak_bytes_per_s, {}};
	const uint32_t n = t.prompt + t.generate;
	const std::vector<uint32_t> tokens = some_tokens(e, size_t(t.depth) + n);
	Session s(e);
	Test warm_up = t; // pipelines, clocks, caches; a few steps of a generation do
	warm_up.generate = std::min(t.generate, 4u);
	run_once(s, warm_up, tokens, false);
	for (int64_t i = 0; i < a.repeat; ++i) m.tok_s.push_back(n / run_once(s, t, tokens, false));
	m.kv_bytes = s.kv_bytes().total();
	if (a.ops) { // a run of its own: timestamps around every dispatch take time themselves
		run_once(s, t, tokens, true);
		m.ops = e.backend().op_times(/*reset=*/true);
		e.backend().time_ops(false);
		std::sort(m.ops.begin(), m.ops.end(),
		          [](const OpTime& x, const OpTime& y) { return x.ms != y.ms ? x.ms > y.ms : x.op < y.op; });
	}
	return m;
}

nlohmann::ordered_json to_json(const Measured& m) {
	nlohmann::ordered_json j = {
	    {"test", m.test.name()},   {"kv", m.policy},         {"n_prompt", m.test.prompt},  {"n_gen", m.test.generate},
	    {"n_depth", m.test.depth}, {"kv_bytes", m.kv_bytes}, {"tok_s_median", m.median()}, {"tok_s_min", m.min()},
	    {"tok_s_max", m.max()},    {"tok_s", m.tok_s}};
	for (const OpTime& o : m.ops)
		j["ops"].push_back({{"op", o.op},
		                    {"calls", o.calls},
		                    {"ms", o.ms},
		                    {"bytes", o.bytes},
		                    {"bytes_per_s", o.ms > 0 ? o.bytes / o.ms * 1e3 : 0}});
	return j;
}

void print_ops(const Measured& m) {
	write_stdout(
	    fmt::format("\n{}, kv {}: one run, device time\n\n| op | calls | ms | share | bytes | GB/s | of peak |\n"
	                "|---|---:|---:|---:|---:|---:|---:|\n",
	                m.test.name(), one_line(m.policy)));
	double all = 0;
	for (const OpTime& o : m.ops) all += o.ms;
	for (const OpTime& o : m.ops) {
		const double rate = o.ms > 0 ? o.bytes / o.ms * 1e3 : 0;
		write_stdout(fmt::format("| {} | {} | {:.3f} | {:.1f} % | {} | {:.2f} | {} |\n", o.op, o.calls, o.ms,
		                         all > 0 ? o.ms / all * 100 : 0, human_bytes(o.bytes), rate / 1e9,
		                         m.peak > 0 ? fmt::format("{:.1f} %", rate / m.peak * 100) : "-"));
	}
	if (m.ops.empty()) write_stdout("| - | | | | | | |\n\nThis device gives no timestamps.\n");
}

void print_markdown(const std::vector<Measured>& all, const std::string& model, const std::string& device) {
	write_stdout(
	    fmt::format("{} on {}\n\n| test | kv | tok/s median | min | max | kv bytes |\n|---|---|---:|---:|---:|---:|\n",
	                model, device));
	for (const Measured& m : all)
		write_stdout(fmt::format("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {} |\n", m.test.name(), one_line(m.policy),
		                         m.median(), m.min(), m.max(), human_bytes(double(m.kv_bytes))));
}

void bench(BenchArgs a) {
	const std::vector<Test> tests = tests_of(a);
	const std::vector<KvPolicy> policies = cache_policies(a.engine);
	uint32_t longest = 0;
	for (const Test& t : tests) longest = std::max(longest, t.depth + t.prompt + t.generate);
	if (a.engine.ctx == 0) a.engine.ctx = longest;
	if (a.engine.ctx < longest)
		fail(Code::Context, "the tests need {} tokens, --ctx-size is {}; leave it out or raise it", longest,
		     a.engine.ctx);

	nlohmann::ordered_json j;
	std::vector<Measured> all;
	std::string model, device;
	for (const KvPolicy& policy : policies) {
		const auto engine = open_engine(a.engine, policy, /*seed=*/1);
		const DeviceInfo d = engine->backend().info();
		const Config& c = engine->config();
		j = {{"version", KVRUN_VERSION},
		     {"model",
		      {{"file", a.engine.model},
		       {"architecture", c.arch},
		       {"name", c.name},
		       {"weight_bytes", engine->weight_bytes()}}},
		     {"device",
		      {{"name", d.name},
		       {"driver", d.driver},
		       {"type", d.type},
		       {"cpu", d.is_cpu},
		       {"peak_bytes_per_s", d.peak_bytes_per_s}}},
		     {"ubatch", a.engine.ubatch}};
		model = fmt::format("{} ({})", one_line(a.engine.model), human_bytes(double(engine->weight_bytes())));
		device = fmt::format("{} ({})", one_line(d.name), one_line(d.driver));
		Progress progress;
		for (const Test& t : tests) {
			progress.show(t.name(), double(all.size()) / double(tests.size() * policies.size()));
			all.push_back(measure(*engine, t, a));
		}
	}
	if (a.output == "json") {
		for (const Measured& m : all) j["results"].push_back(to_json(m));
		write_stdout(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
		return;
	}
	print_markdown(all, model, device);
	if (a.ops)
		for (const Measured& m : all) print_ops(m);
}

} // namespace

void add_bench(CLI::App& app) {
	auto a = std::make_shared<BenchArgs>();
	CLI::App* c =
	    app.add_subcommand("bench", "Measures tokens per second: prompts (pp), generation (tg), at depths (d).");
	add_engine_options(*c, a->engine);
	add_integers(*c, "-p,--n-prompt", a->prompt, 0, 1 << 24, "prompt lengths in tokens, each a test; 0: none [512]");
	add_integers(*c, "-n,--n-gen", a->generate, 0, 1 << 24,
	             "numbers of tokens to generate, each a test; 0: none [128]");
	add_integers(*c, "-d,--n-depth", a->depth, 0, 1 << 24,
	             "tokens in the cache before a test begins; every test at every depth [0]");
	add_integer(*c, "-r,--repetitions", a->repeat, 1, 10000, "timed runs of each test, after one to warm up [5]");
	add_choice(*c, "-o,--output", a->output, {"md", "json"}, "write this format [md]");
	c->add_flag("--ops", a->ops, "measure each operation by device timestamps in one more run: calls, ms, bytes, GB/s");
	c->footer(kJsonKeys);
	c->callback([a] { bench(*a); });
}

} // namespace kvrun
