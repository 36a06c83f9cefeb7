// Routes: which requests are answered, to whom, and by what.
#pragma once
#include "tools/serve/answers.h"
#include "tools/serve/metrics.h"
#include "tools/serve/worker.h"

namespace kvrun::serve {

struct RouterOptions {
	std::string host;          // that the server listens on; empty: a socket in the file system
	std::string api_key;       // empty: none is needed
	std::string cors;          // origin whose pages may use the server, or "*"; empty: none
	std::string kv;            // policy of requests that name none
	bool log = false;          // a line on stderr for each request
	bool strict_model = false; // requests that name another model are refused; else this one answers
	double ping_s = 10;        // between signs of life in a stream while its prompt is read
	uint32_t embeddings = 36;  // requests for them at once, those that wait among them; more are refused
};

class Router final : public Handler {
 public:
	Router(const Model&, Generator&, SessionStore&, const HttpServer&, const RouterOptions&);

	std::optional<Response> refuse(const HttpRequest&) override;
	void handle(HttpRequest, std::shared_ptr<Responder>) override;
	void answer(const HttpRequest&, const std::shared_ptr<Responder>&); // what handle() does, on this thread
	Response failure(int status, std::string_view why) override;
	std::vector<std::pair<std::string, std::string>> headers(const HttpRequest&) override;
	void finished(const HttpRequest&, int status, double seconds, const std::string& note) override;

 private:
	using Answerer = void (Router::*)(const HttpRequest&, std::shared_ptr<Responder>);
	enum class Needs : uint8_t { Nothing, Model, Queue }; // the model in memory; and a place in the queue
	struct Route {
		const char *method, *path; // with a / at its end: what follows is a name
		bool open;                 // needs no key
		Answerer answer;
		Needs needs = Needs::Nothing;
	};
	static const Route kRoutes[];
	// The one for this method, or else any for this path; null: there is none.
	static const Route* find_route(const HttpRequest&);

	bool good_host(const HttpRequest&) const;
	bool good_origin(const HttpRequest&) const;
	bool good_key(const HttpRequest&) const;
	void check_request(GenerationRequest&) const; // throws ApiError; what the server decides is filled in
	// Throw ApiError 400 where no context can hold a text of so many bytes, or these tokens.
	void check_length(size_t bytes) const;
	void check_tokens(const std::vector<uint32_t>&) const;
	void name_conversation(Job&, const GenerationRequest&) const;
	// Makes who is told of one of the request's choices, given its number.
	using NewListener = std::function<std::shared_ptr<Listener>(uint32_t)>;
	// Each of the jobs is to have as many answers as the request has choices.
	void generate(std::vector<Job>, const GenerationRequest&, const NewListener&);
	void check_tools(ChatRequest&); // they reach the prompt; throws ApiError
	// Answers a conversation. check_tools() has been called.
	void converse(const HttpRequest&, const ChatRequest&, std::vector<uint32_t> tokens, const NewListener&);
	std::vector<uint32_t> conversation_tokens(const ChatRequest&) const; // no more than a context holds
	bool has_channels(); // answers are written on channels, between control tokens
	Response preflight(const HttpRequest&) const;

	void page(const HttpRequest&, std::shared_ptr<Responder>);
	void health(const HttpRequest&, std::shared_ptr<Responder>);
	void models(const HttpRequest&, std::shared_ptr<Responder>);
	void model(const HttpRequest&, std::shared_ptr<Responder>);
	Json model_json() const;
	void metrics(const HttpRequest&, std::shared_ptr<Responder>);
	void slots(const HttpRequest&, std::shared_ptr<Responder>);
	void sessions(const HttpRequest&, std::shared_ptr<Responder>);
	void session(const HttpRequest&, std::shared_ptr<Responder>);
	void pin_session(const HttpRequest&, std::shared_ptr<Responder>);
	void remove_session(const HttpRequest&, std::shared_ptr<Responder>);
	void chat(const HttpRequest&, std::shared_ptr<Responder>);
	void completion(const HttpRequest&, std::shared_ptr<Responder>);
	void responses(const HttpRequest&, std::shared_ptr<Responder>);
	void messages(const HttpRequest&, std::shared_ptr<Responder>);
	void count_tokens(const HttpRequest&, std::shared_ptr<Responder>);
	void embeddings(const HttpRequest&, std::shared_ptr<Responder>);
	void tokenize(const HttpRequest&, std::shared_ptr<Responder>);
	void detokenize(const HttpRequest&, std::shared_ptr<Responder>);

	const Model& model_;
	Generator& generator_;
	SessionStore& store_;
	const HttpServer& server_;
	const RouterOptions options_;
	RequestCounts counts_;
	std::atomic<uint32_t> embedding_ = 0; // requests
	Grammars grammars_;
	std::once_flag channels_known_;
	bool channels_ = false;
	// Requests are read and tokenized here, so that neither the network nor answers under way wait for it; short bodies
	// do not wait for long ones, and requests without a body for neither. Last: they end first.
	Worker looks_, short_, long_;
	Worker embedder_; // reads texts for embeddings, beside answers
};

// Whether two texts are equal, in a time that depends on the length of `given` only.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

} // namespace kvrun::serve
