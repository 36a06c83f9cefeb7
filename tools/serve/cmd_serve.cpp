// kvrun serve: a model over HTTP, in the form of OpenAI's and Anthropic's APIs.
#include "engine/core/system/files.h"
#include "tools/api_model.h"
#include "tools/commands.h"
#include "tools/config_file.h"
#include "tools/hub/local.h"
#include "tools/output.h"
#include "tools/serve/gate.h"
#include "tools/serve/router.h"
#include "tools/serve/serve_options.h"
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

void must(kvrun_status s) {
	if (s != KVRUN_OK) give_up(exit_code_of(s), with_place(kvrun_last_error()));
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
	Service(const ServeArgs& a, const std::vector<std::string>& keys, SessionStore& store, const HttpServer& server,
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
		model->adapters().start_with(adapter_facts(a.loras));
		if (a.loras_unapplied) model->adapters().set_usual(Scales(model->adapters().files().size()));
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
		r.host = a.unix_path.empty() ? a.host : "", r.api_keys = keys, r.log = a.log;
		r.cors = listed_values(a.cors), r.allow_hosts = listed_values(a.allow_hosts);
		r.defaults = defaults_of(a), r.ctx = ctx, r.parallel = uint32_t(a.parallel);
		r.file = sys::path_of(a.model).filename().string();
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
	return (a.certificate.empty() ? "http://" : "https://") + host + ":" + std::to_string(server.port()) +
	       api_prefix(a);
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
	const std::vector<std::string> keys = api_keys(a);
	if (a.max_bodies < a.max_body) give_up(2, "--max-bodies is less than --max-body; give it at least as much");
	if (a.certificate.empty() != a.private_key.empty()) give_up(2, "--ssl-cert-file and --ssl-key-file go together");
	if (!a.certificate.empty() && !a.unix_path.empty()) give_up(2, "--ssl-cert-file is for a port, not for --unix");
	const std::optional<StoreLimit> limit = store_limit(a);
	HttpOptions http;
	http.host = a.host, http.port = uint16_t(a.port), http.unix_path = a.unix_path;
	http.prefix = api_prefix(a);
	http.certificate = a.certificate, http.private_key = a.private_key;
	http.max_body = a.max_body, http.max_bodies = a.max_bodies, http.max_connections = size_t(a.connections);
	http.timeout_s = a.timeout, http.drain_s = a.drain;
	std::unique_ptr<SessionStore> store;
	std::unique_ptr<HttpServer> server; // before the model is loaded: an address in use is reported at once
	try {
		store = std::make_unique<SessionStore>(a.sessions, limit);
		server = std::make_unique<HttpServer>(http);
	} catch (const std::exception& e) { give_up(5, e.what()); }
	if (keys.empty() && a.unix_path.empty() && !is_loopback(a.host))
		std::fputs("warning: anyone who reaches this machine can use the model; --api-key KEY asks for a key\n",
		           stderr);

	CancellerHandle canceller;
	must(create(canceller, kvrun_canceller_new));
	std::unique_ptr<Service> service;
	std::exception_ptr failed;
	Gate gate;
	std::thread loader([&] { // on a thread of its own, so that /health is answered during loading
		try {
			service = std::make_unique<Service>(a, keys, *store, *server, canceller.get());
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

} // namespace

void add_serve(Command& root) {
	auto a = std::make_shared<ServeArgs>();
	Command& c = add_command(root, "serve",
	                         "Answers over HTTP in the form of OpenAI's and Anthropic's APIs, with a page to chat in.");
	c.examples = {
	    {"kvrun serve model.gguf", "for programs on this machine, and a chat page on http://127.0.0.1:8080"},
	    {"kvrun serve model.gguf --kv kivi2 --parallel 8", "eight answers at once, caches of 2 bits per value"},
	    {"kvrun serve model.gguf --host 0.0.0.0 --api-key-file key.txt", "for a network, with a key"}};
	add_serve_options(c, *a);
	c.sections = serve_help();
	c.run = [a] { serve_model(*a); };
}

} // namespace kvrun
