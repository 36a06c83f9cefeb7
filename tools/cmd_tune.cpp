// kvrun tune: how much each layer's keys and values suffer in each format, for --kv auto and tuned:BITS.
#include "engine/core/regular_file.h"
#include "engine/core/utf8.h"
#include "engine/run/tuning_file.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/eval/evaluate.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr uint32_t kTogether = 8;   // policies in a decode step, whose weights are read once
const std::string kBase = "turbo8"; // what the other layers are stored as meanwhile

struct TuneArgs {
	EngineArgs engine;
	std::string file, out;
	int64_t chunks = 4;
};

std::string read_text(const std::string& path) {
	const RegularFile file(path, "name a text");
	if (file.bytes() > Tokenizer::kMaxText)
		fail(Code::Invalid, "{}: more than {} bytes of text; cut it", file.name(), Tokenizer::kMaxText);
	std::string text(size_t(file.bytes()), 0);
	file.read_at(0, std::as_writable_bytes(std::span(text)));
	return text;
}

// Without a text: records and questions about their lines, which a cache that loses detail answers wrongly first.
std::string records(uint32_t n) {
	constexpr uint32_t kLines = 12;
	std::string text;
	for (uint32_t i = 0; i < n; ++i) {
		text += recall_question(kLines, /*seed=*/7, i).record;
		for (uint32_t ask = 0; ask < kLines; ++ask) {
			const Question q = recall_question(kLines, /*seed=*/7, i, ask);
			text += q.query + q.answer + ">\n";
		}
	}
	return text;
}

struct Measured { // one side of one layer in another format
	uint32_t layer;
	bool is_k;
	int format; // of kSideFormats
};

std::vector<KvPolicy> policies_of(uint32_t n_layers, std::vector<Measured>& what) {
	std::vector<KvPolicy> out = {parse_policy(kBase)};
	for (uint32_t l = 0; l < n_layers; ++l)
		for (const bool is_k : {true, false})
			for (int i = 0; i < kEightBits; ++i) {
				out.push_back(parse_policy(kBase + side_options(kSideFormats[i], is_k, l, l)));
				what.push_back({l, is_k, i});
			}
	return out;
}

// What a layer's side costs beyond the base, of which each has an equal share.
Tuning tuning_of(const TextResult& r, const std::vector<Measured>& what, uint32_t n_layers) {
	const double base = r.scores.at(1).kld_mean, share = base / (2. * n_layers); // scores[0] is f16
	Tuning t{std::vector<LayerCost>(n_layers)};
	for (LayerCost& c : t.layers) c.k[kEightBits] = c.v[kEightBits] = share;
	for (size_t i = 0; i < what.size(); ++i) {
		LayerCost& c = t.layers[what[i].layer];
		(what[i].is_k ? c.k : c.v)[what[i].format] = std::max(r.scores.at(i + 2).kld_mean - base, 0.) + share;
	}
	return t;
}

void print_tuning(const Tuning& t, const KvShape& shape) {
	std::vector<std::vector<Column>> table;
	for (size_t l = 0; l < t.layers.size(); ++l)
		for (const bool is_k : {true, false}) {
			auto& row = table.emplace_back();
			row.push_back({"layer", std::to_string(l)});
			row.push_back({"", is_k ? "K" : "V"});
			for (int i = 0; i < kNSideFormats; ++i) {
				const SideFormat f = kSideFormats[i];
				row.push_back({fmt::format("{}{}", f.bits, f.uniform ? " uniform" : ""),
				               fmt::format("{:.5f}", (is_k ? t.layers[l].k : t.layers[l].v)[size_t(i)])});
			}
		}
	print_table(table);
	write_stdout("\n");
	for (const double bits : {2., 2.5, 3., 4.}) {
		try {
			write_stdout(fmt::format("--kv tuned:{} is {}\n", bits, assign_bits(t, shape, bits)));
		} catch (const Error& e) { // narrow heads, whose parameters take more
			write_stdout(fmt::format("{}\n", e.what()));
		}
	}
}

void run_tune(const TuneArgs& a) {
	if (!a.engine.kv.empty() || !a.engine.type_k.empty() || !a.engine.type_v.empty())
		fail(Code::Invalid, "kvrun tune measures every layer in every format; leave --kv, -ctk and -ctv out");
	const auto engine = open_engine(a.engine, kTogether);
	const KvShape shape = engine->kv_shape();
	std::vector<Measured> what;
	const std::vector<KvPolicy> policies = policies_of(shape.n_layers, what);
	const SessionOptions session = session_options(a.engine, policies[0], 1);
	TextEvalOptions opt;
	opt.chunk = std::min(a.engine.ctx ? uint32_t(a.engine.ctx) : opt.chunk, Session(*engine, session).ctx());
	opt.scored = opt.chunk / 2;
	opt.chunks = uint32_t(a.chunks);
	opt.together = kTogether;
	const std::string text = a.file.empty() ? records(3 * opt.chunks) : read_text(a.file);
	Progress progress;
	Interrupt interrupt;
	const TextResult r =
	    eval_text(*engine, session, engine->tokenizer().encode(text, {.bos = false}), policies, opt, {[&](double done) {
		    progress.show("measuring", done);
		    return !Interrupt::requested();
	    }});
	progress.clear();
	if (r.chunks == 0 || Interrupt::requested()) throw Exit{kInterrupted}; // the file stays as it was
	const Tuning t = tuning_of(r, what, shape.n_layers);
	const std::string path = a.out.empty() ? tuning_path(engine->file()) : a.out;
	write_tuning(path, engine->file(), t,
	             fmt::format("KL divergence from f16 on {}, {} chunks of {} tokens, the other layers as {}",
	                         a.file.empty() ? "records" : one_line(a.file), r.chunks, opt.chunk, kBase));
	print_tuning(t, shape);
	write_stdout(fmt::format("written to {}\n", one_line(path)));
}

} // namespace

void add_tune(Command& root) {
	auto a = std::make_shared<TuneArgs>();
	Command& c = add_command(root, "tune", "Measures a model's layers for --kv auto and --kv tuned:BITS.");
	c.examples = {{"kvrun tune model.gguf", "measure, and write model.gguf.kv.json"},
	              {"kvrun tune model.gguf -f text.txt && kvrun run model.gguf --kv tuned:2.3 -p Hello",
	               "on a text of your own, then store 2.3 bits per element"}};
	add_engine_options(c, a->engine, /*several_policies=*/false);
	add_text(c, "-f,--file", a->file, kFile, "measure on this text instead of records with questions about them");
	add_text(c, "-o,--output", a->out, kFile, "write to this file instead of MODEL.kv.json, where the policies look");
	add_integer(c, "--chunks", a->chunks, 1, 1 << 20, "chunks of -c tokens, the second half of each scored [4]");
	c.sections = {{"What is measured",
	               "One side of one layer at a time is stored at 1, 2, 3 and 4 bits, all others at 8 (" + kBase +
	                   "), and the KL divergence of the next token from an f16 cache's is noted: once as a rotated "
	                   "codebook, once as uniform codes, of keys with a scale per channel and page, of values with one "
	                   "per token and 64 channels. The table shows it, and the file holds it with the model's "
	                   "fingerprint: for another model it is refused."}};
	c.run = [a] { run_tune(*a); };
}

} // namespace kvrun
