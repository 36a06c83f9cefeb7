// Options of llama.cpp's programs that kvrun has not: what does the same here, or why nothing does.
#include "engine/core/split.h"
#include "tools/args.h"
#include <algorithm>

namespace kvrun {
namespace {

struct Advice {
	std::vector<std::string_view> names;
	std::vector<const char*> texts; // the first that suits the command; where none does, nothing is known
};

const std::vector<Advice>& all_advice() {
	const char* const chats = "kvrun chat --no-think turns reasoning off, where the template knows how";
	const char* const rope = "positions are scaled as the model's file says";
	const char* const place = "--n-cpu-moe N, --gpu-layers N and --weights-budget BYTES say what lies in host memory";
	const char* const fetch = "-hf USER/REPO[:QUANT] fetches a model, and so does kvrun pull";
	const char* const pull = "kvrun pull USER/REPO[:QUANT] fetches a model";
	const char* const draft = "--draft lookup guesses from the text, --draft FILE by a model";
	const char* const serve = "it belongs to kvrun serve";
	const char* const run = "kvrun run and kvrun chat take it";
	const char* const keeps = "kvrun chat --chat NAME keeps a conversation with its cache";
	const char* const around = "--chat-template FILE says what stands around a message";
	const char* const reasoning = "--no-think turns reasoning off, where the template knows how";
	const char* const extend = "self-extend is not supported";
	const char* const longer = "self-extend is not supported; -c N may exceed the trained context";
	const char* const control = "control vectors are not supported; --lora adds adapters";
	const char* const vectors = "control vectors are not supported";
	static const std::vector<Advice> all = {
	    {{"--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx",
	      "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast"},
	     {rope}},
	    {{"--override-kv"}, {"a model is used as its file says"}},
	    {{"-ot", "--override-tensor", "-ncffn", "--n-cpu-ffn", "--moe-cache-mib"}, {place}},
	    {{"-fitt", "--fit-target", "-fitc", "--fit-ctx"}, {place}},
	    {{"--rpc"}, {"--device A,B divides a model over devices of this machine"}},
	    {{"--check-tensors"}, {"kvrun inspect FILE --check reads all weights"}},
	    {{"--control-vector", "--control-vector-scaled", "--control-vector-layer-range"}, {control, vectors}},
	    {{"-mu", "--model-url", "-dr", "--docker-repo", "-mmu", "--mmproj-url"}, {fetch, pull}},
	    {{"-hf", "-hfr", "--hf-repo"}, {pull}},
	    {{"-hft", "--hf-token"}, {"the variable HF_TOKEN gives a token, which a command line would show to others"}},
	    {{"-cl", "--cache-list"}, {"kvrun list does that"}},
	    {{"--completion-bash"}, {"kvrun completion bash does that"}},
	    {{"--usage"}, {"--help does that"}},
	    {{"--log-file"}, {"messages go to stderr: 2> FILE"}},
	    {{"-o", "--output", "--output-file"}, {"the text goes to stdout: > FILE"}},
	    {{"-bf", "--binary-file"}, {"-f FILE reads any file"}},
	    {{"-lv", "--verbosity", "--log-verbosity", "--log-verbose"},
	     {"-v prints more, KVRUN_LOG=2 and 3 still more", "KVRUN_LOG=1 prints more, 2 and 3 still more"}},
	    {{"--verbose-prompt"}, {"kvrun tokenize prints the tokens of a text"}},
	    {{"--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro"}, {keeps}},
	    {{"-ins", "--instruct", "-cml", "--chatml"}, {"kvrun chat converses"}},
	    {{"--in-prefix", "--in-suffix", "--in-prefix-bos"}, {around}},
	    {{"--chat-template-kwargs", "--reasoning", "-rea", "--reasoning-effort", "--reasoning-budget"},
	     {reasoning, chats}},
	    {{"--context-shift"}, {"a full context ends the answer; kvrun chat --on-full drop-oldest leaves out messages"}},
	    {{"-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"}, {longer, extend}},
	    {{"--cfg-scale", "--cfg-negative-prompt"}, {"classifier-free guidance is not supported"}},
	    {{"--audio"}, {run}},
	    {{"--video"}, {"models read texts, images (--image) and sounds (--audio) here", "models read no videos here"}},
	    {{"--spec-type", "--spec-default", "-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"}, {draft}},
	    {{"--sleep-idle-seconds"}, {"--idle-unload MINUTES does that", serve}},
	    {{"--cors-origins"}, {"--cors ORIGIN does that", serve}},
	    {{"--host", "--port", "--api-key", "--no-webui", "--webui", "--no-ui", "--ui", "--slots", "--no-slots",
	      "--props", "--metrics", "-sps", "--slot-prompt-similarity", "--reuse-port"},
	     {serve}},
	    {{"--embedding", "--embeddings", "--pooling"}, {"kvrun embed makes vectors of texts"}},
	    {{"--perplexity", "--kl-divergence", "--kl-divergence-base"}, {"kvrun eval -f FILE measures both"}},
	};
	return all;
}

// Whether the command has the options that the text names; those behind "kvrun" are of another command.
bool suits(const Command& c, std::string_view text) {
	const auto has = [&](std::string_view name) {
		return std::ranges::any_of(c.options, [&](const Option& o) {
			return o.group_name != kIgnoredGroup && std::ranges::count(o.names(), name);
		});
	};
	for (std::string_view word : split(text, ' ')) {
		if (word == "kvrun") break;
		while (word.starts_with('(')) word.remove_prefix(1);
		word = word.substr(0, word.find_first_of(",;:)"));
		if (word.starts_with('-') && !has(word)) return false;
	}
	return true;
}

} // namespace

std::string llama_advice(const Command& where, std::string_view option) {
	for (const Advice& a : all_advice()) {
		if (!std::ranges::count(a.names, option)) continue;
		const auto text = std::ranges::find_if(a.texts, [&](const char* t) { return suits(where, t); });
		return text == a.texts.end() ? "" : *text;
	}
	return {};
}

} // namespace kvrun
