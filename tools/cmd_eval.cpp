// kvrun eval: quality of KV cache policies, one row per policy: on a text, or on tasks with one right answer.
#include "engine/core/regular_file.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "tools/args_engine.h"
#include "tools/args_llama.h"
#include "tools/args_says.h"
#include "tools/commands.h"
#include "tools/eval/evaluate.h"
#include "tools/eval/question_file.h"
#include "tools/eval/text_file.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>
#include <charconv>
#include <filesystem>

namespace kvrun {
namespace {

struct EvalArgs {
	EngineArgs engine;
	std::vector<std::string> files;
	std::string against, task, ask = "prompt", shard;
	int64_t score = 0, chunks = 0, together = 1;                            // text; score 0: half a chunk
	int64_t lines = 40, turns = 0, sentences = 60, samples = 100, seed = 1; // tasks
	bool json = false;
};

// "1/4": the second of four parts.
Shard shard_of(const std::string& text) {
	if (text.empty()) return {};
	Shard s;
	const char *at = text.data(), *end = at + text.size();
	const auto index = std::from_chars(at, end, s.index);
	const bool slash = index.ec == std::errc() && index.ptr != end && *index.ptr == '/';
	const auto of = slash ? std::from_chars(index.ptr + 1, end, s.of) : index;
	if (!slash || of.ec != std::errc() || of.ptr != end || s.of == 0 || s.of > 65536 || s.index >= s.of)
		fail(Code::Invalid, "--shard is '{}', expected INDEX/PARTS with INDEX from 0, as 0/4", text);
	return s;
}

// timed_alone: false with --together: steps and prompts of several policies or questions have no speed of one.
void add_cost(Json& j, const EvalCost& c, bool timed_alone) {
	j["stored_bits_per_element"] = c.stored_bits;
	j["ratio"] = c.ratio();
	j["f16_share"] = c.f16_share;
	const EvalCost timed = c.timed();
	const auto speed = [&](uint64_t tokens, double s) {
		return timed_alone ? Json(per_second(double(tokens), s)) : Json();
	};
	j["decode_tok_s"] = speed(timed.decode_tokens, timed.decode_s);
	j["prefill_tok_s"] = speed(timed.prefill_tokens, timed.prefill_s);
}
void add_cost(std::vector<Column>& row, const EvalCost& c, bool timed_alone) {
	row.push_back({"bits", fmt::format("{:.2f}", c.stored_bits)});
	row.push_back({"ratio", fmt::format("{:.2f}", c.ratio())});
	const EvalCost timed = c.timed();
	const double speed = per_second(double(timed.decode_tokens), timed.decode_s);
	row.push_back({"tok/s", timed_alone ? fmt::format("{:.1f}", speed) : "-"});
}

// Says where a policy had nothing to do yet: its quality would look like that of f16. Where no layer attends, longer
// texts give it nothing to do either.
void note_unpacked(const Engine& e, const std::string& policy, const EvalCost& c, const char* longer) {
	constexpr double kMost = 0.9;
	if (policy != "fp16" && policy != "f16" && c.f16_share > kMost && e.kv_shape().n_layers)
		say_stats(fmt::format("note: {} still had {:.0f} % of the tokens in f16, so this says little about it; {}",
		                      one_line(policy), c.f16_share * 100, longer));
}

Json header(const EvalArgs& a, Engine& e, uint32_t ctx) {
	Json j;
	j["model"] = {{"file", a.engine.model}, {"architecture", e.config().arch}, {"name", e.config().name}};
	j["device"] = device_json(e.backend().info());
	j["ctx"] = ctx;
	return j;
}

// While an evaluation of `n` texts or tasks runs, shows a progress bar and turns Ctrl-C into a request to stop.
class Watch {
 public:
	explicit Watch(size_t n = 1) : n_(double(n)) {}
	EvalHooks hooks(size_t at = 0) {
		return {[this, at](double done) {
			        progress_.show("evaluating", (double(at) + done) / n_);
			        return !Interrupt::requested();
		        },
		        [] { return !Interrupt::requested(); }};
	}
	void end(bool some_results) { // without any after Ctrl-C, the command ends here
		progress_.clear();
		if (!Interrupt::requested()) return;
		say_stats(some_results ? "interrupted; the results below cover what was finished" : "interrupted");
		if (!some_results) throw Exit{kInterrupted};
	}

 private:
	double n_;
	Progress progress_;
	Interrupt interrupt_;
};

// The sums from which `python -m kvrun.merge` computes the results of several shards.
Json cost_json(const EvalCost& all) {
	const EvalCost c = all.timed();
	return {{"prefill_tokens", c.prefill_tokens},
	        {"prefill_seconds", c.prefill_s},
	        {"decode_tokens", c.decode_tokens},
	        {"decode_seconds", c.decode_s}};
}

struct RowParts { // of text_json()
	bool timed, tokens = false, shard = false;
};
Json text_json(const TextResult& r, const TextScore* base, RowParts with) {
	Json rows = Json::array();
	for (const TextScore& s : r.scores) {
		Json row = {{"policy", s.policy},
		            {"tokens", s.kld.size()},
		            {"ppl", s.ppl},
		            {"ppl_error", s.ppl_error},
		            {"kld_mean", s.kld_mean},
		            {"kld_error", s.kld_error},
		            {"kld_low", s.kld_low},
		            {"kld_high", s.kld_high},
		            {"kld_median", s.kld_median},
		            {"kld_p99", s.kld_p99},
		            {"kld_p999", s.kld_p999},
		            {"kld_worst", s.kld_worst},
		            {"top1", s.top1}};
		if (base) {
			const KldDifference d = kld_difference(s, *base, r.scored);
			row["difference"] = {{"mean", d.mean}, {"low", d.low}, {"high", d.high}};
		}
		add_cost(row, s.cost, with.timed);
		if (with.tokens) row["klds"] = s.kld;
		if (with.shard) row["nlls"] = s.nll, row["agreed"] = s.agreed, row["cost"] = cost_json(s.cost);
		rows.push_back(row);
	}
	return rows;
}

const TextScore* score_of(const TextResult& r, const std::string& policy) {
	for (const TextScore& s : r.scores)
		if (s.policy == policy) return &s;
	return nullptr;
}

// The policies plus the one that --against names, which is always measured.
std::vector<KvPolicy> with_base(const EvalArgs& a, std::vector<KvPolicy> policies, std::string& base) {
	if (a.against.empty()) return policies;
	const KvPolicy p = parse_policy(a.against);
	base = p.text == "f16" ? "fp16" : p.text;
	if (std::ranges::none_of(policies, [&](const KvPolicy& x) { return x.text == base; })) policies.push_back(p);
	return policies;
}

void run_text(const EvalArgs& a, Engine& e, const std::vector<KvPolicy>& policies, const std::string& base) {
	const SessionOptions session = session_options(a.engine, policies[0], uint64_t(a.seed));
	const uint32_t ctx = Session(e, session).ctx();
	TextEvalOptions opt;
	opt.chunk = std::min(a.engine.ctx ? uint32_t(a.engine.ctx) : opt.chunk, ctx);
	opt.scored = a.score ? uint32_t(a.score) : opt.chunk / 2;
	opt.chunks = uint32_t(a.chunks);
	opt.together = uint32_t(a.together);
	opt.shard = shard_of(a.shard);
	std::vector<std::vector<uint32_t>> texts;
	for (const std::string& file : a.files) texts.push_back(e.tokenizer().encode(read_text_file(file), {.bos = false}));
	const auto named = [&](size_t i, const auto& work) {
		try {
			work();
		} catch (const Error& error) {
			throw Error(error.code, fmt::format("{}: {}", one_line(a.files[i]), error.what()));
		}
	};
	for (size_t i = 0; i < texts.size(); ++i) // before the first is measured, which may take hours
		named(i, [&] { (void)chunks_of_text(e, texts[i].size(), opt); });
	Watch watch(texts.size());
	std::vector<TextResult> results; // of texts that have results
	for (size_t i = 0; i < texts.size() && !Interrupt::requested(); ++i) {
		named(i, [&] { results.push_back(eval_text(e, session, texts[i], policies, opt, watch.hooks(i))); });
		if (results.back().chunks == 0) results.pop_back(); // interrupted
	}
	watch.end(!results.empty());
	const TextResult r = pooled(results);
	const TextScore* against = score_of(r, base); // null if --against is not given
	const bool timed = a.together == 1;
	for (const TextScore& s : r.scores) note_unpacked(e, s.policy, s.cost, "give longer chunks with -c");
	if (a.json) {
		Json j = header(a, e, ctx);
		j["chunk"] = opt.chunk, j["scored"] = opt.scored, j["chunks"] = r.chunks;
		j["cancelled"] = Interrupt::requested().load();
		if (against) j["against"] = base;
		if (!a.shard.empty()) j["shard"] = {{"index", opt.shard.index}, {"of", opt.shard.of}};
		for (size_t i = 0; i < results.size(); ++i)
			j["texts"].push_back(
			    {{"file", a.files[i]},
			     {"chunks", results[i].chunks},
			     {"results", text_json(results[i], score_of(results[i], base), {timed, true, !a.shard.empty()})}});
		j["results"] = text_json(r, against, {timed});
		print_json(j);
		return;
	}
	for (size_t i = 0; i < results.size(); ++i)
		write_stdout(fmt::format("{}: {} chunks of {} tokens, the last {} of each scored\n", one_line(a.files[i]),
		                         results[i].chunks, opt.chunk, opt.scored));
	write_stdout("\n");
	std::vector<std::vector<Column>> table;
	for (const TextScore& s : r.scores) {
		auto& row = table.emplace_back();
		row = {{"kv", one_line(s.policy)},
		       {"ppl", fmt::format("{:.4f}", s.ppl)},
		       {"+-", fmt::format("{:.4f}", s.ppl_error)},
		       {"KLD mean", fmt::format("{:.5f}", s.kld_mean)},
		       {"95 % interval", fmt::format("{:.5f} .. {:.5f}", s.kld_low, s.kld_high)}};
		if (against) {
			const KldDifference d = kld_difference(s, *against, r.scored);
			row.push_back({"less that of " + one_line(base),
			               &s == against ? "-" : fmt::format("{:+.5f} ({:+.5f} .. {:+.5f})", d.mean, d.low, d.high)});
		}
		row.push_back({"median", fmt::format("{:.5f}", s.kld_median)});
		row.push_back({"99 %", fmt::format("{:.5f}", s.kld_p99)});
		row.push_back({"99.9 %", fmt::format("{:.5f}", s.kld_p999)});
		row.push_back({"worst", fmt::format("{:.5f}", s.kld_worst)});
		row.push_back({"top-1", fmt::format("{:.2f} %", s.top1 * 100)});
		add_cost(row, s.cost, timed);
	}
	print_table(table);
}

bool is_file(const std::string& task) { return task != "recall" && task != "needle"; }

std::vector<Question> questions_of(const EvalArgs& a) {
	std::vector<Question> out;
	if (is_file(a.task)) out = questions_of_file(a.task, size_t(a.samples));
	for (uint32_t i = 0; i < a.samples && !is_file(a.task); ++i)
		out.push_back(a.task == "recall"
		                  ? recall_question(uint32_t(a.lines), uint64_t(a.seed), i, {}, uint32_t(a.turns))
		                  : needle_question(uint32_t(a.sentences), uint64_t(a.seed), i, uint32_t(a.samples)));
	const Shard shard = shard_of(a.shard);
	const std::vector<Question> own(out.begin() + ptrdiff_t(shard.begin(out.size())),
	                                out.begin() + ptrdiff_t(shard.end(out.size())));
	if (own.empty())
		fail(Code::Invalid, "--shard {}: there are only {} questions; give fewer shards", a.shard, out.size());
	return own;
}

void run_task(const EvalArgs& a, Engine& e, const std::vector<KvPolicy>& policies,
              const std::vector<Question>& questions) {
	const SessionOptions session = session_options(a.engine, policies[0], uint64_t(a.seed));
	const uint32_t ctx = Session(e, session).ctx();
	Watch watch;
	const std::vector<TaskScore> scores =
	    eval_task(e, session, questions, policies, a.ask == "later" ? Ask::Later : Ask::Prompt, uint32_t(a.together),
	              watch.hooks());
	watch.end(!scores.empty());
	for (const TaskScore& s : scores)
		note_unpacked(e, s.policy, s.cost, "ask about longer texts with --lines or --sentences");
	if (a.json) {
		Json j = header(a, e, ctx);
		j["task"] = a.task, j["ask"] = a.ask, j["seed"] = a.seed, j["samples"] = questions.size();
		j["cancelled"] = Interrupt::requested().load();
		if (a.task == "recall")
			j["lines"] = a.lines, j["turns"] = a.turns;
		else if (a.task == "needle")
			j["sentences"] = a.sentences;
		if (const Shard shard = shard_of(a.shard); !a.shard.empty())
			j["shard"] = {{"index", shard.index}, {"of", shard.of}};
		for (const TaskScore& s : scores) {
			Json row = {
			    {"policy", s.policy},  {"n", s.right.size()},
			    {"right", s.n_right},  {"share", s.right.empty() ? 0 : double(s.n_right) / double(s.right.size())},
			    {"low", s.low},        {"high", s.high},
			    {"loss", s.loss_mean}, {"loss_error", s.loss_error},
			    {"longest", s.longest}};
			row["answers"] = s.right, row["losses"] = s.loss;
			add_cost(row, s.cost, a.together == 1);
			if (!a.shard.empty()) row["cost"] = cost_json(s.cost);
			j["results"].push_back(row);
		}
		print_json(j);
		return;
	}
	if (is_file(a.task))
		write_stdout(fmt::format("{}: {} questions\n\n", one_line(a.task), questions.size()));
	else if (a.task == "recall")
		write_stdout(fmt::format("recall: records of {} lines, seed {}\n\n", a.lines, a.seed));
	else
		write_stdout(fmt::format("needle: one line in {} sentences, seed {}\n\n", a.sentences, a.seed));
	std::vector<std::vector<Column>> table;
	for (const TaskScore& s : scores) {
		auto& row = table.emplace_back();
		row = {{"kv", one_line(s.policy)},
		       {"right", fmt::format("{} of {}", s.n_right, s.right.size())},
		       {"share", s.right.empty() ? "-" : fmt::format("{:.1f} %", 100.0 * s.n_right / double(s.right.size()))},
		       {"95 % interval", fmt::format("{:.1f} .. {:.1f} %", s.low * 100, s.high * 100)},
		       {"loss", fmt::format("{:.4f}", s.loss_mean)},
		       {"+-", fmt::format("{:.4f}", s.loss_error)},
		       {"tokens", std::to_string(s.longest)}};
		add_cost(row, s.cost, a.together == 1);
	}
	print_table(table);
}

void run_eval(const EvalArgs& a) {
	std::string base;
	const std::vector<KvPolicy> policies = with_base(a, cache_policies(a.engine), base);
	if (a.files.empty() == a.task.empty())
		fail(Code::Invalid, "give one of -f FILE (text) and --task (recall, needle or a file of questions)");
	if (a.turns && a.task != "recall") fail(Code::Invalid, "--turns is for --task recall");
	if (!a.shard.empty() && !a.json) fail(Code::Invalid, "--shard is of use with --json alone; add that");
	if (!a.task.empty() && is_file(a.task) && !std::filesystem::exists(sys::path_of(a.task)))
		fail(a.task.find_first_of("/.") == std::string::npos ? Code::Invalid : Code::NotFound,
		     "--task is '{}': neither recall or needle nor a file of questions", a.task);
	std::vector<Question> questions;
	if (!a.task.empty()) questions = questions_of(a);
	for (const std::string& file : a.files) RegularFile(file, "name a text"); // before the model is read
	const auto engine = open_engine(a.engine, uint32_t(a.together));
	if (a.task.empty())
		run_text(a, *engine, policies, base);
	else
		run_task(a, *engine, policies, questions);
	if (Interrupt::requested()) throw Exit{kInterrupted};
}

} // namespace

void add_eval(Command& root) {
	auto a = std::make_shared<EvalArgs>();
	Command& c = add_command(root, "eval", "Measures the quality of KV cache policies against an f16 cache.");
	c.examples = {
	    {"kvrun eval model.gguf -f text.txt -c 1024 --kv kivi4,kivi2", "perplexity and KL divergence on a text"},
	    {"kvrun eval model.gguf -f a.txt -f b.txt --kv turbo2,kivi2 --against kivi2", "the difference of two policies"},
	    {"kvrun eval model.gguf --task needle --sentences 200 --kv fp16,streaming", "find one line in a long context"}};
	add_engine_options(c, a->engine, /*several_policies=*/true);
	for (Option& o : c.options)
		if (o.shown() == "--ctx-size")
			o.help = "tokens of a text's chunk [512]; with --task the longest sequence, 0: what fits [0]";
	const char *text = "Text", *task = "Questions";
	add_texts(c, "-f,--file", a->files, kFile,
	          "score this text: perplexity, KL divergence from the f16 cache; may be given several times")
	    ->group(text);
	const size_t of_text = c.options.size(); // the first option that is of use with -f alone
	add_text(c, "--against", a->against, kPolicy,
	         "add the difference of each policy's KL divergence from this one's, token by token")
	    ->group(text);
	add_tokens(c, "--score", a->score, 0, 1 << 24, "score this many last tokens of each chunk; 0: half of it [0]")
	    ->group(text);
	add_integer(c, "--chunks", a->chunks, 0, 1 << 24, "use at most this many chunks of each text; 0: all [0]")
	    ->group(text);
	const size_t of_task = c.options.size();
	add_text(c, "--task", a->task, kFile,
	         "ask questions instead of scoring a text: recall, needle, or those of this file, JSON lines")
	    ->group(task);
	add_integer(c, "--lines", a->lines, 1, kMostRecallLines, "lines of a record (recall) [40]")->group(task);
	add_integer(c, "--turns", a->turns, 0, 1 << 20,
	            "questions about other lines, with their answers, before each question (recall) [0]")
	    ->group(task);
	add_integer(c, "--sentences", a->sentences, 0, 1 << 20, "sentences of filler (needle) [60]")->group(task);
	add_integer(c, "--samples", a->samples, 1, 1 << 20, "number of questions; of a file, at most [100]")->group(task);
	add_choice(c, "--ask", a->ask, {"prompt", "later"}, "ask in the prompt, or by decode steps after it [prompt]")
	    ->group(task);
	const size_t rest = c.options.size();
	c.before_run.push_back([a, &c, of_text, of_task, rest] {
		if (a->files.empty() == a->task.empty()) return; // run_eval() says which to give
		const bool text_given = !a->files.empty();
		for (size_t i = text_given ? of_task : of_text; i < (text_given ? rest : of_task); ++i)
			if (const Option& o = c.options[i]; o.typed())
				fail(Code::Invalid, "{} is for {}", o.shown(), text_given ? "questions (--task)" : "texts (-f)");
	});
	add_integer(
	    c, "--together", a->together, 1, LayerRunner::kLogitRows,
	    "decode this many policies (-f) or questions about one context (--task, --ask later) in one step, which "
	    "is quicker; speed is then not measured [1]");
	add_integer(c, "-s,--seed", a->seed, 0, INT64_MAX, "seed of the questions and of policies' random rows [1]");
	add_text(c, "--shard", a->shard, "I/N",
	         "measure only part I, from 0, of N equal parts of the chunks or questions, with --json: a machine each; "
	         "python -m kvrun.merge puts them together");
	add_flag(c, "--json", a->json, "print JSON");
	add_says(c);
	add_llama_options(c);
	c.sections = {
	    {"Text (-f)",
	     "The text is cut into chunks of -c tokens [512]. Attention inside a prompt is exact under every policy, so "
	     "the "
	     "first part of a chunk is the prompt, and its last tokens (--score) are scored by decode steps, which read "
	     "the "
	     "cache as it is stored.",
	     {{"ppl", "perplexity +- its standard error"},
	      {"KLD", "KL(f16 || policy) in nats per token, against the same steps with an f16 cache"},
	      {"95 % interval",
	       "of the mean: block bootstrap, which allows for neighbouring tokens that depend on each other"},
	      {"less that of", "--against: mean difference on the same tokens, with its interval, which is narrower"},
	      {"top-1", "share of tokens where the most likely next token is the same as with f16"},
	      {"bits, ratio", "stored bits per element with everything counted, and 16 / bits"},
	      {"tok/s", "decode steps, without those of the first chunk, which compiles pipelines, if there are several"}}},
	    {"Questions (--task)",
	     "",
	     {{"FILE",
	       "a JSON object per line: {\"context\": text, \"question\": text, \"answers\": [text, ..]}; the model "
	       "reads the context, an empty line, 'Question: ...' and 'Answer:'"},
	      {"recall", "a record of --lines named lines and a question about one of them, in the bundled model's format"},
	      {"needle", "one such line among --sentences of filler, from the first position to the last"},
	      {"share", "answers that begin with a right one, with the 95 % interval (Wilson)"},
	      {"loss", "mean -ln p of the (first) right answer's tokens +- its standard error"},
	      {"--ask prompt", "the question is part of the prompt but for its last token"},
	      {"--ask later",
	       "the prompt is the record alone; decode steps ask, and read --turns before. Questions about one "
	       "context on lines in a row share its prompt, which is read once; with --together, once for all "
	       "policies that do not rank"}}},
	    {"Ctrl-C",
	     "Ends the run; results cover what was finished, and the exit code is 130. A second one ends the program "
	     "at once."},
	    json_section(
	        {{"model, device", "{file, architecture, name}, {name, driver, type, cpu}"},
	         {"ctx, cancelled", "context in tokens; whether Ctrl-C ended it"},
	         {"chunk, scored, chunks", "tokens of a chunk, scored tokens of each, number of chunks of all texts"},
	         {"against", "the policy that --against names"},
	         {"shard", "--shard: {index, of}; the results then have cost {prefill_tokens, prefill_seconds, "
	                   "decode_tokens, decode_seconds}, those of a text also nlls [..] and agreed [0, 1, ..] of each "
	                   "scored token"},
	         {"texts",
	          "[{file, chunks, results}]: of each text; results as below, and klds [..], of each scored token"},
	         {"task, ask, seed, samples, lines, turns, sentences", "of questions; recall has lines, needle sentences"},
	         {"results (text)",
	          "of all texts: [{policy, tokens, ppl, ppl_error, kld_mean, kld_error, kld_low, kld_high, "
	          "kld_median, kld_p99, kld_p999, kld_worst, top1, difference {mean, low, high}, "
	          "stored_bits_per_element, ratio, f16_share (of the tokens at the end of a chunk), decode_tok_s, "
	          "prefill_tok_s (both null with --together)}]"},
	         {"results (questions)",
	          "[{policy, n, right, share, low, high, loss, loss_error, longest, answers "
	          "[0, 1, ..], losses [..], stored_bits_per_element, ratio, f16_share, decode_tok_s, "
	          "prefill_tok_s}]"}})};
	c.run = [a] { run_eval(*a); };
}

} // namespace kvrun
