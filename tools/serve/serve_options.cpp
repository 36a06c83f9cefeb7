// The options of kvrun serve.
#include "tools/serve/serve_options.h"
#include "engine/core/system/files.h"
#include "tools/args_cache.h"
#include "tools/args_llama.h"
#include "tools/commands.h"
#include "tools/hub/local.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include "tools/text.h"
#include <algorithm>
#include <fstream>

namespace kvrun {

void give_up(int exit_code, const std::string& message) {
	say_error(message);
	throw Exit{exit_code};
}

static void add_keys_of_file(const std::string& path, std::vector<std::string>& keys) {
	std::ifstream file(sys::path_of(path));
	if (!file) give_up(3, "--api-key-file " + path + " cannot be read");
	const size_t before = keys.size();
	for (std::string line; std::getline(file, line);) {
		if (!line.empty() && line.back() == '\r') line.pop_back();
		if (!line.empty() && line[0] != '#') keys.push_back(std::move(line));
	}
	if (keys.size() == before) give_up(2, "--api-key-file " + path + " has no key; write one into each line");
}

std::vector<std::string> api_keys(const ServeArgs& a) {
	std::vector<std::string> keys = listed_values({a.key});
	if (!a.key_file.empty()) add_keys_of_file(a.key_file, keys);
	for (const std::string& key : keys)
		if (std::ranges::any_of(key, [](char c) { return c <= ' ' || c > '~'; }))
			give_up(2, "a key has a character that is not printable ASCII; choose another");
	return keys;
}

std::string api_prefix(const ServeArgs& a) {
	std::string prefix = a.prefix;
	while (prefix.ends_with('/')) prefix.pop_back();
	const auto bad = [](char c) { return c <= ' ' || c > '~' || c == '?' || c == '#' || c == '%'; };
	if (!prefix.empty() && (prefix[0] != '/' || std::ranges::any_of(prefix, bad)))
		give_up(2, "--api-prefix " + visible(a.prefix, /*lines=*/false) + " is no path like /kvrun");
	return prefix;
}

serve::Defaults defaults_of(const ServeArgs& a) {
	serve::Defaults d(a.kv);
	static_cast<kvrun::Sampling&>(d.sampling) = a.sampling;
	if (a.predict >= 0) d.sampling.max_tokens = uint32_t(std::max<int64_t>(a.predict, 1));
	if (a.sampling.seed >= 0) d.seed = uint64_t(a.sampling.seed);
	d.n_adapters = adapter_facts(a.loras).size();
	d.strict = a.strict, d.raw_reasoning = a.reasoning == "none";
	if (!a.template_variables.empty()) d.template_variables = serve::json_or_null(a.template_variables);
	if (!d.template_variables.is_object()) give_up(2, "--chat-template-kwargs is not a JSON object");
	if (a.no_think) d.template_variables["enable_thinking"] = false;
	return d;
}

namespace {

// Options of llama.cpp's server alone whose effect exists here in any case, or not at all.
void add_no_effect(Command& c) {
	const char* const always = "it is always so";
	const IgnoredOption rows[] = {
	    {"--threads-http", "N", {}, "one thread serves all connections"},
	    {"--jinja", "", {}, always},
	    {"--metrics", "", {}, always},
	    {"--slots", "", {}, always},
	    {"--no-slots", "", {}, "/slots is always there"},
	    {"--props", "", {}, "/props is always there, and changes nothing"},
	    {"--webui,--no-webui", "", {}, "the page is always there"},
	    {"--ui,--no-ui", "", {}, "the page is always there"},
	    {"-cb,--cont-batching", "", {}, always},
	    {"--embedding,--embeddings", "", {}, always},
	    {"--reranking,--rerank", "", {}, "a reranker's file says so itself"},
	    {"--pooling", "WORD", {}, "the model's file says it"},
	    {"--no-context-shift,--context-shift", "", {}, "answers end where the context does"},
	    {"--cache-reuse", "N", {}, "common beginnings of prompts are reused, and no other parts"},
	    {"--cache-prompt", "", {}, always},
	    {"--no-cache-prompt", "", {}, "a request says it: cache_prompt false"},
	    {"-sps,--slot-prompt-similarity", "X", {}, "the longest common beginning of prompts is reused"},
	    {"--reuse-port", "", {}, "one server listens on a port"},
	    {"-v,--verbose,--log-verbose", "", {}, "--log writes a line for each request"},
	};
	add_ignored(c, rows);
}

void add_default_sampling(Command& c, ServeArgs& a) {
	add_sampling(c, a.sampling, "seed of requests that give none; -1: another for each request [-1]");
	add_integer(c, "-n,--n-predict,--predict", a.predict, -1, UINT32_MAX - 1,
	            "tokens of an answer whose request sets no limit; -1: as many as fit, of /v1/completions 16 [-1]")
	    ->group(kSamplingGroup);
}

void add_served_model(Command& c, ServeArgs& a) {
	add_model_options(c, a, "the longest prompt and answer of one request, in tokens");
	add_flag(c, "--lora-init-without-apply", a.loras_unapplied,
	         "load the adapters with the scale 0: requests (lora), or POST /lora-adapters, give another")
	    ->group(kModelGroup);
	add_mmproj(c, a.vision);
	add_text(c, "--chat-template,--chat-template-file", a.chat_template, "NAME|FILE",
	         "chat template: a name, like chatml, or a file in Jinja [the model's own]")
	    ->group(kModelGroup);
	add_text(c, "--chat-template-kwargs", a.template_variables, "JSON",
	         "more variables of the template, like '{\"enable_thinking\": false}'; those of a request come first")
	    ->group(kModelGroup);
	add_flag(c, "--no-think", a.no_think,
	         "answer without reasoning, where the template knows how and the request does not say "
	         "(chat_template_kwargs, thinking)")
	    ->group(kModelGroup);
	add_choice(c, "--reasoning-format", a.reasoning, {"auto", "none", "deepseek"},
	           "of chats whose request does not say: none leaves reasoning and its markers in the text; else it is a "
	           "field of its own [auto]")
	    ->group(kModelGroup);
	add_text(c, "-a,--alias", a.alias, "NAME", "what requests call the model [the file's name without .gguf]")
	    ->group(kModelGroup);
	const Option* embedder = add_text(c, "--embedding-model", a.embedder, kModelFile,
	                                  "answer /v1/embeddings and /v1/rerank with this model, a file or a name of kvrun "
	                                  "list, on the same device [the model itself]")
	                             ->of_models()
	                             ->group(kModelGroup);
	c.before_run.push_back([embedder, &a] {
		if (embedder->count) a.embedder = resolve_model(a.embedder).path;
	});
	add_flag(c, "--strict-model", a.strict_model,
	         "refuse requests that name another model; else this one answers them, and its name is in the answer")
	    ->group(kModelGroup);
	add_draft_options(c, a.draft, kModelGroup);
	add_cache_policy(c, a.kv, kPolicy,
	                 "policy of requests that have no field kv of their own; kvrun help plan lists them [fp16]");
	add_kv_budget(c, a.kv_budget, "all KV caches");
	add_host_memory(c, a);
	add_text(c, "--sessions,--slot-save-path", a.sessions, kFolder,
	         "keep conversations that requests give a name (field session) in this folder, packed, across restarts")
	    ->group(kCacheGroup);
	add_bytes(
	    c, "--sessions-max", a.sessions_max,
	    "most that they may have, like 20G; a number below 64K: so many conversations. The one saved longest ago goes "
	    "first, pinned ones never [a tenth of the disk]")
	    ->group(kCacheGroup);
	add_real(c, "--idle-unload", a.idle_unload, 0, 1e6,
	         "minutes without a request after which the model leaves the device's memory; the next request loads it "
	         "again; 0: never [0]")
	    ->group(kCacheGroup);
	add_integer(c, "--idle-sessions", a.idle_sessions, 0, 4096,
	            "most caches kept after their answers, so that a prompt that begins like one is not read again; those "
	            "unused longest go first, also when half of the memory for caches is in use [64]")
	    ->group(kCacheGroup);
}

void add_server_options(Command& c, ServeArgs& a) {
	const char* group = "Server";
	add_text(c, "--host", a.host, "ADDRESS", "address to listen on [127.0.0.1]")->group(group);
	add_integer(c, "--port", a.port, 0, 65535, "port to listen on; 0: a free one, which is printed [8080]")
	    ->group(group);
	add_text(c, "--unix", a.unix_path, kFile,
	         "listen on a socket of this name in the file system, for its owner alone, and on no port")
	    ->group(group);
	add_text(c, "--api-prefix", a.prefix, "PATH",
	         "put all paths below this one, like /kvrun, behind a proxy that passes it on; the page is then there, too")
	    ->group(group);
	const Option* key =
	    add_text(c, "--api-key", a.key, "KEY",
	             "key that requests must give, as Authorization: Bearer KEY or X-Api-Key: KEY, or several, divided by "
	             "commas; the page and /health need none")
	        ->group(group);
	c.before_run.push_back([key, &a] { // of a variable that is not set, without which anyone could use the server
		if (key->count && listed_values({a.key}).empty())
			give_up(2, "--api-key has no key; give one, or leave the option out");
	});
	add_text(c, "--api-key-file", a.key_file, kFile,
	         "the same, one in each line of a file; empty lines and those that begin with # are left out")
	    ->group(group);
	add_text(c, "--ssl-cert-file", a.certificate, kFile,
	         "use TLS (https://): certificate in PEM form, followed by those of its authorities")
	    ->group(group);
	add_text(c, "--ssl-key-file", a.private_key, kFile, "its private key in PEM form, without a password")
	    ->group(group);
	add_texts(
	    c, "--cors", a.cors, "ORIGIN",
	    "let pages of this origin use the server, like https://example.org, or of several, divided by commas; may "
	    "be given several times; *: of all")
	    ->group(group);
	add_texts(c, "--allow-host", a.allow_hosts, "NAME",
	          "also answer requests for this host, like host.docker.internal, on a server that listens on this machine "
	          "only; may be given several times")
	    ->group(group);
	add_integer(c, "--parallel,-np", a.parallel, 1, 64,
	            "answers that are generated at once, and the most of one request (n) [4]")
	    ->group(group);
	add_integer(c, "--queue", a.queue, 0, 10000, "answers that wait for one of them to end; more are refused [32]")
	    ->group(group);
	add_integer(c, "--max-connections", a.connections, 1, 10000, "connections at once; more are refused [256]")
	    ->group(group);
	add_bytes(c, "--max-body", a.max_body, "longest body of a request [8M]")->group(group);
	add_bytes(c, "--max-bodies", a.max_bodies,
	          "most memory for the bodies of all requests that are received or wait; more are refused [64M]")
	    ->group(group);
	add_real(c, "-to,--timeout", a.timeout, 0.1, 86400,
	         "seconds a client may take to send a header or a body, to take an answer, and between requests [30]")
	    ->group(group);
	add_real(c, "--ping", a.ping, 0, 86400,
	         "seconds between signs of life in a stream while its prompt is read: comments that say how far it is [10]")
	    ->group(group);
	add_real(c, "--drain", a.drain, 0, 86400, "seconds that requests under way are given after SIGTERM or Ctrl-C [30]")
	    ->group(group);
	add_flag(c, "--strict", a.strict,
	         "refuse requests with fields that the server does not know; else they are ignored")
	    ->group(group);
	add_flag(c, "--log", a.log, "one line on stderr for each request, without its content")->group(group);
}

std::string listed(std::span<const char* const> names) {
	std::string out;
	for (const char* name : names) out += (out.empty() ? "" : ", ") + std::string(name);
	return out;
}

std::string sampling_fields() {
	std::vector<const char*> names;
	for (const SamplingOption& o : sampling_options()) names.push_back(o.field);
	return listed(names);
}

} // namespace

void add_serve_options(Command& c, ServeArgs& a) {
	add_served_model(c, a);
	add_server_options(c, a);
	add_default_sampling(c, a);
	add_no_effect(c);
	add_llama_options(c);
}

std::vector<Section> serve_help() {
	return {
	    {"Routes",
	     "",
	     {{"GET /", "a page to chat in"},
	      {"GET /health", "{\"status\": \"ok\", \"model\": \"loaded\"}; 503 while it is loaded at the start"},
	      {"GET /v1/models, /v1/models/NAME", "the model: its size, and the context of a request (meta.n_ctx)"},
	      {"GET /props", "settings of requests, places, chat template, modalities, as llama.cpp's server has them"},
	      {"GET, POST /lora-adapters",
	       "the adapters of --lora and their scales, for requests that give none (lora); requests with other scales "
	       "wait until answers under way have ended"},
	      {"POST /v1/chat/completions", "the next message of a conversation, with tools, whole or as a stream"},
	      {"POST /v1/completions", "continues a text, or several; fills in the middle before a suffix"},
	      {"POST /completion", "continues a text in llama.cpp's own form"},
	      {"POST /infill", "fills in the middle, as llama.cpp's server does for editors"},
	      {"POST /v1/responses", "the same as conversations, in the form of OpenAI's Responses API"},
	      {"POST /v1/messages", "the same in the form of Anthropic's Messages API; /count_tokens below it"},
	      {"POST /api/chat",
	       "the same in the form of Ollama's API; also /api/generate, /api/embed, /api/tags, /api/ps, /api/show and "
	       "/api/version"},
	      {"POST /v1/audio/transcriptions", "what is said in a sound, which a form holds; with an audio encoder"},
	      {"POST /v1/embeddings", "a vector of length 1 for each text: the mean of the last hidden states, or what the "
	                              "model's file says"},
	      {"POST /v1/rerank",
	       "{query, documents, top_n}: documents by how well they answer the query, with a reranker"},
	      {"POST /apply-template", "{prompt}: the text of a conversation that the model continues"},
	      {"POST /v1/chat/completions/input_tokens", "how many tokens a conversation has; also below /v1/responses"},
	      {"POST /tokenize, /detokenize", "{content, add_special, parse_special, with_pieces} to {tokens}, and back; "
	                                      "content may be a list of texts and "
	                                      "tokens"},
	      {"GET /slots", "places of --parallel: answers under way, with their tokens, KV bytes and what they fetch"},
	      {"GET /sessions, /sessions/NAME", "kept conversations; the messages of one. DELETE removes it"},
	      {"POST /sessions/NAME", "{\"pinned\": true}: it stays, whatever --sessions-max says; false: no more"},
	      {"GET /metrics", "requests, tokens, queue and KV bytes for Prometheus"}}},
	    {"Requests",
	     "Fields are those of OpenAI's API. A field that the server does not know is ignored, and the log names it "
	     "once; --strict refuses it. A known one that would change the answer and is not provided for is refused by "
	     "name. These change no answer: " +
	         listed(serve::harmless_fields()) +
	         ". Tools that are no functions are left out. Where the chat template has no place for tools, the system "
	         "message describes them. "
	         "A conversation that ends with a message of the assistant is continued there; add_generation_prompt true: "
	         "it is not. n_predict, n_probs and repetition_penalty are other names of max_tokens, logprobs and "
	         "repeat_penalty. logit_bias, frequency_penalty and presence_penalty (of the answer's tokens) are applied "
	         "after repeat_penalty. max_tokens -1: as many as there is room for. prompt may be an array of texts or of "
	         "arrays of tokens: choices of prompt p begin at p times n. A body's JSON may be nested 64 levels deep and "
	         "have 2097152 values and 65536 keys. Beyond OpenAI's fields: kv, the cache policy of the request; "
	         "session, the name under which its conversation is kept; cache_prompt, false: nothing of an earlier "
	         "request is reused; sampling options, with the ranges of kvrun run: " +
	         sampling_fields() +
	         " and dry_sequence_breakers; samplers, an array of names: the others are left out, the order is kvrun's; "
	         "seed, -1 or 4294967295: a random one for each request; t_max_predict_ms: an answer that has a line break "
	         "ends after this time; n_indent: it ends before a line with fewer spaces and tabs at its beginning; "
	         "ignore_eos; chat_template_kwargs; reasoning_format, none: "
	         "a chat's answer is all that the model writes; speculative.n_max, most tokens guessed for "
	         "a step under --draft, 0: none. timings then have draft_n and draft_n_accepted; answers with logprobs are "
	         "not guessed. Sampling options that a request leaves out have the values of the command line. n asks for "
	         "several answers to one prompt, which is read once: choice i has the seed + i. return_progress: a "
	         "stream says how far its prompt is read, in prompt_progress; timings_per_token: its events have timings. "
	         "/completion and /infill also take return_tokens, and response_fields: only these fields of the answer, "
	         "like "
	         "timings/predicted_n."},
	    {"SIGTERM and Ctrl-C",
	     "No new requests are taken, requests under way are given --drain seconds and then cancelled, and the exit "
	     "code is 0; work that cannot be stopped is given up 5 seconds later. A second signal ends the program at "
	     "once: a shell says 143 for SIGTERM and 130 for Ctrl-C."}};
}

} // namespace kvrun
