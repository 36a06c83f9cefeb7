// Options of llama.cpp's programs that have no effect here, or one that belongs to no other group.
#include "tools/args_llama.h"
#include "engine/core/error.h"
#include "engine/core/json_reader.h"
#include "engine/core/split.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/answer/sampling.h"
#include "tools/commands.h"
#include "tools/user_files.h"
#include <algorithm>
#include <cctype>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

const std::vector<IgnoredOption>& ignored_options() {
	const char* const one_place = "a cache lies on the device; --kv makes it small";
	const char* const threads = "the device's driver decides how many threads it uses";
	const char* const talks = "kvrun chat converses, kvrun run answers once";
	const char* const guesses = "a step verifies whatever was guessed";
	const char* const small = "a draft model lies beside the model";
	const char* const plain = "messages are plain text on stderr";
	static const std::vector<IgnoredOption> all = {
	    {"-fa,--flash-attn", "WORD", {"on", "off", "auto", "0", "1"}, "attention is always fused"},
	    {"-t,--threads", "N", {}, threads},
	    {"-tb,--threads-batch", "N", {}, threads},
	    {"-b,--batch-size", "N", {}, "--ubatch-size alone sets how a prompt is cut"},
	    {"--mlock", "", {}, "weights are on the device, or in memory that it reads"},
	    {"--mmap,-mmp", "WORD", {"1", "0"}, "files are read in the way that suits the device"},
	    {"--no-mmap", "", {}, "files are read in the way that suits the device"},
	    {"--no-warmup", "", {}, "nothing is run before the prompt"},
	    {"--warmup", "", {}, "nothing is run before the prompt"},
	    {"--color,-co", "WORD", {"auto", "on", "off"}, "text is printed without colours"},
	    {"-nkvo,--no-kv-offload", "WORD", {"1", "0"}, one_place},
	    {"--kv-offload,-kvo", "", {}, one_place},
	    {"--kv-unified,-kvu", "", {}, "all sequences share one memory for caches"},
	    {"--no-kv-unified,-no-kvu", "", {}, "all sequences share one memory for caches"},
	    {"-sm,--split-mode", "WORD", {}, "several devices (--device 0,1) divide the layers"},
	    {"-mg,--main-gpu", "N", {}, "--device names the device"},
	    {"-np,--parallel", "N", {}, "kvrun serve --parallel gives several answers at once"},
	    {"--display-prompt", "", {}, "the prompt is not printed"},
	    {"--no-display-prompt", "", {}, "the prompt is not printed"},
	    {"-cnv,--conversation", "", {}, talks},
	    {"-st,--single-turn", "", {}, talks},
	    {"-i,--interactive", "", {}, talks},
	    {"-if,--interactive-first", "", {}, talks},
	    {"--no-jinja", "", {}, "chat templates are always Jinja"},
	    {"--no-context-shift", "", {}, "a full context ends the answer"},
	    {"--draft-min,--draft-n-min,--spec-draft-n-min", "N", {}, guesses},
	    {"--draft-p-min,--spec-draft-p-min", "X", {}, guesses},
	    {"--draft-p-split,--spec-draft-p-split", "X", {}, guesses},
	    {"-ngld,--gpu-layers-draft,--n-gpu-layers-draft,--spec-draft-ngl", "N", {}, small},
	    {"-devd,--device-draft,--spec-draft-device", "NAME", {}, small},
	    {"-ctkd,--cache-type-k-draft,--spec-draft-type-k", "TYPE", {}, "the cache of a draft model is f16"},
	    {"-ctvd,--cache-type-v-draft,--spec-draft-type-v", "TYPE", {}, "the cache of a draft model is f16"},
	    {"-td,--threads-draft,--spec-draft-threads", "N", {}, threads},
	    {"-tbd,--threads-batch-draft,--spec-draft-threads-batch", "N", {}, threads},
	    {"--escape,-e", "", {}, "what is typed is taken as it is"},
	    {"--no-escape", "", {}, "what is typed is taken as it is"},
	    {"--keep", "N", {}, "--on-full says what a chat leaves out"},
	    // of commands that have no such option: texts of kvrun embed
	    {"-c,--ctx-size", "N", {}, "a text is read whole"},
	    {"-ub,--ubatch-size", "N", {}, "a text is read whole"},
	    {"-ngl,--gpu-layers,--n-gpu-layers", "N", {}, "all layers are on the device"},
	    {"--no-repack,-nr", "", {}, "weights are used in the form of the file"},
	    {"--repack", "", {}, "weights are used in the form of the file"},
	    {"--no-host", "", {}, "weights are used in the form of the file"},
	    {"--no-op-offload", "", {}, "all operations run on the device"},
	    {"--op-offload", "", {}, "all operations run on the device"},
	    {"--mmproj-offload", "", {}, "all operations run on the device"},
	    {"--no-mmproj-offload", "", {}, "all operations run on the device"},
	    {"--mmproj-auto", "", {}, "the encoder of a repository is always taken"},
	    {"--no-mmproj-auto", "", {}, "this command takes no encoder"},
	    {"-bs,--backend-sampling", "", {}, "kvrun decides where tokens are chosen"},
	    {"-dt,--defrag-thold", "X", {}, "pages of a cache need not lie side by side"},
	    {"-cb,--cont-batching", "", {}, "several sequences are always computed together"},
	    {"-nocb,--no-cont-batching", "", {}, "several sequences are always computed together"},
	    {"-cram,--cache-ram", "N", {}, "kvrun chat --chat NAME and kvrun serve --sessions keep caches"},
	    {"-ctxcp,--ctx-checkpoints,--swa-checkpoints", "N", {}, "kvrun decides which states of a session it keeps"},
	    {"-mli,--multiline-input", "", {}, "\"\"\" begins and ends a message of several lines"},
	    {"-lm,--load-mode", "WORD", {}, "files are read in the way that suits the device"},
	    {"-lzm,--lazy-mode", "WORD", {}, "files are read in the way that suits the device"},
	    {"--reasoning-format", "WORD", {}, "kvrun chat dims reasoning, kvrun run prints it as it comes"},
	    {"--skip-chat-parsing", "", {}, "the text is printed as the model writes it"},
	    {"--swa-full", "", {}, "caches of sliding windows have their size"},
	    {"--numa", "WORD", {}, threads},
	    {"--prio", "N", {}, threads},
	    {"--prio-batch", "N", {}, threads},
	    {"--poll", "N", {}, threads},
	    {"--poll-batch", "N", {}, threads},
	    {"-C,--cpu-mask", "MASK", {}, threads},
	    {"-Cb,--cpu-mask-batch", "MASK", {}, threads},
	    {"-Cr,--cpu-range", "N-N", {}, threads},
	    {"-Crb,--cpu-range-batch", "N-N", {}, threads},
	    {"--cpu-strict", "N", {}, threads},
	    {"--cpu-strict-batch", "N", {}, threads},
	    {"--perf", "", {}, "statistics are printed unless -q is given"},
	    {"--no-perf", "", {}, "statistics are printed unless -q is given"},
	    {"--show-timings", "", {}, "statistics are printed unless -q is given"},
	    {"--no-show-timings", "", {}, "statistics are printed unless -q is given"},
	    {"--log-colors", "WORD", {"auto", "on", "off"}, plain},
	    {"--log-prefix", "", {}, plain},
	    {"--no-log-prefix", "", {}, plain},
	    {"--log-timestamps", "", {}, plain},
	    {"--no-log-timestamps", "", {}, plain},
	    {"--simple-io", "", {}, "output to a pipe is plain text"},
	    {"--log-disable", "", {}, "-q leaves progress and statistics out"},
	};
	return all;
}

bool is_taken(const Command& c, const std::string& name) {
	return std::ranges::any_of(c.options, [&](const Option& o) {
		return std::ranges::count(o.longs, name) || std::ranges::count(o.shorts, name) ||
		       std::ranges::count(o.words, name);
	});
}

// `flags` without the names that the command uses itself; "--long" comes last, messages show the first.
std::string free_names(const Command& c, const std::string& flags) {
	std::string out;
	for (const std::string_view part : split(flags, ','))
		if (const std::string name(part); !is_taken(c, name)) out += (out.empty() ? "" : ",") + name;
	return out.find("--") == out.npos ? "" : out; // what a row is called
}

} // namespace

void add_ignored(Command& c, std::span<const IgnoredOption> options) {
	for (const IgnoredOption& o : options)
		if (const std::string names = free_names(c, o.flags); !names.empty())
			add_ignored(c, names, o.type, o.choices, o.why);
}

void add_llama_options(Command& c) {
	add_ignored(c, ignored_options());
	struct Given {
		bool list = false, offline = false;
	};
	const auto given = std::make_shared<Given>();
	add_flag(c, "--list-devices", given->list, "list the devices, as kvrun devices does, and end");
	add_flag(c, "--offline", given->offline, "fetch nothing: use the models that are here, as HF_HUB_OFFLINE=1");
	// before the model is looked for
	c.before_run.insert(c.before_run.begin(), [given] {
		if (given->list) throw Exit{run_words({"devices"})};
		if (given->offline) sys::set_variable("HF_HUB_OFFLINE", "1");
	});
}

std::array<const Option*, 2> add_system(Command& c, std::string& system, const std::string& help, const char* group) {
	constexpr size_t kMost = size_t(1) << 20; // bytes
	const auto path = std::make_shared<std::string>();
	const Option* text = add_text(c, "--system,-sys,--system-prompt", system, "TEXT", help)->group(group);
	const Option* file = add_text(c, "--system-prompt-file,-sysf", *path, kFile, "the same, from a file")->group(group);
	c.before_run.push_back([text, file, path, &system] {
		if (!file->count) return;
		if (text->typed()) fail(Code::Invalid, "--system and --system-prompt-file are both given; give one of them");
		system = read_text_file(*path, kMost);
		if (system.ends_with('\n')) system.pop_back();
	});
	return {text, file};
}

const Option* add_template_variables(Command& c, std::string& variables, const std::string& when, const char* group) {
	c.before_run.push_back([&variables] {
		if (variables.empty()) return;
		nlohmann::ordered_json read;
		std::string why;
		if (!read_json(variables, {}, read, why)) fail(Code::Invalid, "--chat-template-kwargs {}", why);
		if (!read.is_object()) fail(Code::Invalid, "--chat-template-kwargs is not a JSON object");
	});
	return add_text(c, "--chat-template-kwargs", variables, "JSON",
	                when + "more variables of the template, like '{\"enable_thinking\": false}'")
	    ->group(group);
}

std::string without_escapes(const std::string& text) {
	std::string out;
	for (size_t i = 0; i < text.size(); ++i) {
		if (text[i] != '\\' || i + 1 == text.size()) {
			out += text[i];
			continue;
		}
		constexpr std::string_view names = "nrt'\"\\", means = "\n\r\t'\"\\";
		const char c = text[i + 1];
		const auto hex = [&](size_t at) { return at < text.size() && std::isxdigit(uint8_t(text[at])); };
		if (const size_t at = names.find(c); at != names.npos) {
			out += means[at];
			++i;
		} else if (c == 'x' && hex(i + 2) && hex(i + 3)) {
			out += char(std::stoi(text.substr(i + 2, 2), nullptr, 16));
			i += 3;
		} else {
			out += '\\';
		}
	}
	return out;
}

std::string samplers_of(const std::string& letters) {
	constexpr std::string_view all = "edskypmxt"; // sampling_steps()
	std::string out;
	for (const char c : letters) {
		const size_t at = all.find(c);
		if (at != all.npos)
			out += fmt::format("{}{}", out.empty() ? "" : ";", sampling_steps()[at].name);
		else if (c == 'a' || c == 'i') // --adaptive-target alone says whether it is used; infill
			warn_no_effect(fmt::format("'{}' in --sampler-seq", c), "kvrun has it not among the steps");
		else
			fail(Code::Invalid, "--sampler-seq is '{}', expected letters of {}", one_line(letters), all);
	}
	return out;
}

void choose_samplers(Sampling& s, const std::string& list) {
	const std::span<const SamplingStep> all = sampling_steps();
	std::string names;
	for (const SamplingStep& k : all) names += fmt::format("{}{}", names.empty() ? "" : ";", k.name);
	std::vector<bool> used(all.size());
	size_t next = 0; // the first that may follow
	for (const std::string_view word : split(list, ';')) {
		if (word.empty()) continue;
		const auto k = std::ranges::find_if(all, [&](const SamplingStep& x) { return x.is_called(word); });
		if (k == all.end())
			fail(Code::Invalid, "--samplers has '{}', which is none; there are {}", one_line(word), names);
		const size_t i = size_t(k - all.begin());
		if (i < next)
			fail(Code::Invalid, "--samplers {}: kvrun applies them in one order, {}; some may be left out",
			     one_line(list), names);
		used[i] = true, next = i + 1;
	}
	for (size_t i = 0; i < all.size(); ++i)
		if (!used[i]) all[i].off(s);
}

} // namespace kvrun
