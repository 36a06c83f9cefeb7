// kvrun compare: devices of one machine measured side by side, and runs of several machines put together.
#include "engine/core/regular_file.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/args_engine.h"
#include "tools/args_model.h"
#include "tools/commands.h"
#include "tools/compare/compare.h"
#include "tools/terminal.h"
#include <cstdlib>
#include <filesystem>

namespace kvrun {
namespace {

using namespace comparison;

struct MergeArgs {
	std::vector<std::string> folders;
	std::string base, out;
};

// Writes the reports and prints the outcome; the exit code says whether devices agree.
void finish(Json& run, const std::string& folder, const Json* baseline) {
	const int code = judge(run, baseline);
	write_reports(run, folder);
	for (const Json& f : run["findings"])
		say_stats(one_line(fmt::format("{}: {}: {}: {}", f["level"].get<std::string>(), f["device"].get<std::string>(),
		                               f["stage"].get<std::string>(), f["text"].get<std::string>()),
		                   600));
	write_stdout(fmt::format("{}\n{}/report.html\n",
	                         code == kWrong    ? "wrong results"
	                         : code == kSlower ? "slower than the baseline"
	                         : code            ? "some stages failed"
	                                           : "the devices agree",
	                         folder));
	if (code) throw Exit{code};
}

void quicken(const Command& c, Options& o) { // shortens what was not given
	const auto set = [&](const char* option, auto& value, auto after) {
		if (c.find_option(option)->count == 0) value = after;
	};
	set("--n-prompt", o.prompt, 16);
	set("--n-gen", o.generate, 4);
	set("--repetitions", o.rounds, 2);
	set("--tokens", o.tokens, 6);
	set("--sequences", o.sequences, std::vector<int64_t>{1});
}

void run_compare(Options o, const std::vector<std::string>& icd, bool default_depths, bool default_kv) {
	if (o.model.empty()) fail(Code::Invalid, "-m names no model");
	if (o.folder.empty()) fail(Code::Invalid, "-o names no folder for the results");
	if (default_kv) o.kv = o.quick ? "fp16,kivi2" : "fp16,kivi4,kivi2,zipcache";
	if (default_depths) o.depths = o.quick ? std::vector<int64_t>{0, 256} : std::vector<int64_t>{0, 8192, 32768};
	std::string files;
	for (const std::string& file : icd) {
		if (!std::filesystem::exists(sys::path_of(file)))
			fail(Code::NotFound, "--icd {}: no such file", one_line(file));
		files += (files.empty() ? "" : std::string(1, sys::kListSeparator)) +
		         std::filesystem::absolute(sys::path_of(file)).string();
	}
	if (!files.empty()) sys::set_variable("VK_ADD_DRIVER_FILES", files);
	const Json baseline = o.baseline.empty() ? Json() : read_run(o.baseline);
	const Json* given = o.baseline.empty() ? nullptr : &baseline;
	Interrupt interrupt;
	Json run = compare_devices(o, given);
	finish(run, o.folder, given);
}

void add_merge(Command& root) {
	auto a = std::make_shared<MergeArgs>();
	Command& c = add_command(root, "merge", "Puts runs of several machines into one report.");
	c.examples = {{"kvrun compare merge amd nvidia --base \"NVIDIA RTX 4090\" -o all", "two folders side by side"}};
	add_positionals(c, "folder", a->folders, kFolder, "folders that kvrun compare has written");
	add_text(c, "--base", a->base, "NAME", "also give speeds relative to this device");
	add_text(c, "-o,--output", a->out, kFolder, "write the report to this folder")->required();
	c.run = [a] {
		Json run = merge(a->folders, a->base);
		std::error_code error;
		std::filesystem::create_directories(sys::path_of(a->out), error);
		if (error) fail(Code::Io, "-o {}: {}; name a folder that can be made", one_line(a->out), error.message());
		finish(run, a->out, nullptr);
	};
}

void add_measuring(Command& c, Options& o) {
	const char* what = "What is measured";
	add_text(c, "--stages", o.stages, "NAMES", "only these of ops codes tokens speed quality stability [all]")
	    ->group(what);
	add_tokens(c, "-p,--n-prompt", o.prompt, 1, 1 << 20, "tokens of the prompt that is timed [512]")->group(what);
	add_tokens(c, "-n,--n-gen", o.generate, 1, 1 << 20, "tokens to generate in a timed run [32]")->group(what);
	add_integer(c, "-r,--repetitions", o.rounds, 1, 1000, "timed runs of each test [5]")->group(what);
	add_tokens(c, "--tokens", o.tokens, 2, 1 << 20, "greedy tokens that are compared [256]")->group(what);
	add_integers(c, "--sequences", o.sequences, 1, 8, "sequences that generate at the same time [1,4]")->group(what);
	add_text(c, "--text", o.text, kFile, "measure quality on this text [made-up records]")->group(what);
	add_flag(c, "--quick", o.quick,
	         "short runs, shallow depths: minutes on software drivers; sets -p -n -r --tokens; "
	         "quality is of one sample")
	    ->group(what);
	const char* beside = "Beside the devices";
	add_text(c, "--family", o.families, "NAMES", "compile the shaders for these AMD GPUs too, as navi21,gfx1100")
	    ->group(beside);
	add_text(c, "--vendor-drivers", o.vendor, "FOLDER:CHIPS",
	         "compile with the drivers of FOLDER/run for these chips, as vendor-drivers:dg2,ga102")
	    ->group(beside);
	add_text(c, "--peer", o.peer, "COMMAND", "also run this llama-bench")->group(beside);
	add_text(c, "--baseline", o.baseline, kFolder,
	         "mark what became slower or faster than this earlier run by more than "
	         "the spread")
	    ->group(beside);
}

} // namespace

void add_compare(Command& root) {
	Command& c = add_command(root, "compare", "Compares devices: results, speed, memory and quality, with a report.");
	auto o = std::make_shared<Options>();
	auto icd = std::make_shared<std::vector<std::string>>();
	c.examples = {
	    {"kvrun compare -m model.gguf -o results", "every device of this machine; results/report.html"},
	    {"kvrun compare -m model.gguf --quick --device llvmpipe,cpu -o results", "two of them, in minutes"},
	    {"kvrun compare -m synth:llama-3.1-8b:q4_k --depths 0,8k,32k -o results", "an 8B model without a file"},
	    {"kvrun compare merge here there --base cpu -o all", "runs of two machines"}};
	add_hub(c,
	        add_text(c, "-m,--model", o->model, kModelFile,
	                 "the model: a .gguf file, a name of kvrun list, or synth:NAME:TYPE"),
	        o->model);
	add_text(c, "-o,--output", o->folder, kFolder, "write results here; a run that was interrupted goes on");
	add_text(c, "--device,-dev", o->devices, "NAMES", "devices: indices, parts of names, or backends [all]");
	add_texts(c, "--icd", *icd, kFile, "also load this Vulkan driver (a .json manifest); may be given again");
	Option* kv = add_text(c, "--kv", o->kv, kPolicies, "policies [fp16,kivi4,kivi2,zipcache; quick: fp16,kivi2]");
	Option* depths =
	    add_integers(c, "-d,--depths", o->depths, 0, 1 << 24, "tokens in the cache when speed is measured [0,8k,32k]");
	add_measuring(c, *o);
	add_flag(c, "--anonymous", o->anonymous, "leave the machine's name out of the results");
	add_flag(c, "--again", o->again, "measure everything again, also what is in the folder");
	Section list{
	    "Stages", "Each runs in a process of its own on each device: a driver that crashes fails its stage only.", {}};
	for (const Stage& s : stages()) list.entries.push_back({s.name, s.what});
	c.sections = {
	    list,
	    {"Merging",
	     "kvrun compare merge FOLDER.. [--base NAME] -o FOLDER puts runs of several machines into one report; --base "
	     "adds "
	     "speeds relative to one device. Runs of different models are refused.",
	     {}},
	    {"Files",
	     "",
	     {{"report.html", "plots, a matrix of results by device, a part per device; one file that needs no network"},
	      {"report.md, results.csv", "the same tables; every number"},
	      {"run.json", "everything, with every sample; its schema has a number"},
	      {"tokens/, warnings.txt, parts/", "greedy tokens; findings; results of stages, for the next start"}}},
	    {"Exit codes",
	     "",
	     {{"0", "the devices agree"},
	      {"7", "wrong results"},
	      {"8", "slower than --baseline by more than the spread"},
	      {"4", "a stage failed"}}}};
	add_merge(c);
	c.run = [&c, o, icd, kv, depths] {
		if (!o->text.empty()) RegularFile(o->text, "name a text"); // stages that read it come late
		if (o->quick) quicken(c, *o);
		run_compare(*o, *icd, depths->count == 0, kv->count == 0);
	};
}

} // namespace kvrun
