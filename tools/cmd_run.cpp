// kvrun run: a prompt in, the model's continuation out, token by token.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/run/generate.h"
#include "engine/run/stop.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

constexpr size_t kMaxPrompt = size_t(64) << 20; // bytes

struct RunArgs {
	EngineArgs engine;
	std::string prompt, file; // at most one is given; neither: stdin
	bool has_prompt = false;  // -p is given, perhaps empty
	int64_t predict = -1;     // tokens to generate; -1: until the model ends or the context is full
	double temperature = 0.8, top_p = 0.95, min_p = 0.05, repeat_penalty = 1;
	int64_t top_k = 40, repeat_last = 64;
	int64_t seed = -1;              // -1: drawn
	std::vector<std::string> stops; // texts that end the answer
	bool special = false, no_bos = false, ignore_eos = false, truncate = false, json = false;
};

// All of `fd` up to kMaxPrompt bytes; one newline at the end is the editor's and not the user's.
std::string read_all(int fd, const std::string& name) {
	std::string text;
	std::vector<char> piece(65536);
	for (;;) {
		const ssize_t n = read(fd, piece.data(), piece.size());
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) fail(Code::Io, "{}: {}", name, std::generic_category().message(errno));
		if (n == 0) break;
		text.append(piece.data(), size_t(n));
		if (text.size() > kMaxPrompt)
			fail(Code::Context, "{} has more than {} bytes; no context holds that", name, kMaxPrompt);
	}
	if (!text.empty() && text.back() == '\n') text.pop_back();
	return text;
}

std::string read_prompt(const RunArgs& a) {
	if (a.has_prompt) return a.prompt;
	if (a.file.empty() || a.file == "-") {
		if (isatty(STDIN_FILENO)) std::fputs("reading the prompt from the terminal; end it with Ctrl-D\n", stderr);
		return read_all(STDIN_FILENO, "standard input");
	}
	const int fd = open(a.file.c_str(), O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		const Code code = errno == ENOENT || errno == ENOTDIR ? Code::NotFound : Code::Io;
		fail(code, "{}: {}", a.file, std::generic_category().message(errno));
	}
	struct Closer {
		int fd;
		~Closer() { close(fd); }
	} closer{fd};
	return read_all(fd, a.file);
}

// Token ids of the prompt, cut to the context only where --truncate says so.
std::vector<uint32_t> prompt_tokens(const RunArgs& a, const Engine& e, const std::string& text) {
	const Tokenizer& tok = e.tokenizer();
	std::vector<uint32_t> ids = tok.encode(text, {.bos = !a.no_bos, .special = a.special});
	if (ids.empty())
		fail(Code::Invalid, "the prompt has no tokens and {}; give it some text",
		     a.no_bos ? "--no-bos leaves out the one that begins a text" : "this model begins a text with none");
	if (!a.truncate || ids.size() <= e.ctx()) return ids;
	// room for the answer: what -n asks for, a quarter of the context if it asks for no number or too much
	const size_t quarter = e.ctx() / 4;
	const size_t room = a.predict >= 0 ? std::min<size_t>(size_t(a.predict), quarter) : quarter;
	const size_t head = tok.bos() && ids.front() == *tok.bos() ? 1 : 0;
	const size_t keep = std::max<size_t>(e.ctx() - room, head + 1);
	const size_t cut = ids.size() - keep;
	ids.erase(ids.begin() + ptrdiff_t(head), ids.begin() + ptrdiff_t(head + cut));
	std::fputs(fmt::format("warning: the first {} tokens of the prompt are left out, {} stay\n", cut, keep).c_str(),
	           stderr);
	return ids;
}

double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

std::string stats_line(const RunArgs& a, Engine& e, const GenerateResult& r, uint64_t seed) {
	const size_t cached = r.prompt_tokens + r.decode_steps;
	std::string line = fmt::format(
	    "{} tok  {:.1f} tok/s  {:.1f} ms/tok  prompt {} tok {:.1f} tok/s  kv {} ({}, {} tok)", r.tokens.size(),
	    per_second(r.decode_steps, r.decode_s), r.decode_steps ? r.decode_s * 1e3 / r.decode_steps : 0, r.prompt_tokens,
	    per_second(r.prompt_tokens, r.prefill_s), human_bytes(double(r.kv.total())), one_line(e.plan().policy.text),
	    cached);
	if (a.temperature > kGreedyTemperature) line += fmt::format("  seed {}", seed);
	return line + fmt::format("  end: {}  device {}", stop_reason_name(r.reason), one_line(e.backend().info().name));
}

std::string json_answer(const RunArgs& a, Engine& e, const GenerateResult& r, const std::string& text, uint64_t seed,
                        double load_s) {
	const DeviceInfo d = e.backend().info();
	const size_t cached = r.prompt_tokens + r.decode_steps;
	nlohmann::ordered_json j;
	j["text"] = text;
	j["tokens"] = r.tokens;
	j["stop_reason"] = stop_reason_name(r.reason);
	j["prompt_tokens"] = r.prompt_tokens;
	j["seed"] = seed;
	j["timings"] = {{"load_s", load_s},
	                {"prefill_s", r.prefill_s},
	                {"prefill_tok_s", per_second(r.prompt_tokens, r.prefill_s)},
	                {"decode_s", r.decode_s},
	                {"decode_steps", r.decode_steps},
	                {"decode_tok_s", per_second(r.decode_steps, r.decode_s)}};
	j["kv"] = {{"policy", e.plan().policy.text}, {"tokens", cached}, {"bytes", r.kv.total()}};
	j["model"] = {{"file", a.engine.model},
	              {"architecture", e.config().arch},
	              {"name", e.config().name},
	              {"ctx", e.ctx()},
	              {"weight_bytes", e.weight_bytes()}};
	j["device"] = {{"name", d.name}, {"driver", d.driver}, {"type", d.type}, {"cpu", d.is_cpu}};
	// bytes that are no UTF-8 have no place in JSON: they become U+FFFD
	return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

SamplerOptions sampler_options(const RunArgs& a, uint64_t seed) {
	return {a.temperature, uint32_t(a.top_k), a.top_p, a.min_p, a.repeat_penalty, uint32_t(a.repeat_last), seed};
}

void run(RunArgs a) {
	const uint64_t seed = a.seed >= 0 ? uint64_t(a.seed) : std::random_device()();
	GenerateOptions opt;
	opt.n = a.predict < 0 ? UINT32_MAX : uint32_t(a.predict);
	opt.sampling = sampler_options(a, seed);
	opt.stops = a.stops;
	opt.ignore_end = a.ignore_eos;
	opt.special = a.special;
	opt.cancel = &Interrupt::requested();
	check_sampler(opt.sampling);
	StopStream{a.stops}; // bad options are refused before a model is loaded
	const KvPolicy policy = cache_policy(a.engine);
	const std::string prompt = read_prompt(a);

	const auto start = std::chrono::steady_clock::now();
	const std::unique_ptr<Engine> engine = open_engine(a.engine, policy, seed);
	const double load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
	const std::vector<uint32_t> ids = prompt_tokens(a, *engine, prompt);

	Interrupt interrupt;
	Progress progress;
	std::string text;
	std::exception_ptr lost; // why stdout takes no more
	GenerateHooks hooks;
	hooks.prefill = [&](uint32_t done, uint32_t total) {
		progress.show("reading", double(done) / double(total));
		return true;
	};
	hooks.text = [&](std::string_view piece) {
		progress.clear();
		text += piece;
		if (a.json || lost) return !lost;
		try {
			write_stdout(piece);
		} catch (...) {
			lost = std::current_exception(); // the statistics still go out
		}
		return !lost;
	};
	Session session(*engine);
	// where both are one screen, what follows the text begins on a line of its own
	const auto end_line = [&] {
		progress.clear();
		const bool open = !a.json && !text.empty() && text.back() != '\n';
		if (open && stdout_is_terminal() && stderr_is_terminal()) std::fputs("\n", stderr);
	};
	GenerateResult r;
	try {
		r = generate(session, ids, opt, hooks);
	} catch (...) {
		end_line();
		throw;
	}
	end_line();
	if (a.json) {
		write_stdout(json_answer(a, *engine, r, text, seed, load_s));
		return;
	}
	say_stats(stats_line(a, *engine, r, seed));
	if (lost) std::rethrow_exception(lost);
}

} // namespace

void add_run(CLI::App& app) {
	auto a = std::make_shared<RunArgs>();
	CLI::App* c = app.add_subcommand("run", "Continues a prompt with a model.");
	add_engine_options(*c, a->engine);
	CLI::Option* p = add_text(*c, "-p,--prompt", a->prompt, "TEXT", "continue this text, taken as it is");
	CLI::Option* f =
	    add_text(*c, "-f,--file", a->file, "FILE",
	             "continue this file's text, less one newline at its end; - or neither -p nor -f: standard input");
	add_integer(*c, "-n,--predict", a->predict, -1, INT32_MAX,
	            "tokens to generate; -1: until the model ends or the context is full [-1]");
	add_real(*c, "--temp", a->temperature, 0, 1e6,
	         "divide logits by this before choosing; 0: always the likeliest token [0.8]");
	add_integer(*c, "--top-k", a->top_k, 0, UINT32_MAX, "choose among this many likeliest tokens; 0: all [40]");
	add_real(*c, "--top-p", a->top_p, 0, 1,
	         "of these, among the likeliest that hold this share of the probability; 1: all [0.95]");
	add_real(*c, "--min-p", a->min_p, 0, 1,
	         "of these, among those at least this likely relative to the likeliest; 0: all [0.05]");
	add_real(*c, "--repeat-penalty", a->repeat_penalty, 0.01, 100,
	         "make tokens of the last --repeat-last-n less likely; 1: off [1]");
	add_integer(*c, "--repeat-last-n", a->repeat_last, 0, 65536, "tokens that --repeat-penalty looks back [64]");
	add_integer(*c, "--seed", a->seed, -1, INT64_MAX,
	            "seed of the random choices; -1: drawn, and said at the end [-1]");
	add_texts(*c, "--stop", a->stops, "TEXT", "end the answer before this text; may be given several times");
	c->add_flag("--special", a->special, "read control tokens written out in the prompt, and show those of the answer");
	c->add_flag("--no-bos", a->no_bos, "do not begin with the model's begin-of-text token");
	c->add_flag("--ignore-eos", a->ignore_eos, "go on after an end-of-text token");
	c->add_flag("--truncate", a->truncate, "leave out the oldest tokens of a prompt that is longer than --ctx-size");
	c->add_flag("--json", a->json, "print one JSON object at the end instead of text and statistics");
	c->callback([a, p, f] {
		if (p->count() > 0 && f->count() > 0)
			fail(Code::Invalid, "--prompt and --file are both given; give one of them");
		a->has_prompt = p->count() > 0;
		run(*a);
	});
}

} // namespace kvrun
