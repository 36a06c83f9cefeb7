// A request, its answer, and who carries and who gives them: the seam between the HTTP library and the routes.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun::serve {

// Counts the bytes of request bodies that the server holds, over all requests. Any thread may call.
class BodyMemory {
 public:
	explicit BodyMemory(size_t most) : most_(most) {}
	bool has_room(size_t bytes) const { return used_ + bytes <= most_; }
	size_t used() const { return used_; }

	// The share of one request; released by the destructor.
	class Held {
	 public:
		explicit Held(std::shared_ptr<BodyMemory> of) : of_(std::move(of)) {}
		Held(const Held&) = delete;
		~Held() { of_->used_ -= bytes_; }
		bool grow(size_t bytes) { // to `bytes` in total; returns false if there is no room
			const size_t more = bytes - bytes_;
			if (of_->used_.fetch_add(more) + more > of_->most_) {
				of_->used_ -= more;
				return false;
			}
			bytes_ = bytes;
			return true;
		}

	 private:
		std::shared_ptr<BodyMemory> of_;
		size_t bytes_ = 0;
	};

 private:
	const size_t most_;
	std::atomic<size_t> used_ = 0;
};

struct HttpRequest {
	std::string method, path; // the path without its query
	std::string host, origin, authorization, content_encoding;
	std::string id;            // the client's X-Request-Id, or one made here
	std::string asked_headers; // of a preflight: Access-Control-Request-Headers
	std::string api_key;       // X-Api-Key
	std::string content_type = {};
	std::string body;
	std::shared_ptr<BodyMemory::Held> held = {}; // share of the body; keep it as long as data read from the body
};

struct Response {
	int status = 200;
	std::string body;
	std::string type = "application/json";
	std::vector<std::pair<std::string, std::string>> headers = {};
};

// Answers one request: by respond(), or by begin(), any number of send() and end(). Any thread may call; after the
// client has disconnected, calls do nothing.
class Responder {
 public:
	virtual ~Responder() = default;
	virtual void respond(Response) = 0;
	virtual void begin(Response head) = 0; // status, type and headers; the body follows in pieces
	virtual void send(std::string piece) = 0;
	virtual void end() = 0;
	virtual void note(std::string text) = 0; // for the log line of the request
	bool gone() const { return gone_.load(std::memory_order_relaxed); }

 protected:
	std::atomic<bool> gone_ = false; // the client has disconnected
};

// Called by the HTTP server on its thread, so none of these functions may block.
class Handler {
 public:
	virtual ~Handler() = default;
	// Checks a request before its body is read. If it returns a response, the body is not read and the connection ends.
	virtual std::optional<Response> refuse(const HttpRequest&) = 0;
	virtual void handle(HttpRequest, std::shared_ptr<Responder>) = 0;
	// The response to a request that is not well-formed, or that comes when the server cannot take it. Its fields are
	// empty if its header was not read.
	virtual Response failure(const HttpRequest&, int status, std::string_view why) = 0;
	// Headers of every response to a request.
	virtual std::vector<std::pair<std::string, std::string>> headers(const HttpRequest&) = 0;
	// Called after a request was answered; status 499 if the client had disconnected.
	virtual void finished(const HttpRequest&, int status, double seconds, const std::string& note) = 0;
};

struct HttpOptions {
	std::string host = "127.0.0.1";
	uint16_t port = 8080;         // 0: any free port
	std::string prefix;           // of all paths, like "/kvrun"; empty if none
	std::string unix_path;        // Unix socket in the file system, used instead of host and port; empty if not used
	std::string certificate;      // file in PEM form, the server's first: connections use TLS; empty: they do not
	std::string private_key;      // its file, in PEM form
	size_t max_body = 8 << 20;    // bytes of a request's body
	size_t max_bodies = 64 << 20; // bytes of all request bodies being received or waiting; further ones are refused
	size_t max_connections = 256; // at once; further connections get 503
	double timeout_s = 30; // for a client to send a header, to send a body, to read the answer; also between requests
	double drain_s = 30;   // after SIGTERM or SIGINT: time for requests under way
};
constexpr size_t kMaxHeader = 16 << 10; // bytes of the request line and header fields

// Listens from the constructor on; answers requests while run() runs.
class HttpServer {
 public:
	// Throws std::runtime_error naming host and port, the socket's path, or a file of TLS.
	explicit HttpServer(const HttpOptions&);
	~HttpServer();
	uint16_t port() const;        // 0 if it listens on a Unix socket
	size_t n_connections() const; // any thread may ask
	size_t body_bytes() const;    // held by requests; any thread may ask
	// Runs until SIGTERM or SIGINT, then until requests under way are answered, at most drain_s. A second signal ends
	// the program whatever it is doing: the first signal restores the default action.
	void run(Handler&);
	void stop(); // ends run() at once; any thread may call

 private:
	struct Impl;
	std::unique_ptr<Impl> impl_;
};

} // namespace kvrun::serve
