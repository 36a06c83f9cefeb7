// kvrun tune: measures the error of each layer's keys and values in each format, for --kv auto and tuned:BITS; with
// --kernels, which kernels are fastest on a device.
#include "engine/core/new_file.h"
#include "engine/core/utf8.h"
#include "engine/run/tuning_file.h"
#include "tools/args_engine.h"
#include "tools/args_llama.h"
#include "tools/args_says.h"
#include "tools/commands.h"
#include "tools/eval/format_screen.h"
#include "tools/eval/text_file.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include "tools/tune/kernels.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

struct TuneArgs {
	EngineArgs engine;
	std::vector<std::string> files;
	std::string out;
	int64_t chunks = 0;
	bool kernels = false, forget = false, as_json = false;
};

constexpr uint32_t kChunk = 1024, kChunks = 3;
constexpr uint32_t kLeast = 4 * CapturedPrompt::kQueries; // tokens of a chunk, three quarters of them the prompt

// Chunks of the texts in turns, with BOS if the model uses it.
std::vector<std::vector<uint32_t>> chunks_of(const TuneArgs& a, std::span<const std::string> contents,
                                             const Tokenizer& tokenizer, uint32_t chunk) {
	const bool bos = tokenizer.adds_bos() && tokenizer.bos();
	const uint32_t own = chunk - bos, n = a.chunks ? uint32_t(a.chunks) : std::max(kChunks, uint32_t(a.files.size()));
	std::vector<std::vector<uint32_t>> texts;
	for (const std::string& text : contents) texts.push_back(tokenizer.encode(text, {.bos = false}));
	for (uint32_t records = 8; texts.empty() || (a.files.empty() && texts[0].size() < size_t(n) * own); records *= 2)
		texts = {tokenizer.encode(tuning_records(records), {.bos = false})};
	std::vector<std::vector<uint32_t>> out;
	for (size_t round = 0; out.size() < n; ++round) {
		const size_t before = out.size();
		for (const std::vector<uint32_t>& text : texts) {
			if (out.size() == n || text.size() < (round + 1) * own) continue;
			std::vector<uint32_t>& c = out.emplace_back();
			if (bos) c.push_back(*tokenizer.bos());
			const auto at = text.begin() + ptrdiff_t(round * own);
			c.insert(c.end(), at, at + own);
		}
		if (out.size() == before) break;
	}
	if (out.empty()) fail(Code::Invalid, "no text has the {} tokens of a chunk; give more text or a smaller -c", own);
	return out;
}

void print_tuning(const Screened& r, bool of_latent) {
	std::vector<std::vector<Column>> table;
	for (size_t l = 0; l < r.tuning.layers.size(); ++l)
		for (const bool is_k : {true, false}) {
			auto& row = table.emplace_back();
			row.push_back({"layer", std::to_string(l)});
			row.push_back({"", of_latent ? (is_k ? "latent" : "rope") : is_k ? "K" : "V"});
			for (int i = 0; i < kNSideFormats; ++i) {
				const SideFormat f = kSideFormats[i];
				const LayerCost& c = r.tuning.layers[l];
				const double cost = (is_k ? c.k : c.v)[size_t(i)];
				row.push_back({fmt::format("{}{}", f.bits, f.uniform ? " uniform" : ""),
				               std::isfinite(cost) ? fmt::format("{:.5f}", cost) : "-"});
			}
		}
	print_table(table);
	write_stdout("\n");
	for (const Budget& b : r.budgets)
		write_stdout(b.policy.empty()
		                 ? b.why + "\n"
		                 : fmt::format("--kv tuned:{} is {}, KL divergence {:.5f} where {:.5f} was expected\n", b.bits,
		                               b.policy, b.measured, b.expected));
}

// Measuring takes minutes, so a folder that cannot be written to is reported before it begins.
std::string place_of(const TuneArgs& a, const Gguf& model) {
	try {
		if (a.out.empty()) return new_tuning_path(model);
		NewFile{a.out, Readers::ByUmask}; // removed again
		return a.out;
	} catch (const Error& e) { fail(e.code, "{}; -o FILE names another place", e.what()); }
}

void run_tune(const TuneArgs& a) {
	if (a.kernels) return tune_kernels({a.engine.device, a.engine.model, a.forget, a.as_json});
	if (a.engine.model.empty())
		fail(Code::Invalid, "--model is required, or --hf-repo; or --kernels, which measures a device");
	const auto check_chunk = [](uint32_t chunk) {
		if (chunk < kLeast)
			fail(Code::Invalid, "chunks of {} tokens, of which hardly any would be packed; give -c {} or more", chunk,
			     kLeast);
		return chunk;
	};
	if (a.engine.ctx) check_chunk(uint32_t(a.engine.ctx));
	if (a.engine.ubatch < CapturedPrompt::kQueries)
		fail(Code::Invalid, "-ub {}: the last {} tokens of a chunk are read together; give {} or more", a.engine.ubatch,
		     CapturedPrompt::kQueries, CapturedPrompt::kQueries);
	std::vector<std::string> contents;
	for (const std::string& file : a.files) contents.push_back(read_text_file(file));
	const auto engine = open_engine(a.engine, 1);
	const std::string path = place_of(a, engine->file());
	const SessionOptions session = session_options(a.engine, parse_policy("fp16"), 1);
	const uint32_t chunk =
	    check_chunk(std::min(a.engine.ctx ? uint32_t(a.engine.ctx) : kChunk, Session(*engine, session).ctx()));
	const uint32_t scored = std::clamp(chunk / 8, CapturedPrompt::kQueries, engine->ubatch());
	const std::vector<std::vector<uint32_t>> chunks = chunks_of(a, contents, engine->tokenizer(), chunk);
	Progress progress;
	Interrupt interrupt;
	const Screened r = screen_formats(*engine, session, chunks, {.scored = scored}, {[&](double done) {
		progress.show("measuring", done);
		return !Interrupt::requested();
	}});
	progress.clear();
	if (r.chunks == 0 || Interrupt::requested()) throw Exit{kInterrupted}; // the file is left unchanged
	std::string texts = a.files.empty() ? "records" : "";
	for (const std::string& file : a.files) texts += (texts.empty() ? "" : ", ") + one_line(file);
	write_tuning(
	    path, engine->file(), r.tuning,
	    fmt::format("KL divergence from f16 on {}, {} chunks of {} tokens, the last {} of each scored: error of "
	                "attention in every format, and {} policies end to end",
	                texts, r.chunks, chunk, r.scored, r.end_to_end));
	print_tuning(r, engine->kv_shape().rope_dim != 0);
	write_stdout(fmt::format("written to {}\n", one_line(path)));
}

} // namespace

void add_tune(Command& root) {
	auto a = std::make_shared<TuneArgs>();
	Command& c = add_command(root, "tune",
	                         "Measures a model's layers for --kv auto and --kv tuned:BITS, or a device's kernels.");
	c.examples = {{"kvrun tune model.gguf", "measure, and write model.gguf.kv.json"},
	              {"kvrun tune model.gguf -f text.txt && kvrun run model.gguf --kv tuned:2.3 -p Hello",
	               "on a text of your own, then store 2.3 bits per element"},
	              {"kvrun tune --kernels", "measure which kernels are fastest on this device, and remember it"},
	              {"kvrun tune --kernels --forget", "forget it"}};
	add_engine_options(c, a->engine, /*several_policies=*/false);
	for (Option& o : c.options) {
		if (o.shown() == "--model") o.is_required = false; // run_tune() checks
		if (o.shown() == "--ctx-size") o.help = "tokens of a chunk [1024]";
	}
	Option* kernels =
	    add_flag(c, "--kernels", a->kernels,
	             "measure the device, not the model: which of its kernels are fastest, at the sizes of -m "
	             "or at typical ones; later runs on it use them");
	add_flag(c, "--forget", a->forget, "with --kernels: forget what was measured")->needs(kernels);
	add_flag(c, "--json", a->as_json, "with --kernels: print JSON")->needs(kernels);
	add_texts(c, "-f,--file", a->files, kFile,
	          "measure on this text instead of records with questions about them; may be given several times");
	add_text(c, "-o,--output", a->out, kFile,
	         "write to this file instead of MODEL.kv.json, where the policies look [beside the model, or in the cache "
	         "folder]");
	add_integer(c, "--chunks", a->chunks, 0, 1 << 16,
	            "chunks of -c tokens [1024], from the texts in turns; 0: three, or one of each text [0]");
	add_says(c);
	add_llama_options(c);
	c.sections = {
	    {"What is measured",
	     "The model reads each chunk once. Its keys and values are then stored in every format (1 to 4 bits as a "
	     "rotated codebook; 1 to 4 and 8 bits as uniform codes, of keys with a scale per channel and page, of values "
	     "with one per token and 64 channels), and attention of the chunk's own queries shows the error of each layer. "
	     "What an error is worth in KL divergence of the next token is measured through the whole model: one side of "
	     "one "
	     "layer at 2 bits at a time, the others at 8. With latent attention the two sides are the latent, stored as "
	     "keys are, and the rotated key (rope), in 4 or 8 bits, and measured at 4. So are tuned:2, 2.5, 3 and 4 in the "
	     "end, and costs are scaled by "
	     "what they gave. The file holds the costs with the model's fingerprint: for another model it is refused. It "
	     "is written beside the model, or where that cannot be done into the folder tuning of kvrun's cache "
	     "(KVRUN_CACHE_DIR), in which the policies look first."},
	    {"--kernels",
	     "Where kvrun has two designs for the same, the device's own speed decides: matrix units, products of bytes, "
	     "texel buffers, rows and tiles of a workgroup, pieces of attention. Each value runs in turns with kvrun's "
	     "own, "
	     "seven times, by timestamps of the device, and is used if it is 3 % faster (10 % on a CPU device) and its "
	     "results are the cpu backend's within tolerances. The choices are kept per device in the cache folder "
	     "(KVRUN_CACHE_DIR); another driver or version of kvrun ignores them, and kvrun devices shows them."},
	    json_section(
	        {{"device", "name, driver, type, cpu"},
	         {"tuned", "values that differ from kvrun's own, by choice"},
	         {"choices[]", "what was measured, with the value that is used (chosen)"},
	         {"choices[].values[]", "speed as a factor of kvrun's own; agrees: results are right; per load: ms, "
	                                "speed, fault"},
	         {"file, seconds, forgotten", "where choices are kept; how long it took; with --forget"}})};
	c.before_run.push_back([a, &c] {
		for (const char* o : {"--kv", "--cache-type-k", "--cache-type-v"})
			if (!a->kernels && c.find_option(o)->typed())
				fail(Code::Invalid, "kvrun tune measures every layer in every format; leave --kv, -ctk and -ctv out");
		a->engine.kv.clear(); // one in the settings file is for other commands
	});
	c.run = [a] { run_tune(*a); };
}

} // namespace kvrun
