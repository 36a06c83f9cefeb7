// Stages `speed` and `quality`: run kvrun bench and kvrun eval.
#include "models/config.h"
#include "tools/compare/compare.h"
#include <fmt/ranges.h>

namespace kvrun::comparison {

Json run_speed(const Options& o, const Device& d) {
	const uint32_t most = read_config(Gguf::open(o.model)).max_seq;
	std::vector<int64_t> depths;
	for (const int64_t depth : o.depths)
		if (depth + o.prompt + o.generate <= int64_t(most)) depths.push_back(depth);
	if (depths.empty())
		fail(Code::Context, "the model was made for {} tokens: no depth leaves room for {}; give smaller --depths",
		     most, o.prompt + o.generate);
	return run_command({"bench",
	                    "--model",
	                    o.model,
	                    "--device",
	                    d.select,
	                    "--kv",
	                    o.kv,
	                    "--n-prompt",
	                    std::to_string(o.prompt),
	                    "--n-gen",
	                    std::to_string(o.generate),
	                    "--n-depth",
	                    fmt::format("{}", fmt::join(depths, ",")),
	                    "--sequences",
	                    fmt::format("{}", fmt::join(o.sequences, ",")),
	                    "--repetitions",
	                    std::to_string(o.rounds),
	                    "--fill",
	                    "--ops",
	                    "--output",
	                    "json"});
}

Json run_quality(const Options& o, const Device& d) {
	const uint32_t most = read_config(Gguf::open(o.model)).max_seq;
	const std::string chunk = std::to_string(std::min<uint32_t>(o.quick ? 256 : 512, most)),
	                  text = o.text.empty() ? o.folder + "/text.txt" : o.text;
	const std::vector<std::string> common = {"--model", o.model, "--device", d.select, "--kv", o.kv, "--json"};
	std::vector<std::string>
	    on_text = {"eval",     "--file",           text, "--ctx-size", chunk, "--score", o.quick ? "16" : "128",
	               "--chunks", o.quick ? "1" : "8"},
	    recall = {"eval", "--task", "recall", "--lines", o.quick ? "8" : "20", "--samples", o.quick ? "1" : "40"};
	on_text.insert(on_text.end(), common.begin(), common.end());
	recall.insert(recall.end(), common.begin(), common.end());
	return {{"text", run_command(on_text)}, {"recall", run_command(recall)}};
}

} // namespace kvrun::comparison
