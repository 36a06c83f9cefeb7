// kvrun synth: writes a model of a known shape with random weights, for measurements that need no trained model.
#include "engine/core/new_file.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "models/families.h"
#include "models/synth/synth_file.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <chrono>
#include <filesystem>

namespace kvrun {
namespace {

constexpr size_t kPieceBytes = 8u << 20; // bytes generated and written at a time

struct SynthArgs {
	std::string like, shape, type = "q4_k", out;
	int64_t seed = 1;
	bool list = false, force = false;
};

void check_space(const std::string& path, uint64_t bytes) {
	std::error_code error;
	const std::filesystem::path folder = std::filesystem::absolute(sys::path_of(path), error).parent_path();
	const auto space = std::filesystem::space(folder, error);
	if (!error && space.available < bytes)
		fail(Code::Io,
		     "{}: takes {}, {} are free there; choose another folder, or use -m synth:... which needs no file",
		     one_line(path), human_bytes(double(bytes)), human_bytes(double(space.available)));
}

void synth(const SynthArgs& a) {
	if (a.list) {
		for (const std::string& name : synth_names()) write_stdout(name + "\n");
		return;
	}
	if (a.like.empty()) fail(Code::Invalid, "--like names no shape; kvrun synth --list has them");
	if (a.out.empty()) fail(Code::Invalid, "-o names no file to write");
	const std::string text = fmt::format("{}{}{}:{}:{}", a.like, a.shape.empty() ? "" : ",", a.shape, a.type, a.seed);
	const SynthFile model(parse_synth(text));
	sys::FileInfo there;
	if (!a.force && sys::stat_file(a.out, /*follow_link=*/true, there) && there.regular())
		fail(Code::Invalid, "{} is there already; --force writes over it", one_line(a.out));
	check_space(a.out, model.bytes());
	NewFile file(a.out, Readers::ByUmask);
	Interrupt interrupt;
	Progress progress;
	const auto start = std::chrono::steady_clock::now();
	const auto seconds = [&] { return seconds_since(start); };
	std::vector<std::byte> piece;
	while (file.bytes() < model.bytes()) {
		if (Interrupt::requested()) throw Exit{kInterrupted}; // no file is left behind
		piece.resize(std::min<uint64_t>(kPieceBytes, model.bytes() - file.bytes()));
		model.read_at(file.bytes(), piece);
		file.write(piece);
		const double done = double(file.bytes()) / double(model.bytes());
		progress.show("writing", done, seconds() * (1 / done - 1));
	}
	file.commit();
	progress.clear();
	say_stats(fmt::format("{}: {} in {:.1f} s; the same weights without a file: -m synth:{}", one_line(a.out),
	                      human_bytes(double(model.bytes())), seconds(), text));
}

std::string list_text(const std::vector<std::string>& words) {
	std::string s;
	for (const std::string& w : words) s += (s.empty() ? "" : " ") + w;
	return s;
}

} // namespace

void add_synth(Command& root) {
	auto a = std::make_shared<SynthArgs>();
	Command& c = add_command(root, "synth", "Writes a GGUF file of a known shape with random weights.");
	c.examples = {{"kvrun synth --like llama-3.1-8b --type q4_k -o 8b.gguf", "the shape of an 8B model, 4.2 GiB"},
	              {"kvrun synth --like qwen3-8b --shape layers=4 --type f16 -o small.gguf", "four of its layers"},
	              {"kvrun bench -m synth:llama-3.1-8b:q4_k", "the same model without a file"}};
	add_text(c, "--like", a->like, "NAME", "take the shape of this model; --list has the names");
	add_text(c, "--shape", a->shape, "KEY=VALUE,..", "change parts of the shape: layers=4,vocab=32000");
	add_text(c, "--type", a->type, "TYPE", "type of the matrices: " + list_text(synth_types()) + " [q4_k]");
	add_integer(c, "-s,--seed", a->seed, 0, INT64_MAX, "seed of the weights [1]");
	add_text(c, "-o,--output", a->out, kFile, "write this file");
	add_flag(c, "--force", a->force, "write over a file that is there");
	add_flag(c, "--list", a->list, "print the names of --like");
	c.sections = {
	    {"Random weights",
	     "The text such a model writes is noise; its speed and its memory are those of a trained model of that shape. "
	     "Vectors are F32. Matrices whose rows do not divide into blocks of --type are Q8_0 or F16. The vocabulary has "
	     "the right size and is made of bytes and invented words. The same seed gives the same file on every machine.",
	     {{"-m synth:NAME[,key=value,..]:TYPE[:SEED]", "in any command: the same model, its weights computed on load"},
	      {"keys",
	       "arch (" + family_names() +
	           ") dim hidden layers heads kv_heads head_dim vocab ctx mtp (1: with a prediction layer); of mixtures "
	           "experts used expert_hidden shared"}}}};
	c.run = [a] { synth(*a); };
}

} // namespace kvrun
