// Routes: checks who may send a request, and dispatches it to the function that answers it.
#pragma once
#include "tools/serve/answers.h"
#include "tools/serve/embeddings.h"
#include "tools/serve/infill.h"
#include "tools/serve/metrics.h"
#include "tools/serve/worker.h"

namespace kvrun::serve {

constexpr const char *kSessionPath = "/sessions/", *kSlotPath = "/slots/", *kModelPath = "/v1/models/";
constexpr size_t kShortBody = 64 << 10; // bytes

// An error in the form of the API that the request's path belongs to.
Response error_for(const HttpRequest&, const ApiError&);

struct RouterOptions {
	std::string host;                     // address the server listens on; empty for a Unix socket
	std::vector<std::string> api_keys;    // each of them is good; empty if no key is required
	std::vector<std::string> cors;        // origins whose pages may use the server, or "*"; empty if none
	std::vector<std::string> allow_hosts; // more names of this server in Host
	Defaults defaults;                    // of requests
	uint32_t ctx = 0, parallel = 1;       // tokens of a request, answers at once
	std::string file;                     // name of the model's file, without its folder
	bool log = false;                     // writes a line to stderr for each request
	bool strict_model = false;            // refuses requests that name another model; otherwise this one answers
	double ping_s = 10;                   // seconds between progress comments in a stream while its prompt is read
	uint32_t embeddings = 36; // embedding requests at once, including waiting ones; further ones are refused
	bool tls = false;         // pages of this server have addresses that begin with https, also without a proxy
};

class Router final : public Handler {
 public:
	// embedder: answers requests for embeddings and ranks; may be the same model.
	Router(const Model&, const Model& embedder, Generator&, SessionStore&, const HttpServer&, const RouterOptions&);

	std::optional<Response> refuse(const HttpRequest&) override;
	void handle(HttpRequest, std::shared_ptr<Responder>) override;
	void answer(const HttpRequest&, const std::shared_ptr<Responder>&); // like handle(), but on the calling thread
	Response failure(const HttpRequest&, int status, std::string_view why) override;
	std::vector<std::pair<std::string, std::string>> headers(const HttpRequest&) override;
	void finished(const HttpRequest&, int status, double seconds, const std::string& note) override;

 private:
	using Answerer = void (Router::*)(const HttpRequest&, std::shared_ptr<Responder>);
	// Model, Embedder: it is in memory; Queue: the model, and a place in the queue
	enum class Needs : uint8_t { Nothing, Model, Embedder, Queue };
	struct Route {
		const char *method, *path; // a path that ends with / is followed by a name
		bool open;                 // requires no API key
		Answerer answer;
		Needs needs = Needs::Nothing;
	};
	static const Route kRoutes[];
	static bool is_path_of(const Route&, const HttpRequest&);
	// The route for this method, or else any route for this path; null if there is none.
	static const Route* find_route(const HttpRequest&);
	static std::string methods_for(const HttpRequest&); // of the routes for this path, divided by commas

	bool good_host(const HttpRequest&) const;
	bool good_origin(const HttpRequest&) const;
	bool good_key(const HttpRequest&) const;
	CountTokens counter() const;                  // of the model's tokens
	void check_request(GenerationRequest&) const; // throws ApiError; fills in the server's settings
	Job completion_job(const HttpRequest&, const CompletionRequest&, const TextPrompt&);
	void check_name(const std::string& name, const Model&) const; // throws ApiError if that model must not answer
	struct Room {                                                 // of a request, whose text is
		const Model& model;                                       // for this one
		size_t tokens;                                            // at most so long
		const char* advice;                                       // for one that is longer
	};
	Room room() const; // of answers
	Room embedder_room() const;
	// Throw ApiError 400 if no context can hold a text of this many bytes, or these tokens.
	static void check_length(size_t bytes, const Room&);
	static void check_tokens(const std::vector<uint32_t>&, const Room&);
	// Throws ApiError if the room does not hold them. flags: as of kvrun_tokenize(), of the whole prompt.
	static std::vector<uint32_t> prompt_tokens(const Room&, const TextPrompt&, uint32_t flags);
	void name_conversation(Job&, const GenerationRequest&) const;
	// Creates the listener of one of the request's choices, given its index.
	using NewListener = std::function<std::shared_ptr<Listener>(uint32_t)>;
	// Gives each job as many answers as the request has choices, and queues them.
	void generate(std::vector<Job>, const GenerationRequest&, const NewListener&);
	// check_request() for a chat; also throws ApiError if its template takes no conversation with tools.
	void check_chat(ChatRequest&);
	// Answers a conversation. check_chat() has been called.
	void converse(const HttpRequest&, const ChatRequest&, std::vector<uint32_t> tokens, const NewListener&);
	std::vector<uint32_t> conversation_tokens(const ChatRequest&) const; // throws ApiError if no context can hold them
	const InfillMarkers& markers();                                      // of the model, for filling in the middle
	bool has_channels(); // whether the template separates channels of an answer by control tokens
	Response preflight(const HttpRequest&) const;

	void page(const HttpRequest&, std::shared_ptr<Responder>);
	void health(const HttpRequest&, std::shared_ptr<Responder>);
	void props(const HttpRequest&, std::shared_ptr<Responder>);
	void models(const HttpRequest&, std::shared_ptr<Responder>);
	void model(const HttpRequest&, std::shared_ptr<Responder>);
	Json model_json(const Model&) const;
	void metrics(const HttpRequest&, std::shared_ptr<Responder>);
	void slots(const HttpRequest&, std::shared_ptr<Responder>);
	void adapters(const HttpRequest&, std::shared_ptr<Responder>);
	void set_adapters(const HttpRequest&, std::shared_ptr<Responder>);
	void slot_action(const HttpRequest&, std::shared_ptr<Responder>);
	void sessions(const HttpRequest&, std::shared_ptr<Responder>);
	void session(const HttpRequest&, std::shared_ptr<Responder>);
	void pin_session(const HttpRequest&, std::shared_ptr<Responder>);
	void remove_session(const HttpRequest&, std::shared_ptr<Responder>);
	void chat(const HttpRequest&, std::shared_ptr<Responder>);
	void completion(const HttpRequest&, std::shared_ptr<Responder>);
	void native_completion(const HttpRequest&, std::shared_ptr<Responder>);
	void infill(const HttpRequest&, std::shared_ptr<Responder>);
	void responses(const HttpRequest&, std::shared_ptr<Responder>);
	void messages(const HttpRequest&, std::shared_ptr<Responder>);
	void transcribe(const HttpRequest&, std::shared_ptr<Responder>);
	void apply_template(const HttpRequest&, std::shared_ptr<Responder>);
	void chat_tokens(const HttpRequest&, std::shared_ptr<Responder>);
	void response_tokens(const HttpRequest&, std::shared_ptr<Responder>);
	void count_tokens(const HttpRequest&, std::shared_ptr<Responder>);
	void embeddings(const HttpRequest&, std::shared_ptr<Responder>);
	void rerank(const HttpRequest&, std::shared_ptr<Responder>);
	// Computes vectors of the texts, and responds in the form of the request.
	void post_vectors(const HttpRequest&, std::shared_ptr<Responder>, EmbeddingsRequest);
	// Runs `compute` on the thread of embeddings. Throws ApiError if too many of them wait.
	void post_embedding(const HttpRequest&, std::shared_ptr<Responder>, std::function<void()> compute);
	void check_encodes(const Route&) const; // throws ApiError for answers of a model that generates none
	void ollama_version(const HttpRequest&, std::shared_ptr<Responder>);
	void ollama_tags(const HttpRequest&, std::shared_ptr<Responder>);
	void ollama_show(const HttpRequest&, std::shared_ptr<Responder>);
	void ollama_chat(const HttpRequest&, std::shared_ptr<Responder>);
	void ollama_generate(const HttpRequest&, std::shared_ptr<Responder>);
	void ollama_embed(const HttpRequest&, std::shared_ptr<Responder>);
	void tokenize(const HttpRequest&, std::shared_ptr<Responder>);
	void detokenize(const HttpRequest&, std::shared_ptr<Responder>);

	const Model &model_, &embedder_model_;
	Generator& generator_;
	SessionStore& store_;
	const HttpServer& server_;
	const RouterOptions options_;
	Notices notices_;
	const Defaults defaults_;
	RequestCounts counts_;
	std::atomic<uint32_t> embedding_ = 0; // embedding requests under way
	Grammars grammars_;
	std::once_flag channels_known_;
	bool channels_ = false;
	std::once_flag markers_known_;
	InfillMarkers markers_;
	// These threads parse and tokenize requests, so that neither the network nor running answers wait. Short bodies
	// do not wait for long ones, and requests without a body wait for neither. Declared last: destroyed first.
	Worker looks_, short_, long_;
	Worker embedder_; // computes embeddings in parallel with answers
};

// Whether two texts are equal, in a time that depends on the length of `given` only.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

// Reading ends when the client has gone.
Json body_of(const HttpRequest&, const Responder&);

} // namespace kvrun::serve
