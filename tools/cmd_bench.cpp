// kvrun bench: tokens per second of prompts and of generation at given depths, and where the device's time goes.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

namespace kvrun {
namespace {

struct BenchArgs {
	EngineArgs engine;
	std::vector<int64_t> prompt = {512}, generate = {128}, depth = {0}; // tokens
	int64_t repeat = 5;                                                 // timed runs of each test
	std::string output = "md";                                          // md or json
	bool fill = false;                                                  // depths hold noise, not a prompt
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
// What the cache costs, in device time of one run.
enum Part { kAttend, kScore, kStore, kParts };
struct PartOps {
	const char* name; // in JSON
	std::vector<std::string_view> ops;
};
const PartOps kPartOps[kParts] = {
    {"attend", {"attend", "attend_prompt"}},
    {"saliency", {"score_prompt", "score_slots", "channel_max", "kv_balance"}},
    {"packing", {"kv_load", "kv_block", "kv_pack", "kv_store"}},
};
struct PartTime {
	double ms = 0, bytes = 0;
	double rate() const { return ms > 0 ? bytes / ms * 1e3 : 0; } // bytes per second
};

struct Measured {
	std::string policy;
	Test test;
	std::vector<double> tok_s; // (repeat) in the order of the runs
	size_t kv_bytes = 0;       // cache at the end of a run
	size_t device_bytes = 0;   // device memory allocated for it then
	size_t resident = 0;       // bytes of this process then, 0: unknown
	double peak = 0;           // bytes per second of the device, 0: unknown
	std::vector<OpTime> ops;   // of one run, if asked for
	PartTime part(Part p) const {
		PartTime t;
		for (const OpTime& o : ops)
			if (std::ranges::count(kPartOps[p].ops, o.op)) t.ms += o.ms, t.bytes += o.bytes;
		return t;
	}
	double device_ms() const {
		double ms = 0;
		for (const OpTime& o : ops) ms += o.ms;
		return ms;
	}
	double median() const {
		std::vector<double> s(tok_s);
		std::sort(s.begin(), s.end());
		const size_t h = s.size() / 2;
		return s.size() % 2 ? s[h] : (s[h - 1] + s[h]) / 2;
	}
	double min() const { return *std::min_element(tok_s.begin(), tok_s.end()); }
	double max() const { return *std::max_element(tok_s.begin(), tok_s.end()); }
};

constexpr const char* kFooter =
    "Several policies are measured in turns, run by run, and a second table says what the cache costs each of them:\n"
    "  attend     attention: device time, bytes it must read and write at least, bytes per second, and of the peak\n"
    "             where the device's is known\n"
    "  saliency   attention received, for policies that rank tokens by it, and channel balancers\n"
    "  packing    what puts keys and values into pages: kv_load, kv_block, kv_pack, kv_store\n"
    "Times of one run on the device; software drivers' include what else the machine was doing.\n\n"
    "JSON: version, model {file, architecture, name, weight_bytes}, device {name, driver, type, cpu,\n"
    "  peak_bytes_per_s (0: unknown)}, ubatch, prompt_bytes (device memory a prompt took at most while it was read),\n"
    "  resident_peak_bytes (of the process, 0: unknown), results [{test, kv, n_prompt, n_gen, n_depth, kv_bytes,\n"
    "  kv_device_bytes (allocated), resident_bytes (of the process after the run, 0: unknown), tok_s_median,\n"
    "  tok_s_min, tok_s_max, tok_s [..], and with --ops or several policies: device_ms, attend {ms, bytes, "
    "bytes_per_s, of_peak (null: unknown)}, saliency {ms, bytes,\n"
    "  bytes_per_s}, packing {the same}; with --ops: ops [{op, calls, ms, bytes, bytes_per_s}]}].\n"
    "  Keys stay; new ones may come.";

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

// A line of what Linux says about this process, as bytes; 0 where it does not.
size_t resident_bytes(const std::string& key) {
	std::ifstream status("/proc/self/status");
	for (std::string line; std::getline(status, line);)
		if (line.starts_with(key + ":")) return size_t(std::strtoull(line.c_str() + key.size() + 1, nullptr, 10)) << 10;
	return 0;
}

// One run of a test on an empty session: seconds of the part that counts.
double run_once(Session& s, const Test& t, const std::vector<uint32_t>& tokens, bool fill, bool time_ops) {
	Backend& be = s.engine().backend();
	s.reset();
	const std::span<const uint32_t> all(tokens);
	if (t.depth && fill) s.fill(t.depth);
	if (t.depth && !fill) s.prefill(all.first(t.depth));
	if (time_ops) {
		be.time_ops(true);
		be.op_times(/*reset=*/true);
	}
	const auto start = std::chrono::steady_clock::now();
	if (t.prompt) s.prefill(all.subspan(t.depth, t.prompt));
	for (uint32_t i = 0; i < t.generate; ++i) s.decode(tokens[t.depth + i]);
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One turn of a policy in a test: a timed run, one to warm up, or one with the ops' times.
enum class Turn { WarmUp, Timed, Ops };

void take_turn(Engine& e, const Test& t, bool fill, Turn turn, Measured& m) {
	Test run = t;
	if (turn == Turn::WarmUp) { // pipelines, clocks, caches: a few steps of a generation do, at a depth with every tier
		run.generate = std::min(t.generate, 4u);
		if (t.generate) run.depth = std::min(t.depth, 512u);
	}
	const std::vector<uint32_t> tokens = some_tokens(e, size_t(run.depth) + run.prompt + run.generate);
	Session s(e);
	const double seconds = run_once(s, run, tokens, fill, turn == Turn::Ops);
	if (turn == Turn::Timed) {
		m.tok_s.push_back((run.prompt + run.generate) / seconds);
		m.kv_bytes = s.kv_bytes().total();
		m.device_bytes = s.kv_device_bytes();
		m.resident = resident_bytes("VmRSS");
	}
	if (turn == Turn::Ops) { // a run of its own: timestamps around every dispatch take time themselves
		m.ops = e.backend().op_times(/*reset=*/true);
		e.backend().time_ops(false);
		std::sort(m.ops.begin(), m.ops.end(),
		          [](const OpTime& x, const OpTime& y) { return x.ms != y.ms ? x.ms > y.ms : x.op < y.op; });
	}
}

// One test for all policies, in turns: whatever else the machine does meets all of them. Each keeps its pages' memory.
std::vector<Measured> measure(Engine& e, const Test& t, std::span<std::unique_ptr<KvStore>> stores, const BenchArgs& a,
                              const std::function<void(const std::string&)>& progress) {
	std::vector<Measured> all(stores.size());
	const bool ops = a.ops || stores.size() > 1;
	const int64_t rounds = a.repeat + 1 + ops; // the first warms up
	for (int64_t round = 0; round < rounds; ++round)
		for (size_t i = 0; i < stores.size(); ++i) {
			const Turn turn = round == 0 ? Turn::WarmUp : round <= a.repeat ? Turn::Timed : Turn::Ops;
			e.swap_kv(stores[i]);
			progress(fmt::format("{}, {}", t.name(), one_line(e.plan().policy.text)));
			all[i].policy = e.plan().policy.text;
			all[i].test = t;
			all[i].peak = e.backend().info().peak_bytes_per_s;
			take_turn(e, t, a.fill, turn, all[i]);
			e.swap_kv(stores[i]);
		}
	return all;
}

nlohmann::ordered_json to_json(const Measured& m, bool ops) {
	nlohmann::ordered_json j = {{"test", m.test.name()},
	                            {"kv", m.policy},
	                            {"n_prompt", m.test.prompt},
	                            {"n_gen", m.test.generate},
	                            {"n_depth", m.test.depth},
	                            {"kv_bytes", m.kv_bytes},
	                            {"kv_device_bytes", m.device_bytes},
	                            {"resident_bytes", m.resident},
	                            {"tok_s_median", m.median()},
	                            {"tok_s_min", m.min()},
	                            {"tok_s_max", m.max()},
	                            {"tok_s", m.tok_s}};
	if (!m.ops.empty()) {
		j["device_ms"] = m.device_ms();
		for (int p = 0; p < kParts; ++p) {
			const PartTime t = m.part(Part(p));
			j[kPartOps[p].name] = {{"ms", t.ms}, {"bytes", t.bytes}, {"bytes_per_s", t.rate()}};
		}
		j["attend"]["of_peak"] = m.peak > 0 ? nlohmann::ordered_json(m.part(kAttend).rate() / m.peak) : nullptr;
	}
	if (ops)
		for (const OpTime& o : m.ops)
			j["ops"].push_back({{"op", o.op},
			                    {"calls", o.calls},
			                    {"ms", o.ms},
			                    {"bytes", o.bytes},
			                    {"bytes_per_s", o.ms > 0 ? o.bytes / o.ms * 1e3 : 0}});
	return j;
}

std::string of_peak(double rate, double peak) { return peak > 0 ? fmt::format("{:.1f} %", rate / peak * 100) : "-"; }

void print_ops(const Measured& m) {
	write_stdout(
	    fmt::format("\n{}, kv {}: one run, device time\n\n| op | calls | ms | share | bytes | GB/s | of peak |\n"
	                "|---|---:|---:|---:|---:|---:|---:|\n",
	                m.test.name(), one_line(m.policy)));
	const double all = m.device_ms();
	for (const OpTime& o : m.ops) {
		const double rate = o.ms > 0 ? o.bytes / o.ms * 1e3 : 0;
		write_stdout(fmt::format("| {} | {} | {:.3f} | {:.1f} % | {} | {:.2f} | {} |\n", o.op, o.calls, o.ms,
		                         all > 0 ? o.ms / all * 100 : 0, human_bytes(o.bytes), rate / 1e9,
		                         of_peak(rate, m.peak)));
	}
	if (m.ops.empty()) write_stdout("| - | | | | | | |\n\nThis device gives no timestamps.\n");
}

void print_speeds(const std::vector<Measured>& all, const std::string& model, const std::string& device, bool ratio) {
	write_stdout(fmt::format("{} on {}\n\n| test | kv | tok/s median | min | max |{} kv bytes |\n"
	                         "|---|---|---:|---:|---:|{}---:|\n",
	                         model, device, ratio ? " of the first |" : "", ratio ? "---:|" : ""));
	double first = 0; // of the test
	for (size_t i = 0; i < all.size(); ++i) {
		const Measured& m = all[i];
		if (i == 0 || m.test.name() != all[i - 1].test.name()) first = m.median();
		write_stdout(fmt::format(
		    "| {} | {} | {:.2f} | {:.2f} | {:.2f} |{} {} |\n", m.test.name(), one_line(m.policy), m.median(), m.min(),
		    m.max(), ratio ? fmt::format(" {:.2f} |", m.median() / first) : "", human_bytes(double(m.kv_bytes))));
	}
}

// What the cache costs each policy, in device time of one run.
void print_cache(const std::vector<Measured>& all) {
	write_stdout("\nThe cache's part of one run, device time\n\n"
	             "| test | kv | device ms | attend ms | bytes | GB/s | of peak | saliency ms | packing ms | saliency + "
	             "packing |\n"
	             "|---|---|---:|---:|---:|---:|---:|---:|---:|---|\n");
	for (const Measured& m : all) {
		const PartTime attend = m.part(kAttend), score = m.part(kScore), store = m.part(kStore);
		const double ms = m.device_ms(), both = score.ms + store.ms;
		write_stdout(fmt::format(
		    "| {} | {} | {:.1f} | {:.2f} | {} | {:.2f} | {} | {:.2f} | {:.2f} | {:.1f} of {:.0f} ms, {:.1f} % |\n",
		    m.test.name(), one_line(m.policy), ms, attend.ms, human_bytes(attend.bytes), attend.rate() / 1e9,
		    of_peak(attend.rate(), m.peak), score.ms, store.ms, both, ms, ms > 0 ? both / ms * 100 : 0));
	}
	if (all.front().ops.empty()) write_stdout("\nThis device gives no timestamps.\n");
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

	const auto engine = open_engine(a.engine, policies.front(), /*seed=*/1);
	std::vector<std::unique_ptr<KvStore>> stores;
	for (const KvPolicy& policy : policies) stores.push_back(engine->make_kv(policy));
	std::vector<Measured> all;
	Progress progress;
	double turns = 0;
	const double per_test = double(stores.size()) * double(a.repeat + 1 + (a.ops || stores.size() > 1));
	for (const Test& t : tests)
		for (Measured& m : measure(*engine, t, stores, a, [&](const std::string& what) {
			     progress.show(what, turns++ / (per_test * double(tests.size())));
		     }))
			all.push_back(std::move(m));
	progress.clear();

	const DeviceInfo d = engine->backend().info();
	const Config& c = engine->config();
	if (a.output == "json") {
		nlohmann::ordered_json j = {{"version", KVRUN_VERSION},
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
		                            {"ubatch", a.engine.ubatch},
		                            {"prompt_bytes", engine->forward().prompt_peak_bytes()},
		                            {"resident_peak_bytes", resident_bytes("VmHWM")}};
		for (const Measured& m : all) j["results"].push_back(to_json(m, a.ops));
		write_stdout(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
		return;
	}
	print_speeds(all, fmt::format("{} ({})", one_line(a.engine.model), human_bytes(double(engine->weight_bytes()))),
	             fmt::format("{} ({})", one_line(d.name), one_line(d.driver)), stores.size() > 1);
	if (a.ops || stores.size() > 1) print_cache(all);
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
	c->add_flag(
	    "--fill", a->fill,
	    "fill the depth with noise instead of running the model over a prompt: quick, with the same memory and the "
	    "same speed after it");
	c->add_flag("--ops", a->ops,
	            "also list every operation, by device timestamps in one more run: calls, ms, bytes, GB/s");
	c->footer(kFooter);
	c->callback([a] { bench(*a); });
}

} // namespace kvrun
