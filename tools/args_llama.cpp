// Options of llama.cpp's programs that have no effect here, or one that belongs to no other group.
#include "tools/args_llama.h"
#include "engine/core/error.h"
#include "engine/core/split.h"
#include "engine/core/system/process.h"
#include "engine/core/utf8.h"
#include "tools/answer/sampling.h"
#include "tools/commands.h"
#include <algorithm>
#include <cctype>
#include <fmt/ranges.h>

namespace kvrun {
namespace {

const std::vector<IgnoredOption>& ignored_options() {
	const char* const one_place = "a cache lies on the device; --kv makes it small";
	const char* const threads = "the device's driver decides how many threads it uses";
	const char* const talks = "kvrun chat converses, kvrun run answers once";
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
	    {"--draft-min,--draft-n-min", "N", {}, "a step verifies whatever was guessed"},
	    {"--draft-p-min", "X", {}, "a step verifies whatever was guessed"},
	    {"--escape,-e", "", {}, "what is typed is taken as it is"},
	    {"--no-escape", "", {}, "what is typed is taken as it is"},
	    {"--keep", "N", {}, "--on-full says what a chat leaves out"},
	    // of commands that have no such option: texts of kvrun embed
	    {"-c,--ctx-size", "N", {}, "a text is read whole"},
	    {"-ub,--ubatch-size", "N", {}, "a text is read whole"},
	    {"-ngl,--gpu-layers,--n-gpu-layers", "N", {}, "all layers are on the device"},
	    {"--no-repack", "", {}, "weights are used in the form of the file"},
	    {"--no-op-offload", "", {}, "all operations run on the device"},
	    {"--swa-full", "", {}, "caches of sliding windows have their size"},
	    {"--numa", "WORD", {}, threads},
	    {"--prio", "N", {}, threads},
	    {"--perf", "", {}, "statistics are printed unless -q is given"},
	    {"--no-perf", "", {}, "statistics are printed unless -q is given"},
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
