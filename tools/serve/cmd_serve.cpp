// kvrun serve: a model over HTTP, in the form of OpenAI's and Anthropic's APIs.
#include "engine/core/system/files.h"
#include "tools/api_model.h"
#include "tools/commands.h"
#include "tools/hub/local.h"
#include "tools/output.h"
#include "tools/serve/gate.h"
#include "tools/serve/router.h"
#include "tools/terminal.h"
#include "tools/text.h"
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <fstream>
#include <thread>

namespace kvrun {
namespace {

using namespace serve;

struct ServeArgs : ModelArgs {
	DraftArgs draft;
	std::string embedder; // file of the model of embeddings; empty: the model itself
	std::string alias, chat_template, kv = "fp16", key, key_file, cors, host = "127.0.0.1", unix_path, sessions;
	std::string certificate, private_key; // of TLS
	int64_t port = 8080, parallel = 4, queue = 32, idle_sessions = 64, connections = 256;
	uint64_t max_body = 8 << 20, max_bodies = 64 << 20;
	uint64_t sessions_max = 0; // 0 if not given
	double timeout = 30, drain = 30, ping = 10, idle_unload = 0;
	bool log = false, strict_model = false;
};

[[noreturn]] void give_up(int exit_code, const std::string& message) {
	say_error(message);
	throw Exit{exit_code};
}

void must(kvrun_status s) {
	if (s != KVRUN_OK) give_up(exit_code_of(s), kvrun_last_error());
}

std::string api_key(const ServeArgs& a) {
	if (!a.key.empty() && !a.key_file.empty())
		give_up(2, "--api-key and --api-key-file are both given; give one of them");
	std::string key = a.key;
	if (!a.key_file.empty()) {
		std::ifstream file(sys::path_of(a.key_file));
		if (!std::getline(file, key))
			give_up(3, "--api-key-file " + a.key_file + " has no first line that can be read");
		if (!key.empty() && key.back() == '\r') key.pop_back();
		if (key.empty()) give_up(2, "--api-key-file " + a.key_file + " begins with an empty line; write the key there");
	}
	if (std::ranges::any_of(key, [](char c) { return c <= ' ' || c > '~'; }))
		give_up(2, "the key has a character that is not printable ASCII; choose another");
	return key;
}

EngineHandle open_engine(const ServeArgs& a, kvrun_canceller* canceller) {
	EngineHandle opened;
	const kvrun_status s = open_model(a, a.draft, a.kv, uint32_t(a.parallel), canceller, /*show=*/true, opened);
	if (s == KVRUN_ECANCELLED) throw Exit{0}; // cancelled by a signal: exits as after serving
	must(s);
	return opened;
}

// Modification time of the model's file, in seconds of the system's clock; 0 if it cannot be read.
int64_t file_time(const std::string& path) {
	sys::FileInfo info;
	return sys::stat_file(path, /*follow_link=*/true, info) ? info.changed_ns / 1'000'000'000 : 0;
}

// On the model's device, or the first of several.
std::unique_ptr<serve::Model> open_embedder(const ServeArgs& a, kvrun_canceller* canceller) {
	ModelArgs own;
	own.model = a.embedder, own.device = a.device.substr(0, a.device.find(',')), own.check = a.check;
	EngineHandle opened;
	const kvrun_status s = open_model(own, {}, "", 1, canceller, /*show=*/true, opened);
	if (s == KVRUN_ECANCELLED) throw Exit{0};
	must(s);
	auto model = std::make_unique<serve::Model>(std::move(opened), sys::path_of(a.embedder).stem().string(), "");
	model->set_created(file_time(a.embedder));
	return model;
}

// Reloads the model for a request that arrives after --idle-unload has unloaded it.
EngineHandle reopen_engine(const ServeArgs& a, kvrun_canceller* canceller) {
	EngineHandle opened;
	const kvrun_status s = open_model(a, a.draft, a.kv, uint32_t(a.parallel), canceller, /*show=*/false, opened);
	if (s == KVRUN_OK) return opened;
	if (s == KVRUN_ECANCELLED) throw ApiError(503, "the server is shutting down");
	say_error(std::string("the model cannot be loaded again: ") + kvrun_last_error());
	throw ApiError(503, "the model cannot be loaded again; the server's log says why", "", "loading");
}

// Checks that a session of the default policy can be opened; returns its context.
uint32_t try_session(const ServeArgs& a, kvrun_engine* engine) {
	if (const kvrun_engine_info i = engine_info(engine); i.encodes) return i.ctx_train;
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.kv = a.kv.c_str();
	o.ctx = uint32_t(a.ctx);
	SessionHandle session;
	must(create(session, kvrun_session_open, engine, &o));
	const kvrun_session_info i = session_info(session.get());
	if (a.draft.given() && !i.takes_drafts)
		give_up(2, "no drafts: " + why_no_drafts(a.kv) + "; leave --draft out, or give another --kv");
	return i.ctx;
}

// Prints what is served, before the first request.
void say_what_runs(const ServeArgs& a, const serve::Model& model, const serve::Model* embedder, uint32_t ctx) {
	const kvrun_engine_info i = model.info();
	const auto bytes = [](uint64_t n) { return human_bytes(double(n)); };
	std::string text = "model " + model.id() + ": " + i.architecture + ", weights of " + bytes(i.weight_bytes) + "\n";
	text += std::string(i.device_is_cpu ? "running on a CPU device: " : "device: ") + i.device_name;
	if (*i.device_driver) text += std::string(", driver ") + i.device_driver;
	if (*i.weights) text += std::string("\n") + i.weights;
	if (embedder)
		text += "\nembeddings by " + embedder->id() + ": " + embedder->info().architecture + ", weights of " +
		        bytes(embedder->info().weight_bytes);
	if (i.encodes) {
		text += "\nencodes texts of up to " + std::to_string(ctx) + " tokens; it generates none, and answers " +
		        (i.n_scores ? "/v1/rerank and " : "") + "/v1/embeddings\n";
		std::fputs(visible(text, /*lines=*/true).c_str(), stderr);
		return;
	}
	text += "\ncontext of " + std::to_string(ctx) + " tokens a request, " + std::to_string(a.parallel) +
	        " answers at once; policy " + a.kv + " where a request names none; " + bytes(i.kv_budget_bytes) +
	        " for all caches\n";
	if (!model.can_chat())
		text += "warning: the model's file has no chat template, so that conversations are refused; give "
		        "--chat-template NAME|FILE, or use /v1/completions\n";
	std::fputs(visible(text, /*lines=*/true).c_str(), stderr);
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

struct Service { // what the server needs to answer, created after the model is loaded
	Service(const ServeArgs& a, const std::string& key, SessionStore& store, const HttpServer& server,
	        kvrun_canceller* canceller) {
		if (!a.embedder.empty()) embedder = open_embedder(a, canceller); // first: the model gets the remaining memory
		EngineHandle engine = open_engine(a, canceller);
		const uint32_t ctx = try_session(a, engine.get());
		const std::string id = a.alias.empty() ? sys::path_of(a.model).stem().string() : a.alias;
		try {
			model = std::make_unique<serve::Model>(std::move(engine), id, a.chat_template);
		} catch (const ApiError& e) { give_up(2, e.what()); } catch (const StatusError& e) {
			give_up(exit_code_of(e.status), e.what());
		}
		model->set_created(file_time(a.model));
		say_what_runs(a, *model, embedder.get(), ctx);
		model->residency().reload_with([&a, canceller] { return reopen_engine(a, canceller); });
		const GeneratorOptions o{uint32_t(a.parallel),
		                         uint32_t(a.queue),
		                         uint32_t(a.idle_sessions),
		                         uint32_t(a.ctx),
		                         std::chrono::duration<double, std::ratio<60>>(a.idle_unload),
		                         a.draft.draft_max()};
		generator = std::make_unique<Generator>(*model, o);
		RouterOptions r;
		r.host = a.unix_path.empty() ? a.host : "", r.api_key = key, r.cors = a.cors, r.kv = a.kv, r.log = a.log;
		r.tls = !a.certificate.empty();
		r.strict_model = a.strict_model, r.ping_s = a.ping, r.embeddings = uint32_t(a.queue + a.parallel);
		router = std::make_unique<Router>(*model, embedder ? *embedder : *model, *generator, store, server, r);
	}
	std::unique_ptr<serve::Model> embedder; // null: the model itself
	std::unique_ptr<serve::Model> model;
	std::unique_ptr<Generator> generator;
	std::unique_ptr<Router> router;
};

std::string address(const ServeArgs& a, const HttpServer& server) {
	if (!a.unix_path.empty()) return "unix:" + a.unix_path;
	const std::string host = a.host.find(':') == std::string::npos ? a.host : "[" + a.host + "]";
	return (a.certificate.empty() ? "http://" : "https://") + host + ":" + std::to_string(server.port());
}

constexpr uint64_t kLeastBytes = 64 << 10; // --sessions-max: a smaller number is a number of conversations

std::optional<StoreLimit> store_limit(const ServeArgs& a) {
	if (a.sessions_max && a.sessions.empty()) give_up(2, "--sessions-max is for servers with --sessions FOLDER");
	if (!a.sessions_max) return {};
	StoreLimit limit;
	(a.sessions_max < kLeastBytes ? limit.count : limit.bytes) = a.sessions_max;
	return limit;
}

// Ends the program if work in progress cannot be stopped, for example if a driver hangs or a disk does not respond.
class LastResort {
 public:
	LastResort()
	    : thread_([this] {
		      std::unique_lock lock(mutex_);
		      if (!ended_.wait_for(lock, kPatience, [this] { return done_; })) std::_Exit(0);
	      }) {}
	~LastResort() {
		{
			std::lock_guard lock(mutex_);
			done_ = true;
		}
		ended_.notify_all();
		thread_.join();
	}

 private:
	static constexpr std::chrono::seconds kPatience{5};
	std::mutex mutex_;
	std::condition_variable ended_;
	bool done_ = false;
	std::thread thread_;
};

void serve_model(const ServeArgs& a) {
	const std::string key = api_key(a);
	if (a.max_bodies < a.max_body) give_up(2, "--max-bodies is less than --max-body; give it at least as much");
	if (a.certificate.empty() != a.private_key.empty()) give_up(2, "--ssl-cert-file and --ssl-key-file go together");
	if (!a.certificate.empty() && !a.unix_path.empty()) give_up(2, "--ssl-cert-file is for a port, not for --unix");
	const std::optional<StoreLimit> limit = store_limit(a);
	HttpOptions http;
	http.host = a.host, http.port = uint16_t(a.port), http.unix_path = a.unix_path;
	http.certificate = a.certificate, http.private_key = a.private_key;
	http.max_body = a.max_body, http.max_bodies = a.max_bodies, http.max_connections = size_t(a.connections);
	http.timeout_s = a.timeout, http.drain_s = a.drain;
	std::unique_ptr<SessionStore> store;
	std::unique_ptr<HttpServer> server; // before the model is loaded: an address in use is reported at once
	try {
		store = std::make_unique<SessionStore>(a.sessions, limit);
		server = std::make_unique<HttpServer>(http);
	} catch (const std::exception& e) { give_up(5, e.what()); }
	if (key.empty() && a.unix_path.empty() && !is_loopback(a.host))
		std::fputs("warning: anyone who reaches this machine can use the model; --api-key KEY asks for a key\n",
		           stderr);

	CancellerHandle canceller;
	must(create(canceller, kvrun_canceller_new));
	std::unique_ptr<Service> service;
	std::exception_ptr failed;
	Gate gate;
	std::thread loader([&] { // on a thread of its own, so that /health is answered during loading
		try {
			service = std::make_unique<Service>(a, key, *store, *server, canceller.get());
			gate.open(*service->router);
			write_stdout("listening on " + address(a, *server) + "\n");
		} catch (...) {
			failed = std::current_exception();
			server->stop();
		}
	});
	server->run(gate);
	std::optional<LastResort> last_resort(std::in_place);
	kvrun_cancel(canceller.get()); // stops loading if a signal arrived during it
	loader.join();
	service.reset();
	last_resort.reset();
	if (failed) std::rethrow_exception(failed);
}

void add_served_model(Command& c, ServeArgs& a) {
	add_model_options(c, a, "the longest prompt and answer of one request, in tokens");
	add_mmproj(c, a.vision);
	add_text(c, "--chat-template", a.chat_template, "NAME|FILE",
	         "chat template: a name, like chatml, or a file in Jinja [the model's own]")
	    ->group(kModelGroup);
	add_text(c, "-a,--alias", a.alias, "NAME", "what requests call the model [the file's name without .gguf]")
	    ->group(kModelGroup);
	const Option* embedder = add_text(c, "--embedding-model", a.embedder, kModelFile,
	                                  "answer /v1/embeddings and /v1/rerank with this model, a file or a name of kvrun "
	                                  "list, on the same device [the model itself]")
	                             ->group(kModelGroup);
	c.before_run.push_back([embedder, &a] {
		if (embedder->count) a.embedder = resolve_model(a.embedder).path;
	});
	add_flag(c, "--strict-model", a.strict_model,
	         "refuse requests that name another model; else this one answers them, and its name is in the answer")
	    ->group(kModelGroup);
	add_draft_options(c, a.draft, kModelGroup);
	add_text(c, "--kv", a.kv, kPolicy,
	         "policy of requests that have no field kv of their own; kvrun help plan lists them [fp16]")
	    ->group(kCacheGroup);
	add_kv_budget(c, a.kv_budget, "all KV caches");
	add_host_memory(c, a);
	add_text(c, "--sessions", a.sessions, kFolder,
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
	add_text(
	    c, "--api-key", a.key, "KEY",
	    "key that requests must give, as Authorization: Bearer KEY or X-Api-Key: KEY; the page and /health need none")
	    ->group(group);
	add_text(c, "--api-key-file", a.key_file, kFile, "the same, from the first line of a file")->group(group);
	add_text(c, "--ssl-cert-file", a.certificate, kFile,
	         "use TLS (https://): certificate in PEM form, followed by those of its authorities")
	    ->group(group);
	add_text(c, "--ssl-key-file", a.private_key, kFile, "its private key in PEM form, without a password")
	    ->group(group);
	add_text(c, "--cors", a.cors, "ORIGIN",
	         "let pages of this origin use the server, like https://example.org; *: of all")
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
	add_real(c, "--timeout", a.timeout, 0.1, 86400,
	         "seconds a client may take to send a header or a body, to take an answer, and between requests [30]")
	    ->group(group);
	add_real(c, "--ping", a.ping, 0, 86400,
	         "seconds between signs of life in a stream while its prompt is read: comments that say how far it is [10]")
	    ->group(group);
	add_real(c, "--drain", a.drain, 0, 86400, "seconds that requests under way are given after SIGTERM or Ctrl-C [30]")
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

void add_serve(Command& root) {
	auto a = std::make_shared<ServeArgs>();
	Command& c = add_command(root, "serve",
	                         "Answers over HTTP in the form of OpenAI's and Anthropic's APIs, with a page to chat in.");
	c.examples = {
	    {"kvrun serve model.gguf", "for programs on this machine, and a chat page on http://127.0.0.1:8080"},
	    {"kvrun serve model.gguf --kv kivi2 --parallel 8", "eight answers at once, caches of 2 bits per value"},
	    {"kvrun serve model.gguf --host 0.0.0.0 --api-key-file key.txt", "for a network, with a key"}};
	add_served_model(c, *a);
	add_server_options(c, *a);
	c.sections = {
	    {"Routes",
	     "",
	     {{"GET /", "a page to chat in"},
	      {"GET /health", "{\"status\": \"ok\", \"model\": \"loaded\"}; 503 while it is loaded at the start"},
	      {"GET /v1/models, /v1/models/NAME", "the model"},
	      {"POST /v1/chat/completions", "the next message of a conversation, with tools, whole or as a stream"},
	      {"POST /v1/completions", "continues a text, or several; fills in the middle before a suffix"},
	      {"POST /infill", "fills in the middle, as llama.cpp's server does for editors"},
	      {"POST /v1/responses", "the same as conversations, in the form of OpenAI's Responses API"},
	      {"POST /v1/messages", "the same in the form of Anthropic's Messages API; /count_tokens below it"},
	      {"POST /v1/embeddings", "a vector of length 1 for each text: the mean of the last hidden states, or what the "
	                              "model's file says"},
	      {"POST /v1/rerank",
	       "{query, documents, top_n}: documents by how well they answer the query, with a reranker"},
	      {"POST /tokenize, /detokenize", "{content, add_special, parse_special} to {tokens}, and back"},
	      {"GET /slots", "answers under way, with their tokens, KV bytes and what they fetch"},
	      {"GET /sessions, /sessions/NAME", "kept conversations; the messages of one. DELETE removes it"},
	      {"POST /sessions/NAME", "{\"pinned\": true}: it stays, whatever --sessions-max says; false: no more"},
	      {"GET /metrics", "requests, tokens, queue and KV bytes for Prometheus"}}},
	    {"Requests",
	     "Fields are those of OpenAI's API. No field is ignored: one that is not provided for, or not known, is "
	     "refused "
	     "by name, but for those that change no answer: " +
	         listed(harmless_fields()) +
	         ". logit_bias, frequency_penalty and presence_penalty (of the answer's tokens) are applied "
	         "after repeat_penalty. max_tokens -1: as many as there is room for. prompt may be an array of texts or of "
	         "arrays of tokens: choices of prompt p begin at p times n. A body's JSON may be nested 64 levels deep and "
	         "have 2097152 values and 65536 keys. "
	         "Beyond OpenAI's fields: kv, the cache policy of the request; session, the name under which its "
	         "conversation "
	         "is kept; cache_prompt, false: nothing of an earlier request "
	         "is reused; sampling options, with the ranges of kvrun run: " +
	         sampling_fields() +
	         " and dry_sequence_breakers; ignore_eos; chat_template_kwargs; "
	         "speculative.n_max, most tokens guessed for a step under --draft, 0: none. Answers then have timings with "
	         "draft_n and draft_n_accepted; those with logprobs are not guessed. Without "
	         "sampling options the values of kvrun run hold. n asks for several answers to one "
	         "prompt, "
	         "which is read once: choice i has the seed + i."},
	    {"SIGTERM and Ctrl-C",
	     "No new requests are taken, requests under way are given --drain seconds and then cancelled, and the exit "
	     "code "
	     "is 0; work that cannot be stopped is given up 5 seconds later. A second signal ends the program at once: a "
	     "shell says 143 for SIGTERM and 130 for Ctrl-C."}};
	c.run = [a] { serve_model(*a); };
}

} // namespace kvrun
