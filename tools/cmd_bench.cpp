// kvrun bench: tokens per second of prompts and of generation at given depths, and where the device's time goes.
#include "engine/core/error.h"
#include "engine/core/system/machine.h"
#include "engine/core/utf8.h"
#include "engine/run/sampler.h"
#include "tools/args_engine.h"
#include "tools/bench_draft.h"
#include "tools/commands.h"
#include "tools/eval/text_file.h"
#include "tools/host.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>
#include <chrono>
#include <ctime>
#include <deque>
#include <fmt/chrono.h>
#include <functional>
#include <random>
#include <thread>

namespace kvrun {
namespace {

struct BenchArgs {
	EngineArgs engine;
	std::vector<int64_t> prompt = {512}, generate = {128}, depth = {0}; // tokens
	std::vector<int64_t> sequences = {1};                               // generated at once
	int64_t repeat = 5;                                                 // timed runs of each test
	std::string output = "md";                                          // md or json
	bool fill = false;                                                  // depth: fill with noise, not with a prompt
	bool ops = false;                                                   // device time per op
	int64_t peak = 0;                                                   // GB/s of device memory; 0: ask the drivers
	bool no_warmup = false;
	DraftArgs draft;
	std::string file; // with --draft: file of the prompt's text
};
struct Test {
	uint32_t prompt = 0, generate = 0; // tokens of a sequence; exactly one is not 0
	uint32_t depth = 0;                // tokens in the cache before the test
	uint32_t sequences = 1;            // generated at once, each with a cache of its own
	std::string name() const {
		std::string s = prompt ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generate);
		if (sequences > 1) s += fmt::format(" x {}", sequences);
		return depth ? fmt::format("{} @ d{}", s, depth) : s;
	}
	uint32_t tokens() const { return (prompt + generate) * sequences; } // of all sequences
};
// What the cache costs, in device time of one run.
enum AttentionPart { kAttend, kScore, kStore, kAttentionParts };
struct PartOps {
	const char* name; // in JSON
	std::vector<std::string_view> ops;
};
const PartOps kPartOps[kAttentionParts] = {
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
	uint32_t layers = 0;       // of the model
	std::vector<double> tok_s; // (runs) in order, of all sequences together; fewer than requested after Ctrl-C
	double warmup_s = 0;       // seconds of the warm-up run, which is not counted
	double bus_bytes = 0;      // bytes of weights in host memory, read per token
	size_t kv_bytes = 0;       // caches at the end of a run
	size_t device_bytes = 0;   // device memory allocated for caches of that many tokens
	size_t resident = 0;       // resident bytes of this process at that time; 0: unknown
	double peak = 0;           // bytes per second of the device, 0: unknown
	std::vector<OpTime> ops;   // of one run, if requested
	PartTime part(AttentionPart p) const {
		PartTime t;
		for (const OpTime& o : ops)
			if (std::ranges::count(kPartOps[p].ops, o.op)) t.ms += o.ms, t.bytes += o.bytes;
		return t;
	}
	// Dispatches of an op per layer and decode step; 0 for prompts.
	double per_layer(const OpTime& o) const {
		return test.generate && layers ? double(o.calls) / test.generate / layers : 0;
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

std::vector<Test> tests_of(const BenchArgs& a) {
	std::vector<Test> out;
	for (const int64_t d : a.depth) {
		for (const int64_t p : a.prompt)
			if (p > 0) out.push_back({uint32_t(p), 0, uint32_t(d)});
		for (const int64_t n : a.generate)
			for (const int64_t q : a.sequences)
				if (n > 0) out.push_back({0, uint32_t(n), uint32_t(d), uint32_t(q)});
	}
	if (out.empty()) fail(Code::Invalid, "-p and -n are both 0: nothing to measure");
	return out;
}

// Tokens drawn uniformly from the vocabulary with a fixed seed.
std::vector<uint32_t> some_tokens(const Engine& e, size_t n) {
	std::mt19937 rng(1);
	std::vector<uint32_t> out(n);
	for (uint32_t& t : out) t = uint32_t(rng() % e.config().vocab);
	return out;
}

struct Interrupted {}; // thrown if Ctrl-C ends a turn, which then has no result

void prefill(Session& s, std::span<const uint32_t> tokens) {
	if (s.prefill(tokens, {.progress = [](const Prefill&) { return !Interrupt::requested(); }}).empty())
		throw Interrupted();
}

// A test's sessions, each `depth` tokens long. Every sequence has different tokens, so that no pages are shared.
std::deque<Session> open_sessions(Engine& e, const SessionOptions& o, const Test& t,
                                  const std::vector<uint32_t>& tokens, bool fill) {
	std::deque<Session> out;
	for (uint32_t i = 0; i < t.sequences; ++i) {
		Session& s = out.emplace_back(e, o);
		const size_t first = size_t(i) * (t.depth + t.prompt + t.generate);
		if (t.depth && fill) fill_with_noise(s, t.depth);
		if (t.depth && !fill) prefill(s, std::span(tokens).subspan(first, t.depth));
	}
	return out;
}

// Runs a test once; returns the seconds of its measured part, without the depth.
double run_once(std::deque<Session>& sessions, const Test& t, const std::vector<uint32_t>& tokens) {
	const size_t each = t.depth + t.prompt + t.generate;
	const auto start = std::chrono::steady_clock::now();
	if (t.prompt) prefill(sessions[0], std::span(tokens).subspan(t.depth, t.prompt));
	const uint32_t top =
	    Sampler(SamplerOptions{}).wanted(); // read as many logits as sampling with default options needs
	std::vector<SessionRow> rows(sessions.size());
	for (uint32_t step = 0; step < t.generate; ++step) {
		if (Interrupt::requested()) throw Interrupted();
		for (size_t i = 0; i < rows.size(); ++i) rows[i] = {&sessions[i], tokens[i * each + t.depth + step], top};
		(void)decode_step(rows);
	}
	return seconds_since(start);
}

// One turn of a policy in a test: a timed run, a warm-up run, or a run that measures ops.
enum class Turn { WarmUp, Timed, Ops };

void take_turn(Engine& e, const SessionOptions& options, const Test& t, bool fill, Turn turn, Measured& m) {
	Test run = t;
	if (turn == Turn::WarmUp) { // a few steps compile all pipelines and warm caches, at a depth that fills every tier
		run.generate = std::min(t.generate, 4u);
		if (t.generate) run.depth = std::min(t.depth, 512u);
	}
	const std::vector<uint32_t> tokens = some_tokens(e, size_t(run.depth + run.prompt + run.generate) * run.sequences);
	std::deque<Session> sessions = open_sessions(e, options, run, tokens, fill);
	if (turn == Turn::Ops) {
		e.backend().time_ops(true);
		e.backend().op_times(/*reset=*/true);
	}
	const uint64_t before = e.backend().mapped_bytes_read();
	const double seconds = run_once(sessions, run, tokens);
	if (turn == Turn::WarmUp) m.warmup_s = seconds;
	if (turn == Turn::Timed) {
		m.tok_s.push_back(run.tokens() / seconds);
		m.bus_bytes = double(e.backend().mapped_bytes_read() - before) / run.tokens();
		m.kv_bytes = 0;
		for (const Session& s : sessions) m.kv_bytes += s.kv_bytes().total();
		m.resident = sys::resident_bytes(/*most_so_far=*/false);
	}
	if (turn == Turn::Ops) { // in a separate run: timestamps around every dispatch cost time
		m.ops = e.backend().op_times(/*reset=*/true);
		e.backend().time_ops(false);
		std::sort(m.ops.begin(), m.ops.end(),
		          [](const OpTime& x, const OpTime& y) { return x.ms != y.ms ? x.ms > y.ms : x.op < y.op; });
	}
}

// Device memory allocated for caches of the test's length if the pool holds nothing else. Sessions of all policies
// share one pool, so it is measured separately from the timed runs.
size_t device_bytes(Engine& e, const SessionOptions& options, const Test& t) {
	e.pool().trim();
	std::deque<Session> sessions;
	for (uint32_t i = 0; i < t.sequences; ++i)
		fill_with_noise(sessions.emplace_back(e, options), t.depth + t.prompt + t.generate);
	return e.pool().allocated_bytes();
}

// Bytes per second of the device's memory, 0 if unknown. Vulkan does not report it; CUDA does for the same GPU.
double peak_bytes_per_s(const BenchArgs& a, const DeviceInfo& d) {
	if (a.peak > 0) return double(a.peak) * 1e9;
	if (d.peak_bytes_per_s > 0) return d.peak_bytes_per_s;
	const std::vector<DeviceReport> all = list_devices(backend_options(a.engine.device, /*check=*/false));
	const auto used = std::ranges::find_if(
	    all, [&](const DeviceReport& r) { return r.info.name == d.name && r.info.driver == d.driver; });
	if (used == all.end() || used->uuid.empty()) return 0;
	double peak = 0;
	for (const DeviceReport& r : all)
		if (r.uuid == used->uuid) peak = std::max(peak, r.info.peak_bytes_per_s);
	return peak;
}

// Runs one test under all policies in turns, so that other load on the machine affects all of them equally.
std::vector<Measured> measure(Engine& e, const Test& t, std::span<const SessionOptions> policies, const BenchArgs& a,
                              double peak, const std::function<void(const std::string&)>& progress) {
	std::vector<Measured> all(policies.size());
	const bool ops = a.ops || policies.size() > 1;
	for (size_t i = 0; i < policies.size(); ++i) {
		all[i].policy = policies[i].kv.text;
		all[i].test = t;
		all[i].layers = e.config().n_layers;
		all[i].peak = peak;
	}
	try {
		for (int64_t round = a.no_warmup ? 1 : 0; round < a.repeat + 1 + ops; ++round)
			for (size_t i = 0; i < policies.size(); ++i) {
				const Turn turn = round == 0 ? Turn::WarmUp : round <= a.repeat ? Turn::Timed : Turn::Ops;
				progress(fmt::format("{}, {}", t.name(), one_line(policies[i].kv.text)));
				take_turn(e, policies[i], t, a.fill, turn, all[i]);
			}
	} catch (const Interrupted&) {
		std::erase_if(all, [](const Measured& m) { return m.tok_s.empty(); });
		return all; // with the finished runs
	}
	for (size_t i = 0; i < policies.size(); ++i) all[i].device_bytes = device_bytes(e, policies[i], t);
	return all;
}

Json to_json(const Measured& m, bool ops) {
	Json j = {{"test", m.test.name()},
	          {"kv", m.policy},
	          {"n_prompt", m.test.prompt},
	          {"n_gen", m.test.generate},
	          {"n_depth", m.test.depth},
	          {"warmup_s", m.warmup_s},
	          {"sequences", m.test.sequences},
	          {"kv_bytes", m.kv_bytes},
	          {"bus_bytes_per_token", m.bus_bytes},
	          {"kv_device_bytes", m.device_bytes},
	          {"resident_bytes", m.resident},
	          {"tok_s_median", m.median()},
	          {"tok_s_min", m.min()},
	          {"tok_s_max", m.max()},
	          {"tok_s", m.tok_s}};
	if (!m.ops.empty()) {
		j["device_ms"] = m.device_ms();
		for (int p = 0; p < kAttentionParts; ++p) {
			const PartTime t = m.part(AttentionPart(p));
			j[kPartOps[p].name] = {{"ms", t.ms}, {"bytes", t.bytes}, {"bytes_per_s", t.rate()}};
		}
		j["attend"]["of_peak"] = m.peak > 0 ? Json(m.part(kAttend).rate() / m.peak) : nullptr;
	}
	if (ops)
		for (const OpTime& o : m.ops)
			j["ops"].push_back({{"op", o.op},
			                    {"calls", o.calls},
			                    {"calls_per_layer", m.per_layer(o)},
			                    {"ms", o.ms},
			                    {"bytes", o.bytes},
			                    {"bytes_per_s", o.ms > 0 ? o.bytes / o.ms * 1e3 : 0},
			                    {"kernels", o.kernels}});
	return j;
}

std::string of_peak(double rate, double peak) { return peak > 0 ? fmt::format("{:.1f} %", rate / peak * 100) : "-"; }

void print_ops(const Measured& m) {
	write_stdout(fmt::format("\n{}, kv {}: one run, device time\n\n", m.test.name(), one_line(m.policy)));
	if (m.ops.empty()) return write_stdout("This device gives no timestamps.\n");
	const double all = m.device_ms();
	const bool has_kernels = std::ranges::any_of(m.ops, [](const OpTime& o) { return !o.kernels.empty(); });
	std::vector<std::vector<Column>> table;
	for (const OpTime& o : m.ops) {
		const double rate = o.ms > 0 ? o.bytes / o.ms * 1e3 : 0;
		auto& row = table.emplace_back();
		row = {{"op", o.op}, {"calls", std::to_string(o.calls)}};
		if (m.test.generate) row.push_back({"per layer and step", fmt::format("{:.2f}", m.per_layer(o))});
		row.push_back({"ms", fmt::format("{:.3f}", o.ms)});
		row.push_back({"share", fmt::format("{:.1f} %", all > 0 ? o.ms / all * 100 : 0)});
		row.push_back({"bytes", human_bytes(o.bytes)});
		row.push_back({"GB/s", fmt::format("{:.2f}", rate / 1e9)});
		row.push_back({"of peak", of_peak(rate, m.peak)});
		if (has_kernels) row.push_back({"kernels", fmt::format("{}", fmt::join(o.kernels, ", "))});
	}
	print_table(table);
}

void print_speeds(const std::vector<Measured>& all, const std::string& model, const std::string& device, bool ratio) {
	write_stdout(fmt::format("{} on {}\n\n", model, device));
	std::vector<std::vector<Column>> table;
	const bool bus = std::ranges::any_of(all, [](const Measured& m) { return m.bus_bytes > 0; });
	double first = 0; // of the test
	for (size_t i = 0; i < all.size(); ++i) {
		const Measured& m = all[i];
		if (i == 0 || m.test.name() != all[i - 1].test.name()) first = m.median();
		auto& row = table.emplace_back();
		row = {{"test", m.test.name()},
		       {"kv", one_line(m.policy)},
		       {"tok/s median", fmt::format("{:.2f}", m.median())},
		       {"min", fmt::format("{:.2f}", m.min())},
		       {"max", fmt::format("{:.2f}", m.max())}};
		if (ratio) row.push_back({"of the first", fmt::format("{:.2f}", m.median() / first)});
		row.push_back({"kv bytes", human_bytes(double(m.kv_bytes))});
		if (bus) row.push_back({"bus bytes per token", human_bytes(m.bus_bytes)});
	}
	print_table(table);
}

// What the cache costs each policy, in device time of one run.
void print_cache(const std::vector<Measured>& all) {
	write_stdout("\nThe cache's part of one run, device time\n\n");
	if (all.front().ops.empty()) return write_stdout("This device gives no timestamps.\n");
	std::vector<std::vector<Column>> table;
	for (const Measured& m : all) {
		const PartTime attend = m.part(kAttend), score = m.part(kScore), store = m.part(kStore);
		const double ms = m.device_ms(), both = score.ms + store.ms;
		table.push_back({{"test", m.test.name()},
		                 {"kv", one_line(m.policy)},
		                 {"device ms", fmt::format("{:.1f}", ms)},
		                 {"attend ms", fmt::format("{:.2f}", attend.ms)},
		                 {"bytes", human_bytes(attend.bytes)},
		                 {"GB/s", fmt::format("{:.2f}", attend.rate() / 1e9)},
		                 {"of peak", of_peak(attend.rate(), m.peak)},
		                 {"saliency ms", fmt::format("{:.2f}", score.ms)},
		                 {"packing ms", fmt::format("{:.2f}", store.ms)},
		                 {"saliency + packing",
		                  fmt::format("{:.1f} of {:.0f} ms, {:.1f} %", both, ms, ms > 0 ? both / ms * 100 : 0)}});
	}
	print_table(table);
}

// Build, host, OS and device, which must match for two measurements to be comparable.
Json circumstances(const DeviceInfo& d, const BackendOptions& backend, double load_s) {
	const std::time_t now = std::time(nullptr);
	const std::tm utc = fmt::gmtime(now);
	char time[32] = "";
	std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);
	const sys::System system = sys::system_names();
	Json j = {{"version", KVRUN_VERSION}, {"commit", build_commit()}, {"time", time}};
	j["host"] = {{"name", system.host},
	             {"processor", processor_name()},
	             {"threads", std::thread::hardware_concurrency()},
	             {"machine", system.machine}};
	j["os"] = {{"name", os_name()}, {"kernel", fmt::format("{} {}", system.name, system.release)}};
	j["device"] = device_json(d);
	j["device"]["peak_bytes_per_s"] = d.peak_bytes_per_s;
	for (const DeviceReport& r : list_devices(backend))
		if (r.info.name == d.name && r.info.driver == d.driver)
			for (const auto& [name, value] : r.limits) j["device"]["limits"][name] = value;
	j["load_s"] = load_s;
	return j;
}

Json head_json(const BenchArgs& a, const Engine& e, Json j) {
	j["model"] = {{"file", a.engine.model},
	              {"architecture", e.config().arch},
	              {"name", e.config().name},
	              {"weight_bytes", e.weight_bytes()},
	              {"host_weight_bytes", e.host_weight_bytes()},
	              {"weights", e.weights_text()}};
	return j;
}

struct Results {
	std::vector<Measured> all;
	double load_s = 0;
	double peak = 0; // bytes per second of the device, 0: unknown
	bool cancelled = false;
};

void print_results(const BenchArgs& a, Engine& e, const Results& r, bool several) {
	DeviceInfo d = e.backend().info();
	d.peak_bytes_per_s = r.peak;
	if (a.output == "json") {
		Json j = circumstances(d, backend_options(a.engine.device, /*check=*/false), r.load_s);
		j = head_json(a, e, std::move(j));
		j["ubatch"] = a.engine.ubatch;
		j["prompt_bytes"] = e.prompt_peak_bytes();
		j["resident_peak_bytes"] = sys::resident_bytes(/*most_so_far=*/true);
		j["cancelled"] = r.cancelled;
		j["results"] = Json::array();
		for (const Measured& m : r.all) j["results"].push_back(to_json(m, a.ops));
		return print_json(j);
	}
	if (r.all.empty()) return;
	print_speeds(r.all, fmt::format("{} ({})", one_line(a.engine.model), human_bytes(double(e.weight_bytes()))),
	             fmt::format("{} ({})", one_line(d.name), one_line(d.driver)), several);
	if (a.ops || several) print_cache(r.all);
	if (a.ops)
		for (const Measured& m : r.all) print_ops(m);
}

// --draft: runs the generation tests as answers to a text.
void bench_with_drafts(BenchArgs a) {
	DraftBench b;
	b.policies = cache_policies(a.engine);
	uint32_t longest = 0;
	for (const int64_t d : a.depth) {
		b.depth.push_back(uint32_t(d));
		longest = std::max(longest, d ? uint32_t(d) : kDraftPrompt);
	}
	for (const int64_t n : a.generate)
		if (n > 0) b.generate.push_back(uint32_t(n));
	if (b.generate.empty()) fail(Code::Invalid, "--draft measures generation, and -n is 0");
	longest += uint32_t(std::ranges::max(a.generate));
	if (a.engine.ctx == 0) a.engine.ctx = longest;
	if (a.engine.ctx < longest)
		fail(Code::Context, "the tests need {} tokens, --ctx-size is {}; leave it out or raise it", longest,
		     a.engine.ctx);
	b.ctx = uint32_t(a.engine.ctx), b.draft_max = a.draft.draft_max(), b.repeat = uint32_t(a.repeat);
	b.warm_up = !a.no_warmup;
	if (!a.file.empty()) b.text = read_text_file(a.file);
	const auto start = std::chrono::steady_clock::now();
	const auto small = open_draft_model(a.engine, a.draft);
	const auto engine = open_engine(a.engine, a.draft.rows(1));
	const double load_s = seconds_since(start);
	std::vector<DraftMeasured> all;
	{
		Interrupt interrupt;
		Progress progress;
		all = bench_drafts(*engine, small.get(), b,
		                   [&](const std::string& what, double done) { progress.show(what, done); });
		progress.clear();
	}
	const DeviceInfo d = engine->backend().info();
	if (a.output == "json") {
		Json j = head_json(a, *engine, circumstances(d, backend_options(a.engine.device, /*check=*/false), load_s));
		j["draft"] = a.draft.what;
		j["draft_max"] = a.draft.draft_max();
		j["cancelled"] = Interrupt::requested().load();
		j["results"] = drafts_json(all);
		print_json(j);
	} else {
		write_stdout(fmt::format("{} on {}, --draft {} --draft-max {}\n\n", one_line(a.engine.model), one_line(d.name),
		                         one_line(a.draft.what), a.draft.draft_max()));
		print_drafts(all);
	}
	if (std::ranges::any_of(all, [](const DraftMeasured& m) { return !m.same; }))
		fail(Code::Internal, "answers with drafts differ from those without");
	if (Interrupt::requested()) throw Exit{kInterrupted};
}

void bench(BenchArgs a) {
	if (a.draft.given()) return bench_with_drafts(std::move(a));
	if (!a.file.empty()) fail(Code::Invalid, "--file is the text of --draft, which is not given");
	const std::vector<Test> tests = tests_of(a);
	const std::vector<KvPolicy> policies = cache_policies(a.engine);
	uint32_t longest = 0, most_rows = 1;
	for (const Test& t : tests) {
		longest = std::max(longest, t.depth + t.prompt + t.generate);
		most_rows = std::max(most_rows, t.sequences);
	}
	if (a.engine.ctx == 0) a.engine.ctx = longest;
	if (a.engine.ctx < longest)
		fail(Code::Context, "the tests need {} tokens, --ctx-size is {}; leave it out or raise it", longest,
		     a.engine.ctx);

	const auto start = std::chrono::steady_clock::now();
	const auto engine = open_engine(a.engine, most_rows);
	Results results;
	results.load_s = seconds_since(start);
	results.peak = peak_bytes_per_s(a, engine->backend().info());
	std::vector<SessionOptions> sessions;
	for (const KvPolicy& policy : policies) {
		sessions.push_back(session_options(a.engine, policy, /*seed=*/1));
		Session(*engine, sessions.back()); // refuses a policy that this model cannot use before measuring any
	}
	{
		Interrupt interrupt;
		Progress progress;
		double turns = 0, warmup_s = 0;
		const double rounds = double(a.repeat + !a.no_warmup + (a.ops || policies.size() > 1));
		const double all_turns = rounds * double(policies.size() * tests.size());
		for (const Test& t : tests) {
			for (Measured& m : measure(*engine, t, sessions, a, results.peak,
			                           [&](const std::string& what) { progress.show(what, turns++ / all_turns); })) {
				warmup_s += m.warmup_s;
				results.all.push_back(std::move(m));
			}
			results.cancelled = Interrupt::requested();
			if (results.cancelled) break;
		}
		progress.clear();
		say_stats(fmt::format("loaded in {:.1f} s; warm-up runs took {:.1f} s and are not in the results",
		                      results.load_s, warmup_s));
	}
	if (results.cancelled) say_stats("interrupted; the results below cover the runs that were finished");
	print_results(a, *engine, results, policies.size() > 1);
	if (results.cancelled) throw Exit{kInterrupted};
}

} // namespace

void add_bench(Command& root) {
	auto a = std::make_shared<BenchArgs>();
	Command& c =
	    add_command(root, "bench", "Measures tokens per second: prompts (pp), generation (tg), at depths (d).");
	c.examples = {
	    {"kvrun bench model.gguf", "a prompt of 512 tokens, and 128 generated tokens"},
	    {"kvrun bench model.gguf -p 0 -n 32 -d 2k,8k --kv fp16,kivi2", "decode at depths, two policies in turns"},
	    {"kvrun bench model.gguf -n 64 -p 0 --sequences 1,4,8 -o json", "total speed of several sequences"}};
	add_engine_options(c, a->engine, /*several_policies=*/true);
	const char *tests = "Tests", *report = "Report";
	add_integers(c, "-p,--n-prompt", a->prompt, 0, 1 << 24, "prompt lengths in tokens, one test each; 0: none [512]")
	    ->group(tests);
	add_integers(c, "-n,--n-gen", a->generate, 0, 1 << 24,
	             "numbers of tokens to generate, one test each; 0: none [128]")
	    ->group(tests);
	add_integers(c, "-d,--n-depth", a->depth, 0, 1 << 24,
	             "tokens in the cache before a test begins; every test runs at every depth [0]")
	    ->group(tests);
	add_integers(c, "--sequences", a->sequences, 1, LayerRunner::kLogitRows,
	             "sequences that generate at the same time, each with its own cache; one test each [1]")
	    ->group(tests);
	add_integer(c, "-r,--repetitions", a->repeat, 1, 10000, "timed runs of each test [5]")->group(tests);
	add_integer(c, "--peak", a->peak, 1, 1 << 20,
	            "memory bandwidth of the device in GB/s, for the share of it that operations reach [what the driver or "
	            "CUDA says]")
	    ->group(report);
	add_flag(c, "--no-warmup", a->no_warmup, "skip the run before the timed ones, which compiles pipelines")
	    ->group(tests);
	add_flag(
	    c, "--fill", a->fill,
	    "fill the depth with noise instead of running the model over a prompt: quick, with the same memory and the "
	    "same speed after it")
	    ->group(tests);
	add_choice(c, "-o,--output", a->output, {"md", "json"}, "write this format [md]")->group(report);
	add_flag(c, "--ops", a->ops,
	         "also list every operation, from device timestamps of one more run: calls, ms, bytes, GB/s, kernels")
	    ->group(report);
	const char* drafts = "Drafts";
	add_draft_options(c, a->draft, drafts);
	add_text(c, "-f,--file", a->file, kFile,
	         "the text that answers follow, of which -d says how many tokens [64 tokens over and over, 256 of them]")
	    ->group(drafts);
	c.sections = {
	    {"Drafts",
	     "With --draft the tests of generation are greedy answers to a text, without drafts and with them in turns. "
	     "The "
	     "table has both speeds, their ratio, how many tokens were drafted and the share of them that was right. How "
	     "much is won depends on the text and on what the model makes of it. Tokens that differ are an error."},
	    {"Several policies",
	     "They are measured in turns, run by run, and a second table shows the device time of the cache in one run. On "
	     "software drivers it includes what else the machine was doing. tok/s of several sequences is their total.",
	     {{"attend", "attention: device time, least bytes it reads and writes, bytes per second, and share of the peak "
	                 "where the device's is known"},
	      {"saliency", "attention received, for policies that rank tokens by it, and channel balancers"},
	      {"packing", "kv_load, kv_block, kv_pack and kv_store: moving keys and values into pages"}}},
	    {"Ctrl-C",
	     "Ends the measurement: the results cover the runs that were finished, and the exit code is 130. A second "
	     "one ends the program at once."},
	    json_section(
	        {{"version, commit, time", "of the build; time is UTC"},
	         {"host", "{name, processor, threads, machine}"},
	         {"os", "{name, kernel}"},
	         {"device", "{name, driver, type, cpu, peak_bytes_per_s (0: unknown), limits: as in kvrun devices}"},
	         {"model",
	          "{file, architecture, name, weight_bytes, host_weight_bytes (of them, read over the bus), weights (one "
	          "line on what lies where)}"},
	         {"load_s, ubatch, cancelled", "seconds to open the model; --ubatch-size; whether Ctrl-C ended it"},
	         {"prompt_bytes", "most device memory a prompt took while it was read"},
	         {"resident_peak_bytes", "of the process; 0: unknown"},
	         {"results", "[{test, kv, n_prompt, n_gen, n_depth, sequences, warmup_s, kv_bytes (of all sequences), "
	                     "bus_bytes_per_token (of weights in host memory, at least), "
	                     "kv_device_bytes (allocated for caches of that length), resident_bytes (of the process after "
	                     "the run), tok_s_median, tok_s_min, tok_s_max, tok_s [..] (totals of all sequences)}]"},
	         {"with --ops or several policies", "device_ms, attend {ms, bytes, bytes_per_s, of_peak (null: unknown)}, "
	                                            "saliency {ms, bytes, bytes_per_s}, packing {the same}"},
	         {"with --draft",
	          "draft, draft_max; results [{test, kv, tok_s_plain [..], tok_s_drafts [..], ratio (of the medians), "
	          "draft_n, draft_n_accepted (of one answer), tokens_equal}]"},
	         {"with --ops", "ops [{op, calls, calls_per_layer (of a decode step; 0 for prompts), ms, bytes, "
	                        "bytes_per_s, kernels [..]}]"}})};
	c.run = [a] { bench(*a); };
}

} // namespace kvrun
