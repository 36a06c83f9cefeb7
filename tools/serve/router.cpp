// Routes: checks who may send a request, and dispatches it to the function that answers it.
#include "tools/serve/router.h"
#include "tools/serve/embeddings.h"
#include "tools/serve/messages.h"
#include "tools/serve/page/page.h"
#include "tools/serve/responses.h"
#include <algorithm>
#include <array>
#include <cstdio>

namespace kvrun::serve {

// ---- access control

constexpr const char *kSessionPath = "/sessions/", *kModelPath = "/v1/models/", *kMessagesPath = "/v1/messages";
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
    {"GET", kModelPath, false, &Router::model},
    {"POST", "/v1/chat/completions", false, &Router::chat, Needs::Queue},
    {"POST", "/v1/completions", false, &Router::completion, Needs::Queue},
    {"POST", "/infill", false, &Router::infill, Needs::Queue},
    {"POST", "/v1/responses", false, &Router::responses, Needs::Queue},
    {"POST", kMessagesPath, false, &Router::messages, Needs::Queue},
    {"POST", "/v1/messages/count_tokens", false, &Router::count_tokens, Needs::Model},
    {"POST", "/v1/embeddings", false, &Router::embeddings, Needs::Embedder},
    {"POST", "/v1/rerank", false, &Router::rerank, Needs::Embedder},
    {"POST", "/rerank", false, &Router::rerank, Needs::Embedder},
    {"POST", "/v1/reranking", false, &Router::rerank, Needs::Embedder},
    {"POST", "/reranking", false, &Router::rerank, Needs::Embedder},
    {"POST", "/tokenize", false, &Router::tokenize, Needs::Model},
    {"POST", "/detokenize", false, &Router::detokenize, Needs::Model},
};

Router::Router(const Model& model, const Model& embedder, Generator& generator, SessionStore& store,
               const HttpServer& server, const RouterOptions& o)
    : model_(model), embedder_model_(embedder), generator_(generator), store_(store), server_(server), options_(o),
      grammars_(model) {}

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
	return name == "localhost" || name == "127.0.0.1" || name == "[::1]" || name == options_.host;
}

bool Router::good_origin(const HttpRequest& r) const {
	return r.origin.empty() || options_.cors == "*" || r.origin == options_.cors ||
	       r.origin == (options_.tls ? "https://" : "http://") + r.host;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

// The key is in X-Api-Key, as in Anthropic's API, or in Authorization as defined by RFC 6750.
bool Router::good_key(const HttpRequest& r) const {
	constexpr std::string_view kScheme = "bearer "; // case-insensitive (RFC 9110)
	const std::string_view given = r.authorization;
	if (options_.api_key.empty()) return true;
	if (!r.api_key.empty() && equal_in_constant_time(r.api_key, options_.api_key)) return true;
	return std::ranges::equal(given.substr(0, kScheme.size()), kScheme, {}, lower) &&
	       equal_in_constant_time(given.substr(kScheme.size()), options_.api_key);
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

// An error in the form of the API that the path belongs to.
static Response error_for(const HttpRequest& r, const ApiError& e) {
	return r.path.starts_with(kMessagesPath) ? messages_error(e) : error_response(e);
}

Response Router::preflight(const HttpRequest& r) const {
	if (options_.cors.empty() || !good_origin(r))
		return error_response(ApiError(403, "pages of other sites may not use this server; --cors allows one"));
	return {204,
	        "",
	        "text/plain",
	        {{"Access-Control-Allow-Methods", "GET, POST"},
	         {"Access-Control-Allow-Headers", fields_for_page(r.asked_headers)},
	         {"Access-Control-Max-Age", "600"}}};
}

std::optional<Response> Router::refuse(const HttpRequest& r) {
	if (!good_host(r)) return error_for(r, ApiError(403, "the Host field does not name this server"));
	if (r.method == "OPTIONS") return preflight(r);
	if (!good_origin(r))
		return error_for(r, ApiError(403, "pages of other sites may not use this server; --cors allows one"));
	const Route* route = find_route(r);
	if (!(route && route->open) && !good_key(r))
		return error_for(r, ApiError(401, "give the server's key: Authorization: Bearer KEY", "", "invalid_api_key"));
	if (!route) return error_for(r, ApiError(404, "there is no such path"));
	if (r.method != route->method && !(r.method == "HEAD" && route->method == std::string_view("GET"))) {
		Response no = error_for(r, ApiError(405, std::string("this path takes ") + route->method));
		no.headers.emplace_back("Allow", route->method);
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
	out.emplace_back("Access-Control-Allow-Origin", options_.cors == "*" ? "*" : r.origin);
	out.emplace_back("Access-Control-Expose-Headers", "x-request-id, retry-after");
	out.emplace_back("Vary", "Origin");
	return out;
}

Response Router::failure(int status, std::string_view why) {
	return error_response(ApiError(status, std::string(why)));
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

// ---- answers

void Router::page(const HttpRequest&, std::shared_ptr<Responder> out) { out->respond(page_response()); }

void Router::health(const HttpRequest&, std::shared_ptr<Responder> out) {
	const char* states[] = {"loaded", "unloaded", "loading"}; // Residency::State
	out->respond({200, dump({{"status", "ok"}, {"model", states[size_t(model_.residency().state())]}})});
}

Json Router::model_json(const Model& model) const {
	const kvrun_engine_info i = model.info();
	return {{"id", model.id()},
	        {"object", "model"},
	        {"created", model.created()},
	        {"owned_by", "kvrun"},
	        {"meta",
	         {{"architecture", i.architecture},
	          {"n_ctx_train", i.ctx_train},
	          {"n_vocab", i.vocab},
	          {"n_embd", i.dim},
	          {"weight_bytes", i.weight_bytes},
	          {"device", i.device_name},
	          {"reads_images", bool(i.reads_images)},
	          {"encodes", bool(i.encodes)},
	          {"loaded", model.residency().state() == Residency::State::Loaded},
	          {"kv", options_.kv}}}};
}

void Router::models(const HttpRequest&, std::shared_ptr<Responder> out) {
	Json list = Json::array({model_json(model_)});
	if (&embedder_model_ != &model_) list.push_back(model_json(embedder_model_));
	out->respond({200, dump({{"object", "list"}, {"data", std::move(list)}})});
}

void Router::model(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const std::string name = request.path.substr(std::string_view(kModelPath).size());
	const Model& model = name == embedder_model_.id() ? embedder_model_ : model_;
	check_name(name, model);
	out->respond({200, dump(model_json(model))});
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

// Reading ends when the client has gone.
static Json body_of(const HttpRequest& request, const Responder& out) {
	return parse_body(request.body, [&out] { return out.gone(); });
}

void Router::check_name(const std::string& name, const Model& model) const {
	if (options_.strict_model && !name.empty() && name != model.id())
		throw ApiError(404, "there is no such model; this server has '" + model.id() + "'", "model", "model_not_found");
}

void Router::check_request(GenerationRequest& r) const {
	check_name(r.model, model_);
	const uint32_t vocab = r.sampling.bias.empty() ? 0 : model_.info().vocab;
	for (const kvrun_logit_bias& b : r.sampling.bias)
		if (b.token >= vocab)
			throw ApiError(400,
			               "logit_bias has token " + std::to_string(b.token) + ", the vocabulary has " +
			                   std::to_string(vocab),
			               "logit_bias");
	r.ping_s = options_.ping_s;
}

Router::Room Router::room() const { return {model_, generator_.longest_context(), "raise -c or shorten it"}; }

Router::Room Router::embedder_room() const {
	if (&embedder_model_ == &model_) return room();
	return {embedder_model_, embedder_model_.ctx_train(), "shorten or divide it"};
}

void Router::check_length(size_t bytes, const Room& room) {
	if (bytes <= room.tokens) return; // fast path: a token has at least one byte
	if (bytes / room.model.longest_token() <= room.tokens) return;
	throw ApiError(400,
	               "the prompt has " + std::to_string(bytes) + " bytes, more than " + std::to_string(room.tokens) +
	                   " tokens can hold; " + room.advice,
	               "", "context_length_exceeded");
}

void Router::check_tokens(const std::vector<uint32_t>& tokens, const Room& room) {
	if (tokens.size() <= room.tokens) return;
	throw ApiError(400,
	               "the prompt has " + std::to_string(tokens.size()) + " tokens, the context has room for " +
	                   std::to_string(room.tokens) + "; " + room.advice,
	               "", "context_length_exceeded");
}

bool Router::has_channels() {
	std::call_once(channels_known_, [this] {
		try {
			channels_ = model_.features({}).special_markers > 1;
		} catch (const ApiError&) {} // no template
	});
	return channels_;
}

const InfillMarkers& Router::markers() {
	std::call_once(markers_known_, [this] { markers_ = infill_markers(model_); });
	return markers_;
}

void Router::name_conversation(Job& job, const GenerationRequest& r) const {
	if (r.session.empty()) return;
	job.named = std::make_shared<SessionStore::Hold>(store_, r.session);
	store_.check_room(*job.named);
	job.note = [](std::string_view) { return std::string("{}"); };
}

void Router::generate(std::vector<Job> jobs, const GenerationRequest& r, const NewListener& listener) {
	generator_.check_room(jobs.size(), r.n); // before listeners are created, because each one parses the conversation
	uint32_t number = 0;
	for (Job& job : jobs) {
		job.use = model_.residency().use();
		job.listener = listener(number++);
		for (uint32_t i = 1; i < r.n; ++i) {
			if (job.listener->gone()) return;
			Job fork;
			fork.use = job.use, fork.prompt = job.prompt, fork.sampling = job.sampling, fork.kv = job.kv;
			fork.listener = listener(number++), fork.reuse = job.reuse;
			fork.sampling.seed += i;
			fork.grammar = job.grammar;
			job.forks.push_back(std::move(fork));
		}
	}
	generator_.add(std::move(jobs));
}

void Router::check_chat(ChatRequest& r) {
	check_request(r);
	r.sampling.special = has_channels();
	model_.take_images(r.prompt);
	if (r.prompt.tools.empty()) return;
	const kvrun_chat_features f = model_.features(r.prompt);
	if (!f.tools) throw ApiError(400, "the chat template has no place for tools; leave them out", "tools");
	r.sampling.special |= f.special_markers != 0;
}

std::vector<uint32_t> Router::conversation_tokens(const ChatRequest& r) const {
	if (r.prompt.messages.size() > kShortBody) check_length(model_.chat_text(r.prompt).size(), room());
	std::vector<uint32_t> tokens = model_.chat_tokens(r.prompt);
	check_tokens(tokens, room());
	return tokens;
}

void Router::converse(const HttpRequest& request, const ChatRequest& r, std::vector<uint32_t> tokens,
                      const NewListener& listener) {
	Job job;
	job.prompt = std::move(tokens), job.sampling = r.sampling, job.kv = r.kv, job.reuse = r.reuse;
	job.body = request.held;
	job.grammar = grammars_.get(r.form, &r.prompt);
	name_conversation(job, r);
	if (job.named)
		job.note = [this, prompt = r.prompt](std::string_view answer) {
			Json messages = json_or_null(prompt.messages);
			messages.push_back(answer_message(model_.new_reply(prompt), answer));
			return dump({{"messages", std::move(messages)}});
		};
	std::vector<Job> jobs;
	jobs.push_back(std::move(job));
	generate(std::move(jobs), r, listener);
}

void Router::chat(const HttpRequest& request, std::shared_ptr<Responder> out) {
	ChatRequest r = chat_request(body_of(request, *out), options_.kv);
	check_chat(r);
	const auto all = std::make_shared<Choices>(out, r, model_.id(), kChatObject);
	if (all->gone()) return;
	converse(request, r, conversation_tokens(r),
	         [&](uint32_t i) { return std::make_shared<ChatAnswer>(all, i, model_.new_reply(r.prompt)); });
}

void Router::responses(const HttpRequest& request, std::shared_ptr<Responder> out) {
	ResponseRequest r = response_request(body_of(request, *out), options_.kv);
	check_chat(r.chat);
	if (out->gone()) return;
	const auto count = [this](const std::string& text) { return model_.tokens(text, KVRUN_TOKENS_NO_BOS).size(); };
	converse(request, r.chat, conversation_tokens(r.chat),
	         [&](uint32_t) { return response_answer(out, r, model_.id(), model_.new_reply(r.chat.prompt), count); });
}

void Router::messages(const HttpRequest& request, std::shared_ptr<Responder> out) {
	MessagesRequest r = messages_request(body_of(request, *out), options_.kv, /*counting=*/false);
	check_chat(r.chat);
	if (out->gone()) return;
	std::vector<uint32_t> tokens = conversation_tokens(r.chat);
	const uint32_t n = uint32_t(tokens.size());
	converse(request, r.chat, std::move(tokens),
	         [&](uint32_t) { return messages_answer(out, r, model_.id(), model_.new_reply(r.chat.prompt), n); });
}

void Router::count_tokens(const HttpRequest& request, std::shared_ptr<Responder> out) {
	MessagesRequest r = messages_request(body_of(request, *out), options_.kv, /*counting=*/true);
	check_chat(r.chat);
	out->respond({200, dump({{"input_tokens", conversation_tokens(r.chat).size()}})});
}

void Router::completion(const HttpRequest& request, std::shared_ptr<Responder> out) {
	CompletionRequest r = completion_request(body_of(request, *out), options_.kv);
	check_request(r);
	std::vector<Job> jobs;
	for (const TextPrompt& p : r.prompts) {
		check_length(p.text.size() + r.suffix.size(), room());
		Job job;
		job.prompt = !r.suffix.empty() ? infill_tokens(model_, markers(), {p.text, r.suffix, {}}, SIZE_MAX)
		             : p.tokens        ? *p.tokens
		                               : model_.tokens(p.text, 0);
		job.sampling = r.sampling, job.kv = r.kv, job.reuse = r.reuse;
		if (job.prompt.empty()) throw ApiError(400, "the prompt has no tokens; give it some text", "prompt");
		check_tokens(job.prompt, room());
		job.body = request.held;
		job.grammar = grammars_.get(r.form, nullptr);
		name_conversation(job, r);
		jobs.push_back(std::move(job));
		if (out->gone()) return;
	}
	const auto all = std::make_shared<Choices>(std::move(out), r, model_.id(), kCompletionObject, jobs.size());
	generate(std::move(jobs), r, [&](uint32_t i) { return std::make_shared<CompletionAnswer>(all, i); });
}

void Router::infill(const HttpRequest& request, std::shared_ptr<Responder> out) {
	InfillRequest r = infill_request(body_of(request, *out), options_.kv);
	check_request(r);
	const size_t most = generator_.longest_context();
	std::vector<Job> jobs(1);
	Job& job = jobs[0];
	job.prompt = infill_tokens(model_, markers(), r.text, most - std::min<size_t>(most / 4, r.sampling.max_tokens));
	if (out->gone()) return;
	job.sampling = r.sampling, job.kv = r.kv, job.reuse = r.reuse, job.body = request.held;
	name_conversation(job, r);
	generate(std::move(jobs), r, [&](uint32_t) { return std::make_shared<InfillAnswer>(out, r, model_.id()); });
}

void Router::embeddings(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Model& model = embedder_model_;
	EmbeddingsRequest r = embeddings_request(body_of(request, *out), model.vector_dim());
	check_name(r.model, model);
	const Room room = embedder_room();
	std::vector<std::vector<uint32_t>> texts;
	for (const TextPrompt& p : r.inputs) {
		check_length(p.text.size(), room);
		texts.push_back(p.tokens ? *p.tokens : model.tokens(p.text, KVRUN_TOKENS_END));
		if (texts.back().empty()) throw ApiError(400, "input has a text without tokens; give it some text", "input");
		check_tokens(texts.back(), room);
		if (out->gone()) return;
	}
	post_embedding(request, out, [this, out, r = std::move(r), texts = std::move(texts)] {
		embed(
		    embedder_model_, r, texts, [this] { generator_.drop_idle(); }, *out);
	});
}

void Router::rerank(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Model& model = embedder_model_;
	if (!model.n_scores())
		throw ApiError(400, "the model has no classifier, so it does not score documents; serve a reranker", "model");
	RerankRequest r = rerank_request(body_of(request, *out));
	check_name(r.model, model);
	for (const std::string& d : r.documents) check_length(r.query.size() + d.size(), embedder_room());
	post_embedding(request, out, [this, out, r = std::move(r)] {
		serve::rerank(
		    embedder_model_, r, [this] { generator_.drop_idle(); }, *out);
	});
}

void Router::post_embedding(const HttpRequest& request, std::shared_ptr<Responder> out, std::function<void()> compute) {
	if (embedding_ >= options_.embeddings)
		throw ApiError(429, "the queue is full: other embeddings are under way; try again later", "", "queue_full");
	++embedding_;
	const std::shared_ptr<void> counted(nullptr, [this](void*) { --embedding_; });
	auto run = [out, counted, compute = std::move(compute), held = request.held,
	            use = embedder_model_.residency().use()] {
		try {
			compute();
		} catch (const ApiError& e) { out->respond(error_response(e)); } catch (const std::exception& e) {
			out->respond(error_response(ApiError(500, e.what())));
		}
	};
	embedder_.post(std::move(run), [out] { return out->gone(); });
}

void Router::tokenize(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = body_of(request, *out);
	const Fields f(j);
	const std::optional<std::string> text = f.text("content");
	if (!text || text->size() > kMaxTokenText)
		throw ApiError(400, "content is not a text of at most " + std::to_string(kMaxTokenText) + " bytes", "content");
	uint32_t flags = f.flag("add_special", false) ? 0 : uint32_t(KVRUN_TOKENS_NO_BOS);
	if (f.flag("parse_special", true)) flags |= KVRUN_TOKENS_SPECIAL;
	out->respond({200, dump({{"tokens", model_.tokens(*text, flags)}})});
}

void Router::detokenize(const HttpRequest& request, std::shared_ptr<Responder> out) {
	const Json j = body_of(request, *out);
	const Json* list = Fields(j).find("tokens");
	if (!list || !list->is_array() || list->size() > kMaxTokenText)
		throw ApiError(400, "tokens is not an array of at most " + std::to_string(kMaxTokenText) + " tokens", "tokens");
	out->respond({200, dump({{"content", model_.text(token_list(*list, "tokens"), KVRUN_TOKENS_SPECIAL)}})});
}

} // namespace kvrun::serve
