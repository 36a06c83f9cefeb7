// Routes: which requests are answered, to whom, and by what.
#include "tools/serve/router.h"
#include "tools/serve/page/page.h"
#include <algorithm>
#include <array>
#include <cstdio>

namespace kvrun::serve {

// ---- who may ask what

constexpr const char* kSessionPath = "/sessions/";
constexpr size_t kShortBody = 64 << 10; // bytes

const Router::Route Router::kRoutes[] = {
    {"GET", "/", true, &Router::page},
    {"GET", "/health", true, &Router::health},
    {"GET", "/metrics", false, &Router::metrics},
    {"GET", "/slots", false, &Router::slots},
    {"GET", "/sessions", false, &Router::sessions},
    {"GET", kSessionPath, false, &Router::session},
    {"POST", kSessionPath, false, &Router::pin_session},
    {"DELETE", kSessionPath, false, &Router::remove_session},
    {"GET", "/v1/models", false, &Router::models},
    {"POST", "/v1/chat/completions", false, &Router::chat},
    {"POST", "/v1/completions", false, &Router::completion},
    {"POST", "/v1/embeddings", false, &Router::embeddings},
    {"POST", "/tokenize", false, &Router::tokenize},
    {"POST", "/detokenize", false, &Router::detokenize},
};

Router::Router(const Model& model, Generator& generator, SessionStore& store, const HttpServer& server,
               const RouterOptions& o)
    : model_(model), generator_(generator), store_(store), server_(server), options_(o) {}

const Router::Route* Router::find_route(const HttpRequest& request) {
	const Route* other = nullptr;
	for (const Route& r : kRoutes) {
		const std::string_view path = r.path;
		const bool named = path.size() > 1 && path.ends_with('/') && request.path.size() > path.size() &&
		                   request.path.starts_with(path);
		if (!named && request.path != path) continue;
		if (request.method == r.method) return &r;
		if (!other) other = &r;
	}
	return other;
}

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
	unsigned different = given.size() != secret.size();
	for (size_t i = 0; i < given.size(); ++i)
		different |= unsigned(uint8_t(given[i]) ^ uint8_t(secret.empty() ? 0 : secret[i % secret.size()]));
	return different == 0;
}

// A page of another site whose name was made to mean this machine must not reach a server that listens for this machine
// only.
bool Router::good_host(const HttpRequest& r) const {
	if (options_.host.empty()) return true; // no browser reaches a socket in the file system
	const auto local = [](std::string_view name) {
		return name == "localhost" || name == "::1" || name == "[::1]" || name.starts_with("127.");
	};
	if (r.host.empty() || !local(options_.host)) return true;
	const size_t colon = r.host.rfind(':'), bracket = r.host.rfind(']');
	const bool port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
	const std::string name = r.host.substr(0, port ? colon : std::string::npos);
	return name == "localhost" || name == "127.0.0.1" || name == "[::1]" || name == options_.host;
}

bool Router::good_origin(const HttpRequest& r) const {
	return r.origin.empty() || options_.cors == "*" || r.origin == options_.cors || r.origin == "http://" + r.host;
}

bool Router::good_key(const HttpRequest& r) const {
	constexpr std::string_view kScheme = "bearer "; // in any case (RFC 9110)
	const std::string_view given = r.authorization;
	const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
	return options_.api_key.empty() || (std::ranges::equal(given.substr(0, kScheme.size()), kScheme, {}, lower) &&
	                                    equal_in_constant_time(given.substr(kScheme.size()), options_.api_key));
}

Response Router::preflight(const HttpRequest& r) const {
	if (options_.cors.empty() || !good_origin(r))
		return error_response(ApiError(403, "pages of other sites may not use this server; --cors allows one"));
	return {204,
	        "",
	        "text/plain",
	        {{"Access-Control-Allow-Methods", "GET, POST"},
	         {"Access-Control-Allow-Headers", "authorization, content-type"},
	         {"Access-Control-Max-Age", "600"}}};
}

std::optional<Response> Router::refuse(const HttpRequest& r) {
	if (!good_host(r)) return error_response(ApiError(403, "the Host field does not name this server"));
	if (r.method == "OPTIONS") return preflight(r);
	if (!good_origin(r))
		return error_response(ApiError(403, "pages of other sites may not use this server; --cors allows one"));
	const Route* route = find_route(r);
	if (!(route && route->open) && !good_key(r))
		return error_response(ApiError(401, "give the server's key: Authorization: Bearer KEY", "", "invalid_api_key"));
	if (!route) return error_response(ApiError(404, "there is no such path"));
	if (r.method != route->method && !(r.method == "HEAD" && route->method == std::string_view("GET"))) {
		Response no = error_response(ApiError(405, std::string("this path takes ") + route->method));
		no.headers.emplace_back("Allow", route->method);
		return no;
	}
	if (!r.content_encoding.empty() && r.content_encoding != "identity")
		return error_response(ApiError(415, "a compressed body is not supported; send it as it is"));
	if (route->answer == &Router::chat || route->answer == &Router::completion) try {
			generator_.check_queue();
		} catch (const ApiError& e) { return error_response(e); }
	return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> Router::headers(const HttpRequest& r) {
	if (options_.cors.empty() || r.origin.empty() || !good_origin(r)) return {};
	return {{"Access-Control-Allow-Origin", options_.cors == "*" ? "*" : r.origin}, {"Vary", "Origin"}};
}

Response Router::failure(int status, std::string_view why) {
	return error_response(ApiError(status, std::string(why)));
}

void Router::finished(const HttpRequest& r, int status, double seconds, const std::string& note) {
	const Route* found = find_route(r);
	const std::string route = found ? found->path : "other"; // without names, which are content
	counts_.add(route, status, seconds);
	if (status == 499) { // what waited for this client goes at once
		for (Worker* w : {&looks_, &short_, &long_}) w->drop_unwanted();
		generator_.drop_gone();
	}
	if (!options_.log) return;
	constexpr std::array known = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"};
	const bool plain = std::ranges::count(known, r.method) > 0; // a client may send any word
	std::fprintf(stderr, "%s %s %d %.3f s%s%s\n", plain ? r.method.c_str() : "-", route.c_str(), status, seconds,
	             note.empty() ? "" : " ", note.c_str());
}

void Router::answer(const HttpRequest& request, const std::shared_ptr<Responder>& out) {
	try {
		(this->*find_route(request)->answer)(request, out);
	} catch (const ApiError& e) { out->respond(error_response(e)); } catch (const std::bad_alloc&) {
		out->respond(error_response(ApiError(503, "there is no memory for this request", "", "out_of_memory")));
	} catch (const std::exception& e) { out->respond(error_response(ApiError(500, e.what()))); }
}

void Router::handle(HttpRequest request, std::shared_ptr<Responder> out) {
	const Answerer how = find_route(request)->answer;
	if (how == &Router::health || how == &Router::page) return answer(request, out);
	Worker& worker = request.body.empty() ? looks_ : request.body.size() <= kShortBody ? short_ : long_;
	worker.post([this, out, request = std::move(request)] { answer(request, out); }, [out] { return out->gone(); });
}

// ---- answers

void Router::page(const HttpRequest&, std::shared_ptr<Responder> out) {
	out->respond(page_response());
}

void Router::health(const HttpRequest&, std::shared_ptr<Responder> out) {
	out->respond({200, dump({{"status", "ok"}})});
}

void Router::models(const HttpRequest&, std::shared_ptr<Responder> out) {
	const kvrun_engine_info i = model_.info();
	const Json one{{"id", model_.id()},
	               {"object", "model"},
	               {"created", 0},
	               {"owned_by", "kvrun"},
	               {"meta",
	                {{"architecture", i.architecture},
	                 {"n_ctx_train", i.ctx_train},
	                 {"n_vocab", i.vocab},
	                 {"weight_bytes", i.weight_bytes},
	                 {"device", i.device_name},
	                 {"kv", options_.kv}}}};
	out->respond({200, dump({{"object", "list"}, {"data", Json::array({one})}})});
}

void Router::metrics(const HttpRequest&, std::shared_ptr<Responder> out) {
	out->respond({200, metrics_text(counts_, generator_.stats(), model_.info(), server_),
	              "text/plain; version=0.0.4; charset=utf-8"});
}

static Json fetch_json(const kvrun_fetch_info& f) {
	return {{"tokens", f.fetch},
	        {"steps", f.steps},
	        {"attention_in_f16", f.f16_share},
	        {"bytes", f.fetched_bytes},
	        {"hidden_s", f.hidden_seconds},
	        {"open_s", f.open_seconds},
	        {"host_bytes", f.host_bytes},
	        {"file_bytes", f.file_bytes}};
}

void Router::slots(const HttpRequest&, std::shared_ptr<Responder> out) {
	Json list = Json::array();
	for (const SlotInfo& s : generator_.stats().slots) {
		Json one{{"id", list.size()},
		         {"state", s.saving          ? "saving"
		                   : s.answer_tokens ? "answering"
		                                     : "reading"},
		         {"prompt_tokens", s.prompt_tokens},
		         {"cached_tokens", s.cached_tokens},
		         {"answer_tokens", s.answer_tokens},
		         {"kv", kv_json(s.policy, s.kv)}};
		if (!s.session.empty()) one["session"] = s.session;
		if (s.fetch.fetch) one["fetch"] = fetch_json(s.fetch);
		list.push_back(std::move(one));
	}
	out->respond({200, dump(list)});
}

void Router::sessions(const HttpRequest&, std::shared_ptr<Responder> out) {
	Json list = Json::array();
	for (const SessionStore::Kept& k : store_.list())
		list.push_back({{"id", k.name}, {"bytes", k.bytes}, {"modified", k.modified}, {"pinned", k.pinned}});
	out->respond({200, dump({{"object", "list"}, {"data", list}})});
}

static std::string name_in(const HttpRequest& r) { return r.path.substr(std::string_view(kSessionPath).size()); }

void Router::session(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json note = json_or_null(store_.note(name_in(request)));
	Json one{{"id", name_in(request)}, {"messages", Json::array()}};
	if (note.is_object() && note.contains("messages")) one["messages"] = note["messages"];
	out->respond({200, dump(one)});
}

void Router::pin_session(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = parse_body(request.body);
	const Fields f(j);
	if (!f.find("pinned")) throw ApiError(400, "pinned is missing, expected true or false", "pinned");
	const bool pinned = f.flag("pinned", false);
	store_.pin(name_in(request), pinned);
	out->respond({200, dump({{"id", name_in(request)}, {"pinned", pinned}})});
}

void Router::remove_session(const HttpRequest& request, std::shared_ptr<Responder> out) {
	store_.remove(name_in(request));
	out->respond({200, dump({{"id", name_in(request)}, {"deleted", true}})});
}

void Router::check_model(const std::string& name) const {
	if (!name.empty() && name != model_.id())
		throw ApiError(404, "there is no such model; this server has '" + model_.id() + "'", "model",
		               "model_not_found");
}

void Router::check_length(size_t bytes) const {
	if (bytes <= generator_.longest_context()) return; // most requests: no token is shorter than a byte
	if (bytes / model_.longest_token() <= generator_.longest_context()) return;
	throw ApiError(400,
	               "the prompt has " + std::to_string(bytes) + " bytes, more than " +
	                   std::to_string(generator_.longest_context()) + " tokens can hold; raise -c or shorten it",
	               "", "context_length_exceeded");
}

void Router::check_tokens(const std::vector<uint32_t>& tokens) const {
	if (tokens.size() <= generator_.longest_context()) return;
	throw ApiError(400,
	               "the prompt has " + std::to_string(tokens.size()) + " tokens, the context has room for " +
	                   std::to_string(generator_.longest_context()) + "; raise -c or shorten it",
	               "", "context_length_exceeded");
}

std::shared_ptr<const TokenTexts> Router::texts() {
	std::call_once(texts_made_, [this] { texts_ = std::make_shared<TokenTexts>(model_); });
	return texts_;
}

void Router::name_conversation(Job& job, const GenerationRequest& r) const {
	if (r.session.empty()) return;
	job.named = std::make_shared<SessionStore::Hold>(store_, r.session);
	store_.check_room(*job.named);
	job.note = [](std::string_view) { return std::string("{}"); };
}

void Router::generate(Job job, const GenerationRequest& r,
                      const std::function<std::shared_ptr<Listener>(uint32_t)>& listener) {
	generator_.check_room(r.n); // before listeners are made, each of which reads the conversation
	job.listener = listener(0);
	for (uint32_t i = 1; i < r.n; ++i) {
		if (job.listener->gone()) return;
		Job fork{job.prompt, job.sampling, job.kv, listener(i), job.reuse};
		fork.sampling.seed += i;
		fork.json = job.json;
		job.forks.push_back(std::move(fork));
	}
	generator_.add(std::move(job));
}

void Router::chat(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const auto gone = [out] { return out->gone(); };
	ChatRequest r = chat_request(request.body, options_.kv, gone);
	check_model(r.model);
	if (!r.prompt.tools.empty()) {
		const kvrun_chat_features f = model_.features(r.prompt);
		if (!f.tools) throw ApiError(400, "the chat template has no place for tools; leave them out", "tools");
		r.sampling.special = f.special_markers;
	}
	if (gone()) return;
	if (r.prompt.messages.size() > kShortBody) check_length(model_.chat_text(r.prompt).size());
	Job job{model_.chat_tokens(r.prompt), r.sampling, r.kv, nullptr, r.reuse};
	check_tokens(job.prompt);
	job.body = request.held;
	if (r.json) job.json = texts();
	name_conversation(job, r);
	if (job.named)
		job.note = [this, prompt = r.prompt](std::string_view answer) {
			Json messages = json_or_null(prompt.messages);
			messages.push_back(answer_message(model_.new_reply(prompt), answer));
			return dump({{"messages", std::move(messages)}});
		};
	const auto all = std::make_shared<Choices>(std::move(out), r, model_.id(), kChatObject);
	generate(std::move(job), r,
	         [&](uint32_t i) { return std::make_shared<ChatAnswer>(all, i, model_.new_reply(r.prompt)); });
}

void Router::completion(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const auto gone = [out] { return out->gone(); };
	const CompletionRequest r = completion_request(request.body, options_.kv, gone);
	check_model(r.model);
	check_length(r.text.size());
	Job job{r.tokens ? *r.tokens : model_.tokens(r.text, 0), r.sampling, r.kv, nullptr, r.reuse};
	if (job.prompt.empty()) throw ApiError(400, "the prompt has no tokens; give it some text", "prompt");
	check_tokens(job.prompt);
	job.body = request.held;
	name_conversation(job, r);
	const auto all = std::make_shared<Choices>(std::move(out), r, model_.id(), kCompletionObject);
	generate(std::move(job), r, [&](uint32_t i) { return std::make_shared<CompletionAnswer>(all, i); });
}

void Router::embeddings(const HttpRequest&, std::shared_ptr<Responder>) {
	throw ApiError(501, "embeddings are not provided; this server answers chats and completions");
}

void Router::tokenize(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = parse_body(request.body, [&] { return out->gone(); });
	const Fields f(j);
	const std::optional<std::string> text = f.text("content");
	if (!text || text->size() > kMaxTokenText)
		throw ApiError(400, "content is not a text of at most " + std::to_string(kMaxTokenText) + " bytes", "content");
	uint32_t flags = f.flag("add_special", false) ? 0 : uint32_t(KVRUN_TOKENS_NO_BOS);
	if (f.flag("parse_special", true)) flags |= KVRUN_TOKENS_SPECIAL;
	out->respond({200, dump({{"tokens", model_.tokens(*text, flags)}})});
}

void Router::detokenize(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = parse_body(request.body, [&] { return out->gone(); });
	const Json* list = Fields(j).find("tokens");
	if (!list || !list->is_array() || list->size() > kMaxTokenText)
		throw ApiError(400, "tokens is not an array of at most " + std::to_string(kMaxTokenText) + " tokens", "tokens");
	out->respond({200, dump({{"content", model_.text(token_list(*list, "tokens"), KVRUN_TOKENS_SPECIAL)}})});
}

} // namespace kvrun::serve
