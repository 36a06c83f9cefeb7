// Routes: checks who may send a request, and dispatches it to the function that answers it.
#include "tools/serve/router.h"
#include "tools/serve/messages.h"
#include "tools/serve/ollama.h"
#include <algorithm>
#include <array>
#include <cstdio>

namespace kvrun::serve {

// ---- access control

const Router::Route Router::kRoutes[] = {
    {"GET", "/", true, &Router::page},
    {"GET", "/health", true, &Router::health},
    {"GET", "/v1/health", true, &Router::health},
    {"GET", "/props", false, &Router::props, Needs::Model},
    {"GET", "/metrics", false, &Router::metrics},
    {"GET", "/slots", false, &Router::slots},
    {"GET", "/lora-adapters", false, &Router::adapters},
    {"POST", "/lora-adapters", false, &Router::set_adapters},
    {"POST", kSlotPath, false, &Router::slot_action},
    {"GET", "/sessions", false, &Router::sessions},
    {"GET", kSessionPath, false, &Router::session},
    {"POST", kSessionPath, false, &Router::pin_session},
    {"DELETE", kSessionPath, false, &Router::remove_session},
    {"GET", "/v1/models", false, &Router::models},
    {"GET", "/models", false, &Router::models},
    {"GET", kModelPath, false, &Router::model},
    {"POST", "/v1/chat/completions", false, &Router::chat, Needs::Queue},
    {"POST", "/chat/completions", false, &Router::chat, Needs::Queue},
    {"POST", "/v1/chat/completions/input_tokens", false, &Router::chat_tokens, Needs::Model},
    {"POST", "/apply-template", false, &Router::apply_template, Needs::Model},
    {"POST", "/v1/completions", false, &Router::completion, Needs::Queue},
    {"POST", "/completions", false, &Router::native_completion, Needs::Queue},
    {"POST", "/completion", false, &Router::native_completion, Needs::Queue},
    {"POST", "/infill", false, &Router::infill, Needs::Queue},
    {"POST", "/v1/responses", false, &Router::responses, Needs::Queue},
    {"POST", "/v1/responses/input_tokens", false, &Router::response_tokens, Needs::Model},
    {"POST", kMessagesPath, false, &Router::messages, Needs::Queue},
    {"POST", "/v1/messages/count_tokens", false, &Router::count_tokens, Needs::Model},
    {"POST", "/v1/audio/transcriptions", false, &Router::transcribe, Needs::Queue},
    {"POST", "/v1/embeddings", false, &Router::embeddings, Needs::Embedder},
    {"POST", "/embeddings", false, &Router::embeddings, Needs::Embedder},
    {"POST", "/embedding", false, &Router::embeddings, Needs::Embedder},
    {"POST", "/v1/rerank", false, &Router::rerank, Needs::Embedder},
    {"POST", "/rerank", false, &Router::rerank, Needs::Embedder},
    {"POST", "/v1/reranking", false, &Router::rerank, Needs::Embedder},
    {"POST", "/reranking", false, &Router::rerank, Needs::Embedder},
    {"GET", "/api/version", true, &Router::ollama_version},
    {"GET", "/api/tags", false, &Router::ollama_tags},
    {"GET", "/api/ps", false, &Router::ollama_tags},
    {"POST", "/api/show", false, &Router::ollama_show, Needs::Model},
    {"POST", "/api/chat", false, &Router::ollama_chat, Needs::Queue},
    {"POST", "/api/generate", false, &Router::ollama_generate, Needs::Queue},
    {"POST", "/api/embed", false, &Router::ollama_embed, Needs::Embedder},
    {"POST", "/api/embeddings", false, &Router::ollama_embed, Needs::Embedder},
    {"POST", "/tokenize", false, &Router::tokenize, Needs::Model},
    {"POST", "/detokenize", false, &Router::detokenize, Needs::Model},
};

Response error_for(const HttpRequest& r, const ApiError& e) {
	if (r.path.starts_with(kMessagesPath)) return messages_error(e);
	return r.path.starts_with(kOllamaPath) ? ollama_error(e) : error_response(e);
}

Router::Router(const Model& model, const Model& embedder, Generator& generator, SessionStore& store,
               const HttpServer& server, const RouterOptions& o)
    : model_(model), embedder_model_(embedder), generator_(generator), store_(store), server_(server), options_(o),
      defaults_([this] {
	      Defaults d = options_.defaults;
	      d.notices = &notices_;
	      return d;
      }()),
      grammars_(model, defaults_) {}

bool Router::is_path_of(const Route& r, const HttpRequest& request) {
	const std::string_view path = r.path;
	const bool named =
	    path.size() > 1 && path.ends_with('/') && request.path.size() > path.size() && request.path.starts_with(path);
	return named || request.path == path;
}

const Router::Route* Router::find_route(const HttpRequest& request) {
	const Route* other = nullptr;
	for (const Route& r : kRoutes) {
		if (!is_path_of(r, request)) continue;
		if (request.method == r.method) return &r;
		if (!other) other = &r;
	}
	return other;
}

std::string Router::methods_for(const HttpRequest& request) {
	std::string out;
	for (const Route& r : kRoutes)
		if (is_path_of(r, request)) out.append(out.empty() ? "" : ", ").append(r.method);
	return out;
}

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
	unsigned different = given.size() != secret.size();
	for (size_t i = 0; i < given.size(); ++i)
		different |= unsigned(uint8_t(given[i]) ^ uint8_t(secret.empty() ? 0 : secret[i % secret.size()]));
	return different == 0;
}

static bool allows(const std::vector<std::string>& list, std::string_view one) {
	return std::ranges::count(list, one) > 0;
}

// DNS rebinding: a page whose host name was made to resolve to this machine must not reach a server that listens on
// loopback only.
bool Router::good_host(const HttpRequest& r) const {
	if (options_.host.empty()) return true; // browsers cannot connect to a Unix socket
	const auto local = [](std::string_view name) {
		return name == "localhost" || name == "::1" || name == "[::1]" || name.starts_with("127.");
	};
	if (r.host.empty() || !local(options_.host)) return true;
	const size_t colon = r.host.rfind(':'), bracket = r.host.rfind(']');
	const bool port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
	const std::string name = r.host.substr(0, port ? colon : std::string::npos);
	return name == "localhost" || name == "127.0.0.1" || name == "[::1]" || name == options_.host ||
	       allows(options_.allow_hosts, name);
}

// The page's own requests come from https:// also where a proxy in front of this server ends TLS.
bool Router::good_origin(const HttpRequest& r) const {
	return r.origin.empty() || allows(options_.cors, "*") || allows(options_.cors, r.origin) ||
	       r.origin == "https://" + r.host || (!options_.tls && r.origin == "http://" + r.host);
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

// The key is in X-Api-Key, as in Anthropic's API, or in Authorization as defined by RFC 6750.
bool Router::good_key(const HttpRequest& r) const {
	constexpr std::string_view kScheme = "bearer "; // case-insensitive (RFC 9110)
	const std::string_view given = r.authorization;
	if (options_.api_keys.empty()) return true;
	const bool bearer = std::ranges::equal(given.substr(0, kScheme.size()), kScheme, {}, lower);
	const std::string_view keys[] = {r.api_key, bearer ? given.substr(kScheme.size()) : ""};
	bool good = false; // all are compared, so that the time does not tell which one is
	for (const std::string_view key : keys)
		for (const std::string& secret : options_.api_keys) good |= !key.empty() && equal_in_constant_time(key, secret);
	return good;
}

// Header fields that web pages may send: those that browser clients of the APIs send.
static bool page_may_send(std::string_view field) {
	constexpr std::string_view kFields[] = {"accept",
	                                        "anthropic-beta",
	                                        "anthropic-dangerous-direct-browser-access",
	                                        "anthropic-version",
	                                        "authorization",
	                                        "content-type",
	                                        "idempotency-key",
	                                        "openai-beta",
	                                        "openai-organization",
	                                        "openai-project",
	                                        "x-api-key",
	                                        "x-request-id"};
	return std::ranges::count(kFields, field) > 0 || field.starts_with("x-stainless-"); // the client's platform
}

// The allowed fields of a preflight's list, in addition to those that every client needs.
static std::string fields_for_page(std::string_view asked) {
	std::string out = "authorization, content-type";
	for (size_t at = 0; at < asked.size();) {
		const size_t end = std::min(asked.find(',', at), asked.size());
		std::string name;
		for (const char c : asked.substr(at, end - at))
			if (c != ' ' && c != '\t') name += lower(c);
		if (page_may_send(name) && out.find(name) == std::string::npos) out += ", " + name;
		at = end + 1;
	}
	return out;
}

Response Router::preflight(const HttpRequest& r) const {
	if (r.origin.empty()) return {204, "", "text/plain", {{"Allow", "GET, POST, DELETE"}}}; // no page asks
	if (options_.cors.empty() || !good_origin(r))
		return error_response(ApiError(403, "pages of other sites may not use this server; --cors allows one"));
	return {204,
	        "",
	        "text/plain",
	        {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
	         {"Access-Control-Allow-Headers", fields_for_page(r.asked_headers)},
	         {"Access-Control-Max-Age", "600"}}};
}

// The usual reasons are a base address that lacks /v1, or has it twice, as the client adds it itself.
static std::string unknown_path(std::string_view path) {
	constexpr std::string_view kTwice = "/v1/v1/";
	constexpr size_t kMostShown = 100; // characters
	std::string out = "there is no path " + shown(std::string(path.substr(0, kMostShown)));
	if (path.empty()) return "there is no path outside of --api-prefix";
	if (path.starts_with(kTwice)) return out + ": the client adds /v1 to its base address, which should not have it";
	if (path == "/api/pull" || path == "/api/delete" || path == "/api/copy" || path == "/api/create")
		return out + ": this server has one model, that of its command line; 'kvrun pull' fetches models";
	return out + "; 'kvrun serve --help' lists the paths";
}

std::optional<Response> Router::refuse(const HttpRequest& r) {
	if (!good_host(r))
		return error_for(r, ApiError(403, "the Host field does not name this server; --allow-host NAME gives it more "
		                                  "names, like host.docker.internal for containers"));
	if (r.method == "OPTIONS") return preflight(r);
	if (!good_origin(r))
		return error_for(r, ApiError(403, "pages of other sites may not use this server; --cors allows one"));
	const Route* route = find_route(r);
	if (!(route && route->open) && !good_key(r))
		return error_for(r, ApiError(401, "give the server's key: Authorization: Bearer KEY", "", "invalid_api_key"));
	if (!route) return error_for(r, ApiError(404, unknown_path(r.path)));
	if (r.method != route->method && !(r.method == "HEAD" && route->method == std::string_view("GET"))) {
		const std::string methods = methods_for(r);
		Response no = error_for(r, ApiError(405, "this path takes " + methods));
		no.headers.emplace_back("Allow", methods);
		return no;
	}
	if (!r.content_encoding.empty() && r.content_encoding != "identity")
		return error_for(r, ApiError(415, "a compressed body is not supported; send it as it is"));
	if (route->needs == Needs::Queue) try {
			generator_.check_queue();
		} catch (const ApiError& e) { return error_for(r, e); }
	return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> Router::headers(const HttpRequest& r) {
	std::vector<std::pair<std::string, std::string>> out;
	if (options_.cors.empty() || r.origin.empty() || !good_origin(r)) return out;
	out.emplace_back("Access-Control-Allow-Origin", allows(options_.cors, "*") ? "*" : r.origin);
	out.emplace_back("Access-Control-Expose-Headers", "x-request-id, retry-after");
	out.emplace_back("Vary", "Origin");
	return out;
}

Response Router::failure(const HttpRequest& r, int status, std::string_view why) {
	return error_for(r, ApiError(status, std::string(why)));
}

void Router::finished(const HttpRequest& r, int status, double seconds, const std::string& note) {
	const Route* found = find_route(r);
	const std::string route = found ? found->path : "other"; // without names, which are user content
	counts_.add(route, status, seconds);
	if (status == 499) { // drops at once what waited for this client
		for (Worker* w : {&looks_, &short_, &long_, &embedder_}) w->drop_unwanted();
		generator_.drop_gone();
	}
	if (!options_.log) return;
	constexpr std::array known = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"};
	const bool plain = std::ranges::count(known, r.method) > 0; // a client may send any word as the method
	std::fprintf(stderr, "%s %s %d %.3f s%s%s id=%s\n", plain ? r.method.c_str() : "-", route.c_str(), status, seconds,
	             note.empty() ? "" : " ", note.c_str(), r.id.c_str());
}

void Router::answer(const HttpRequest& request, const std::shared_ptr<Responder>& out) {
	const auto fail = [&](const ApiError& e) { out->respond(error_for(request, e)); };
	try {
		const Route& route = *find_route(request);
		check_encodes(route);
		const Model& model = route.needs == Needs::Embedder ? embedder_model_ : model_;
		const Residency::Use use = route.needs == Needs::Nothing ? nullptr : model.residency().use();
		(this->*route.answer)(request, out);
	} catch (const ApiError& e) { fail(e); } catch (const std::bad_alloc&) {
		fail(ApiError(503, "there is no memory for this request", "", "out_of_memory"));
	} catch (const std::exception& e) { fail(ApiError(500, e.what())); }
}

void Router::handle(HttpRequest request, std::shared_ptr<Responder> out) {
	const Answerer how = find_route(request)->answer;
	if (how == &Router::health || how == &Router::page) return answer(request, out);
	Worker& worker = request.body.empty() ? looks_ : request.body.size() <= kShortBody ? short_ : long_;
	worker.post([this, out, request = std::move(request)] { answer(request, out); }, [out] { return out->gone(); });
}

void Router::check_encodes(const Route& route) const {
	if (route.needs != Needs::Queue || !model_.encodes()) return;
	throw ApiError(
	    400,
	    "the model '" + model_.id() +
	        "' encodes texts and generates none; it answers /v1/embeddings, and /v1/rerank if it is a reranker",
	    "model");
}

} // namespace kvrun::serve
