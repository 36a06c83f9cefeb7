// kvrun bench: tokens per second of prompts and of generation at given depths, and where the device's time goes.
#include "engine/core/error.h"
#include "engine/core/system/machine.h"
#include "engine/core/utf8.h"
#include "engine/run/sampler.h"
#include "tools/args_engine.h"
#include "tools/args_llama.h"
#include "tools/args_says.h"
#include "tools/bench_draft.h"
#include "tools/bench_report.h"
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
#include <optional>
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
	bool json = false;                                                  // output is json
	bool fill = false;                                                  // depth: fill with noise, not with a prompt
	bool ops = false;                                                   // device time per op
	int64_t peak = 0;                                                   // GB/s of device memory; 0: ask the drivers
	bool no_warmup = false;
	std::vector<int64_t> host_share; // percent of weights in host memory: all tests for each; empty: as the options say
	DraftArgs draft;
	std::string file; // with --draft: file of the prompt's text
};
std::vector<BenchTest> tests_of(const BenchArgs& a) {
	std::vector<BenchTest> out;
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
std::deque<Session> open_sessions(Engine& e, const SessionOptions& o, const BenchTest& t,
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
double run_once(std::deque<Session>& sessions, const BenchTest& t, const std::vector<uint32_t>& tokens) {
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

void take_turn(Engine& e, const SessionOptions& options, const BenchTest& t, bool fill, Turn turn, BenchRow& m) {
	BenchTest run = t;
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
size_t device_bytes(Engine& e, const SessionOptions& options, const BenchTest& t) {
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
std::vector<BenchRow> measure(Engine& e, const BenchTest& t, std::span<const SessionOptions> policies,
                              const BenchArgs& a, double peak,
                              const std::function<void(const std::string&)>& progress) {
	std::vector<BenchRow> all(policies.size());
	const bool ops = a.ops || policies.size() > 1;
	for (size_t i = 0; i < policies.size(); ++i) {
		all[i].policy = policies[i].kv.text;
		all[i].test = t;
		all[i].layers = e.config().n_layers;
		all[i].peak = peak;
		all[i].host_bytes = e.host_weight_bytes();
		if (e.host_weight_bytes()) all[i].plan_bus_bytes = double(e.weight_plan().host_token_bytes());
	}
	try {
		for (int64_t round = a.no_warmup ? 1 : 0; round < a.repeat + 1 + ops; ++round)
			for (size_t i = 0; i < policies.size(); ++i) {
				const Turn turn = round == 0 ? Turn::WarmUp : round <= a.repeat ? Turn::Timed : Turn::Ops;
				progress(fmt::format("{}, {}", t.name(), one_line(policies[i].kv.text)));
				take_turn(e, policies[i], t, a.fill, turn, all[i]);
			}
	} catch (const Interrupted&) {
		std::erase_if(all, [](const BenchRow& m) { return m.tok_s.empty(); });
		return all; // with the finished runs
	}
	for (size_t i = 0; i < policies.size(); ++i) all[i].device_bytes = device_bytes(e, policies[i], t);
	return all;
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

Json model_json(const BenchArgs& a, const Engine& e) {
	return {{"file", a.engine.model},
	        {"architecture", e.config().arch},
	        {"name", e.config().name},
	        {"weight_bytes", e.weight_bytes()},
	        {"host_weight_bytes", e.host_weight_bytes()},
	        {"weights", e.weights_text()}};
}

struct Results {
	std::vector<BenchRow> all;
	double load_s = 0;
	double peak = 0; // bytes per second of the device, 0: unknown
	bool cancelled = false;
	std::optional<Error> error; // that ended the measurement behind finished tests
	// of the latest engine, which may be closed
	DeviceInfo device;
	Json model;
	size_t weight_bytes = 0, prompt_bytes = 0;
};

void note_engine(const BenchArgs& a, Engine& e, Results& r) {
	r.device = e.backend().info();
	r.device.peak_bytes_per_s = r.peak;
	r.model = model_json(a, e);
	r.weight_bytes = e.weight_bytes(), r.prompt_bytes = e.prompt_peak_bytes();
}

void say_interrupted(bool some_results) {
	say_stats(some_results ? "interrupted; the results below cover the runs that were finished" : "interrupted");
}

void print_results(const BenchArgs& a, const Results& r, bool several) {
	if (a.output == "json") {
		Json j = circumstances(r.device, backend_options(a.engine.device, /*check=*/false), r.load_s);
		j["model"] = r.model;
		j["ubatch"] = a.engine.ubatch;
		j["prompt_bytes"] = r.prompt_bytes;
		j["resident_peak_bytes"] = sys::resident_bytes(/*most_so_far=*/true);
		j["cancelled"] = r.cancelled;
		if (r.error) j["error"] = r.error->what();
		j["results"] = Json::array();
		for (const BenchRow& m : r.all) j["results"].push_back(bench_row_json(m, a.ops));
		return print_json(j);
	}
	if (r.all.empty()) return;
	print_bench_speeds(r.all, fmt::format("{} ({})", one_line(a.engine.model), human_bytes(double(r.weight_bytes))),
	                   fmt::format("{} ({})", one_line(r.device.name), one_line(r.device.driver)), several);
	std::vector<BenchRow> timed = r.all;
	if (r.cancelled) std::erase_if(timed, [](const BenchRow& m) { return m.ops.empty(); }); // the last run of a test
	if (timed.empty()) return;
	if (a.ops || several) print_bench_cache(timed);
	if (a.ops)
		for (const BenchRow& m : timed) print_bench_ops(m);
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
	const auto engine = open_engine(a.engine, a.draft.rows(1), a.draft);
	const double load_s = seconds_since(start);
	std::vector<DraftMeasured> all;
	std::optional<Error> error; // behind finished tests
	try {
		Interrupt interrupt;
		Progress progress;
		bench_drafts(*engine, small.get(), b, all,
		             [&](const std::string& what, double done) { progress.show(what, done); });
	} catch (const Error& e) {
		if (all.empty()) throw;
		error = e;
	}
	if (Interrupt::requested()) say_interrupted(!all.empty());
	const DeviceInfo d = engine->backend().info();
	if (a.output == "json") {
		Json j = circumstances(d, backend_options(a.engine.device, /*check=*/false), load_s);
		j["model"] = model_json(a, *engine);
		j["draft"] = a.draft.what;
		j["draft_max"] = a.draft.draft_max();
		j["cancelled"] = Interrupt::requested().load();
		if (error) j["error"] = error->what();
		j["results"] = drafts_json(all);
		print_json(j);
	} else {
		write_stdout(fmt::format("{} on {}, --draft {} --draft-max {}\n\n", one_line(a.engine.model), one_line(d.name),
		                         one_line(a.draft.what), a.draft.draft_max()));
		print_drafts(all);
	}
	if (error) throw *error;
	if (std::ranges::any_of(all, [](const DraftMeasured& m) { return !m.same; }))
		fail(Code::Internal, "answers with drafts differ from those without");
	if (Interrupt::requested()) throw Exit{kInterrupted};
}

// Opens the model with so many percent of its weights in host memory; below 0: where the options say.
std::unique_ptr<Engine> open_with_share(const BenchArgs& a, int64_t percent, uint32_t most_rows, Results& results) {
	EngineArgs args = a.engine;
	args.weights.host_share = double(std::max<int64_t>(percent, 0)) / 100;
	const auto start = std::chrono::steady_clock::now();
	auto engine = open_engine(args, most_rows);
	results.load_s += seconds_since(start);
	results.peak = peak_bytes_per_s(a, engine->backend().info());
	if (percent > 0 && !engine->host_weight_bytes())
		fail(Code::Unsupported, "--host-share {}: {} shares the host's memory, so no weights leave it; use a card",
		     percent, one_line(engine->backend().info().name));
	return engine;
}

struct BenchTurns { // all tests with one division of the weights
	const std::vector<BenchTest>& tests;
	const std::vector<KvPolicy>& policies;
	int64_t host_share;
	double done, of; // share of all turns before these; divisions
};

void run_tests(Engine& engine, const BenchArgs& a, const BenchTurns& b, Results& results) {
	std::vector<SessionOptions> sessions;
	for (const KvPolicy& policy : b.policies) {
		sessions.push_back(session_options(a.engine, policy, /*seed=*/1));
		Session(engine, sessions.back()); // refuses a policy that this model cannot use before measuring any
	}
	Interrupt interrupt;
	Progress progress;
	double turns = 0, warmup_s = 0;
	const double rounds = double(a.repeat + !a.no_warmup + (a.ops || b.policies.size() > 1));
	const double all_turns = rounds * double(b.policies.size() * b.tests.size());
	for (const BenchTest& t : b.tests) {
		for (BenchRow& m : measure(engine, t, sessions, a, results.peak, [&](const std::string& what) {
			     progress.show(what, b.done + turns++ / all_turns / b.of);
		     })) {
			warmup_s += m.warmup_s;
			m.host_share = b.host_share;
			results.all.push_back(std::move(m));
		}
		results.cancelled = Interrupt::requested();
		if (results.cancelled) break;
	}
	progress.clear();
	say_stats(fmt::format("loaded in {:.1f} s; warm-up runs took {:.1f} s and are not in the results", results.load_s,
	                      warmup_s));
}

void bench(BenchArgs a) {
	if (a.draft.given() && !a.host_share.empty())
		fail(Code::Invalid, "--draft and --host-share are both given; give one of them");
	if (a.draft.given()) return bench_with_drafts(std::move(a));
	if (!a.file.empty()) fail(Code::Invalid, "--file is the text of --draft, which is not given");
	const std::vector<BenchTest> tests = tests_of(a);
	const std::vector<KvPolicy> policies = cache_policies(a.engine);
	uint32_t longest = 0, most_rows = 1;
	for (const BenchTest& t : tests) {
		longest = std::max(longest, t.depth + t.prompt + t.generate);
		most_rows = std::max(most_rows, t.sequences);
	}
	if (a.engine.ctx == 0) a.engine.ctx = longest;
	if (a.engine.ctx < longest)
		fail(Code::Context, "the tests need {} tokens, --ctx-size is {}; leave it out or raise it", longest,
		     a.engine.ctx);

	std::vector<int64_t> shares = a.host_share;
	if (shares.empty()) shares = {-1};
	Results results;
	std::unique_ptr<Engine> engine;
	for (size_t i = 0; i < shares.size() && !results.cancelled && !results.error; ++i) {
		try {
			engine.reset(); // its memory is needed
			engine = open_with_share(a, shares[i], most_rows, results);
			run_tests(*engine, a,
			          {tests, policies, shares[i], double(i) / double(shares.size()), double(shares.size())}, results);
		} catch (const Error& e) {
			if (results.all.empty()) throw;
			results.error = e;
		}
		if (engine) note_engine(a, *engine, results);
	}
	if (results.cancelled) say_interrupted(!results.all.empty());
	print_results(a, results, policies.size() > 1);
	if (results.error) throw *results.error;
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
	    {"kvrun bench model.gguf -p 2k -n 32 --host-share 0,50,90", "with half and most of the weights in host memory"},
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
	add_integers(c, "--host-share", a->host_share, 0, 100,
	             "percent of the weights' bytes in host memory, like 0,50,90; all tests run for each, rows have the "
	             "bytes over the bus per token [as the other options say]")
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
	add_flag(c, "--json", a->json, "the same as -o json")->group(report);
	add_flag(c, "--ops", a->ops,
	         "also list every operation, from device timestamps of one more run: calls, ms, bytes, GB/s, kernels")
	    ->group(report);
	const char* drafts = "Drafts";
	add_draft_options(c, a->draft, drafts);
	add_text(c, "-f,--file", a->file, kFile,
	         "the text that answers follow, of which -d says how many tokens [64 tokens over and over, 256 of them]")
	    ->group(drafts);
	add_says(c);
	add_llama_options(c);
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
	         {"error", "of the test that failed behind those in the results; absent if none did"},
	         {"prompt_bytes", "most device memory a prompt took while it was read"},
	         {"resident_peak_bytes", "of the process; 0: unknown"},
	         {"results",
	          "[{test, kv, n_prompt, n_gen, n_depth, sequences, warmup_s, kv_bytes (of all sequences), "
	          "host_weight_bytes, bus_bytes_per_token (of weights in host memory, at least), "
	          "plan_bus_bytes_per_token (of a decode step, by kvrun plan's division), host_share (if asked), "
	          "kv_device_bytes (allocated for caches of that length), resident_bytes (of the process after "
	          "the run), tok_s_median, tok_s_min, tok_s_max, tok_s [..] (totals of all sequences)}]"},
	         {"with --ops or several policies", "device_ms, attend {ms, bytes, bytes_per_s, of_peak (null: unknown)}, "
	                                            "saliency {ms, bytes, bytes_per_s}, packing {the same}"},
	         {"with --draft",
	          "draft, draft_max; results [{test, kv, tok_s_plain [..], tok_s_drafts [..], ratio (of the medians), "
	          "draft_n, draft_n_accepted (of one answer), tokens_equal}]"},
	         {"with --ops", "ops [{op, calls, calls_per_layer (of a decode step; 0 for prompts), ms, bytes, "
	                        "bytes_per_s, kernels [..]}]"}})};
	c.before_run.push_back([a, &c] {
		for (const char* o : {"--sequences", "--fill", "--ops", "--peak"})
			if (a->draft.given() && c.find_option(o)->typed())
				fail(Code::Invalid, "{} is for tests without --draft; leave one of them out", o);
	});
	c.run = [a] {
		if (a->json) a->output = "json";
		bench(*a);
	};
}

} // namespace kvrun
