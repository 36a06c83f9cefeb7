// One connection: reads a request, passes it to the handler, writes the answer, repeats. Included by http_server.cpp
// only, because Boost.Beast compiles slowly.
#pragma once
#include "engine/core/system/machine.h"
#include "tools/serve/http.h"
#include "tools/serve/id.h"
#include "tools/serve/tls_stream.h"
#include <algorithm>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <set>
#include <sstream>

namespace kvrun::serve {

namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

class Connection;

struct Shared { // state shared by the connections of a server
	explicit Shared(const HttpOptions& o) : options(o), bodies(std::make_shared<BodyMemory>(o.max_bodies)) {}
	const HttpOptions options;
	const std::unique_ptr<TlsContext> tls =
	    options.certificate.empty() ? nullptr : tls_context(options.certificate, options.private_key);
	const std::shared_ptr<BodyMemory> bodies; // shared ownership: requests may outlive the server
	Handler* handler = nullptr;
	bool draining = false; // connections close when their answer ends
	std::set<std::shared_ptr<Connection>> connections;
	std::atomic<size_t> n_connections = 0;
	std::function<void()> closed = {}; // called when a connection has closed
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
	Connection(Socket socket, Shared& shared)
	    : stream_(std::move(socket), shared.tls.get()), shared_(shared), deadline_(stream_.get_executor()),
	      watch_(stream_.get_executor()) {}

	void start() {
		ErrorCode ignored; // small system buffer: data that a client does not read stays in out_, where it is counted
		stream_.socket().set_option(asio::socket_base::send_buffer_size(64 << 10), ignored);
		stream_.socket().set_option(tcp::no_delay(true), ignored);
		shake_hands([](Connection& c) { c.read_header(); });
	}
	// Answers 503 and closes: the server has too many connections.
	void turn_away() {
		shake_hands([](Connection& c) { c.answer_and_close(c.failure(503, "too many connections; try again later")); });
	}
	// Closes now if no request is being answered; otherwise closes after the answer.
	void drain() {
		if (!answering_ && out_.empty()) close();
	}
	void close() {
		if (closed_) return;
		closed_ = true;
		if (const auto exchange = exchange_.lock()) set_gone(*exchange);
		ErrorCode ignored;
		stream_.socket().close(ignored);
		cancel_deadline();
		watch_.cancel();
		drop_body();
		if (answering_) finish_request(499);
		const auto self = shared_from_this();
		shared_.connections.erase(self);
		shared_.n_connections = shared_.connections.size();
		if (shared_.closed) shared_.closed();
	}

 private:
	// The handler's side of one request: passes every call on to the server's thread.
	class Exchange final : public Responder {
	 public:
		Exchange(std::shared_ptr<Connection> c, asio::any_io_executor e)
		    : connection_(std::move(c)), executor_(e), request_(connection_->n_requests_) {}
		~Exchange() override { // if the handler drops the request unanswered, the client must not wait
			post([](Connection& c) {
				if (c.answering_ && !c.begun_) c.answer(c.failure(500, "the request was dropped"));
				if (c.answering_ && !c.ending_) c.close();
			});
		}
		void respond(Response r) override {
			post([r = std::move(r)](Connection& c) mutable { c.answer(std::move(r)); });
		}
		void begin(Response head) override {
			post([h = std::move(head)](Connection& c) mutable { c.begin(std::move(h)); });
		}
		void send(std::string piece) override {
			post([p = std::move(piece)](Connection& c) mutable { c.send(std::move(p)); });
		}
		void end() override {
			post([](Connection& c) { c.end(); });
		}
		void note(std::string text) override {
			post([t = std::move(text)](Connection& c) mutable { c.note_ = std::move(t); });
		}
		void set_gone() { gone_ = true; }

	 private:
		template <class F> void post(F f) {
			asio::post(executor_, [c = connection_, request = request_, f = std::move(f)]() mutable {
				if (!c->closed_ && c->n_requests_ == request) f(*c);
			});
		}
		std::shared_ptr<Connection> connection_;
		asio::any_io_executor executor_;
		const uint64_t request_; // number of the request on this connection
	};
	static void set_gone(Exchange& e) { e.set_gone(); }

	static constexpr size_t kMaxUnsent = 4 << 20;                    // bytes of a stream that the client has not read
	static constexpr auto kWatch = std::chrono::milliseconds(50);    // between checks for a disconnected client
	static constexpr auto kLinger = std::chrono::milliseconds(2000); // time for a client to read the last answer

	// ---- reading

	void shake_hands(void (*then)(Connection&)) {
		set_deadline(timeout(), [this] { close(); });
		stream_.async_handshake([self = shared_from_this(), then](ErrorCode ec) {
			if (self->closed_) return;
			self->cancel_deadline();
			if (!ec) return then(*self);
			if (!Stream::is_plain_http(ec)) return self->close();
			asio::post(self->stream_.get_executor(), [self] {
				self->stream_.drop_tls();
				self->answer_and_close(self->failure(400, "this port takes TLS only; write https:// in the address"));
			});
		});
	}

	void read_header() {
		parser_.emplace();
		parser_->header_limit(kMaxHeader);
		parser_->body_limit(shared_.options.max_body);
		request_ = {};
		request_.id = new_id("req_");
		request_.held = std::make_shared<BodyMemory::Held>(shared_.bodies);
		++n_requests_;
		set_deadline(timeout(), [this] { late(parser_->got_some() || buffer_.size() > 0); });
		http::async_read_header(stream_, buffer_, *parser_,
		                        [self = shared_from_this()](ErrorCode ec, size_t) { self->on_header(ec); });
	}

	// If false, an answer is under way or the connection is closing, and further input is not read as a request.
	bool reading() const { return !closed_ && !answering_ && !lingering_; }

	void on_header(ErrorCode ec) {
		if (!reading()) return;
		start_ = Clock::now();
		if (!parser_->get().target().empty()) take_header(); // errors have the form of the API that the path belongs to
		if (ec) return read_failed(ec);
		if (parser_->get().count(http::field::host) > 1)
			return answer_and_close(failure(400, "the request has more than one Host field"));
		if (!known_encoding()) return unknown_encoding();
		if (std::optional<Response> r = shared_.handler->refuse(request_)) return answer_and_close(std::move(*r));
		if (parser_->is_done()) return dispatch();
		if (!shared_.bodies->has_room(parser_->content_length().value_or(0))) return no_room();
		set_deadline(timeout(), [this] { late(true); });
		parser_->eager(false); // so that every chunk of a body is counted as soon as it arrives
		if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
			static const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
			asio::async_write(stream_, asio::buffer(go_on), [self = shared_from_this()](ErrorCode failed, size_t) {
				if (failed) return self->close();
				self->read_body();
			});
			return;
		}
		read_body();
	}

	void read_body() {
		if (!reading()) return;
		http::async_read_some(stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode ec, size_t) {
			if (!self->reading()) return;
			if (ec) return self->read_failed(ec);
			if (!self->request_.held->grow(self->parser_->get().body().size())) return self->no_room();
			if (self->parser_->is_done()) return self->dispatch();
			self->read_body();
		});
	}

	// Beast reads a body by Content-Length if it does not know the transfer encoding.
	bool known_encoding() const {
		const auto [begin, end] = parser_->get().equal_range(http::field::transfer_encoding);
		return begin == end || (std::next(begin) == end && beast::iequals(begin->value(), "chunked"));
	}

	void unknown_encoding() {
		answer_and_close(failure(501, "the only Transfer-Encoding that is supported is chunked"));
	}

	void no_room() {
		answer_and_close(failure(429, "the bodies of other requests fill --max-bodies; try again later"));
	}
	void drop_body() {
		request_.held.reset();
		if (parser_) std::string().swap(parser_->get().body()); // swap, because an assignment would keep the memory
	}

	void take_header() {
		const auto& m = parser_->get();
		const auto field = [&](http::field f) { return std::string(m[f]); };
		request_.method = std::string(m.method_string());
		request_.path = path_of(std::string(m.target()));
		request_.host = field(http::field::host), request_.origin = field(http::field::origin);
		request_.authorization = field(http::field::authorization);
		request_.content_encoding = field(http::field::content_encoding);
		request_.content_type = field(http::field::content_type);
		request_.asked_headers = field(http::field::access_control_request_headers);
		request_.api_key = std::string(m["X-Api-Key"]);
		if (std::string id(m["X-Request-Id"]); good_id(id)) request_.id = std::move(id);
		version_ = m.version();
		keep_alive_ = m.keep_alive();
	}

	// The path behind --api-prefix and without the query; empty if the target is not below the prefix. The target may
	// be a whole address (RFC 9112). A base address that ends with a slash makes two of one, and some clients end paths
	// with one: neither makes another path.
	std::string path_of(const std::string& whole) const {
		std::string_view target = whole;
		for (const std::string_view scheme : {"http://", "https://"})
			if (target.starts_with(scheme)) {
				const size_t end = target.find('/', scheme.size());
				target = end == target.npos ? "/" : target.substr(end);
			}
		target = target.substr(0, target.find('?'));
		std::string path;
		for (const char c : target)
			if (c != '/' || !path.ends_with('/')) path += c;
		if (path.size() > 1 && path.ends_with('/')) path.pop_back();
		const std::string_view prefix = shared_.options.prefix;
		if (!path.starts_with(prefix)) return {};
		path.erase(0, prefix.size());
		if (path.empty()) return "/";
		return path[0] == '/' ? path : std::string();
	}

	// Restricts X-Request-Id, because it is sent back and written to the log.
	static bool good_id(std::string_view id) {
		return !id.empty() && id.size() <= 128 && std::ranges::all_of(id, [](char c) { return c > ' ' && c <= '~'; });
	}

	void read_failed(ErrorCode ec) {
		if (ec == http::error::header_limit)
			return answer_and_close(failure(431, fmt_bytes("the header is longer than ", kMaxHeader)));
		if (ec == http::error::body_limit)
			return answer_and_close(failure(413, fmt_bytes("the body is longer than ", shared_.options.max_body) +
			                                         "; --max-body raises the limit"));
		// Beast of newer Boosts refuses unknown encodings itself; all of them refuse one beside a length.
		if (ec == http::error::bad_transfer_encoding && !parser_->get().count(http::field::content_length))
			return unknown_encoding();
		if (ec.category() != http::make_error_code(http::error::bad_method).category() ||
		    ec == http::error::end_of_stream || ec == http::error::partial_message)
			return close();
		answer_and_close(failure(400, "the request is not well-formed HTTP: " + ec.message()));
	}

	void late(bool begun) {
		if (!begun) return close(); // idle between two requests
		answer_and_close(failure(408, "the request did not arrive in time"));
	}

	void dispatch() {
		cancel_deadline();
		answering_ = true;
		auto exchange = std::make_shared<Exchange>(shared_from_this(), stream_.get_executor());
		exchange_ = exchange;
		watch();
		HttpRequest request = request_;
		request.body = std::move(parser_->get().body());
		request_.held.reset();
		shared_.handler->handle(std::move(request), std::move(exchange));
	}

	// Polls whether the client has closed its side of the connection; even a half close cancels the answer.
	void watch() {
		watch_.expires_after(kWatch);
		watch_.async_wait([self = shared_from_this()](ErrorCode ec) {
			if (ec || self->closed_ || !self->answering_) return;
			if (sys::peer_closed(intptr_t(self->stream_.socket().native_handle()))) return self->close();
			self->watch();
		});
	}

	// ---- writing

	Response failure(int status, std::string_view why) { return shared_.handler->failure(request_, status, why); }
	static std::string fmt_bytes(const char* what, size_t n) { return what + std::to_string(n) + " bytes"; }

	// Status line and header fields. length: of the body; nullopt if the body is sent in pieces.
	std::string head(const Response& r, std::optional<size_t> length) {
		if (shared_.draining) keep_alive_ = false;
		http::response<http::empty_body> m{http::status(r.status), 11};
		m.set(http::field::server, "kvrun");
		m.set(http::field::content_type, r.type);
		if (!request_.id.empty()) m.set("X-Request-Id", request_.id);
		for (const auto& [name, value] : r.headers) m.set(name, value);
		for (const auto& [name, value] : shared_.handler->headers(request_)) m.set(name, value);
		if (length) m.content_length(*length);
		chunked_ = !length && version_ >= 11;
		if (chunked_) m.set(http::field::transfer_encoding, "chunked");
		if (!length && !chunked_) keep_alive_ = false; // closing the connection marks the end of the body
		m.set(http::field::connection, keep_alive_ ? "keep-alive" : "close");
		std::ostringstream out;
		out << m.base();
		return out.str();
	}

	void answer(Response r) {
		if (!answering_ || begun_) return;
		begun_ = ending_ = true, status_ = r.status;
		std::string bytes = head(r, r.body.size());
		if (request_.method != "HEAD") bytes += r.body;
		write(std::move(bytes));
	}
	void answer_and_close(Response r) {
		answering_ = true, keep_alive_ = false;
		cancel_deadline();
		drop_body();
		answer(std::move(r));
	}
	void begin(Response r) {
		if (!answering_ || begun_) return;
		begun_ = true, status_ = r.status;
		write(head(r, std::nullopt));
	}
	void send(std::string piece) {
		if (!answering_ || !begun_ || ending_ || piece.empty()) return;
		if (unsent_ > kMaxUnsent) return close();
		if (!chunked_) return write(std::move(piece));
		std::ostringstream size;
		size << std::hex << piece.size() << "\r\n";
		write(size.str() + piece + "\r\n");
	}
	void end() {
		if (!answering_ || !begun_ || ending_) return;
		ending_ = true;
		write(chunked_ ? "0\r\n\r\n" : "");
	}

	void write(std::string bytes) {
		unsent_ += bytes.size();
		out_.push_back(std::move(bytes));
		if (out_.size() == 1) write_front();
	}
	void write_front() {
		set_deadline(timeout(), [this] { close(); });
		asio::async_write(stream_, asio::buffer(out_.front()), [self = shared_from_this()](ErrorCode ec, size_t) {
			if (self->closed_) return;
			if (ec) return self->close();
			self->unsent_ -= self->out_.front().size();
			self->out_.pop_front();
			if (!self->out_.empty()) return self->write_front();
			self->cancel_deadline();
			if (self->ending_) self->answered();
		});
	}

	void answered() {
		finish_request(status_);
		if (keep_alive_ && !shared_.draining) return read_header();
		// closing with unread bytes would reset the connection, and the client would lose the answer
		lingering_ = true;
		set_deadline(kLinger, [this] { close(); });
		stream_.async_finish([self = shared_from_this()] {
			if (!self->closed_) self->discard();
		});
	}
	void discard() {
		stream_.socket().async_read_some(asio::buffer(scratch_), [self = shared_from_this()](ErrorCode ec, size_t) {
			if (self->closed_) return;
			if (ec) return self->close();
			self->discard();
		});
	}

	void finish_request(int status) {
		answering_ = begun_ = ending_ = false;
		watch_.cancel();
		exchange_.reset();
		const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
		shared_.handler->finished(request_, status, seconds, std::exchange(note_, {}));
	}

	std::chrono::milliseconds timeout() const {
		return std::chrono::milliseconds(int64_t(shared_.options.timeout_s * 1000));
	}
	// A deadline is replaced by the next one and can be cancelled. A timer that has expired may have its handler
	// queued already: the handler of an older deadline does nothing.
	template <class F> void set_deadline(std::chrono::milliseconds after, F on_late) {
		cancel_deadline();
		deadline_.expires_after(after);
		deadline_.async_wait([self = shared_from_this(), n = n_deadlines_, on_late](ErrorCode ec) {
			if (!ec && !self->closed_ && n == self->n_deadlines_) on_late();
		});
	}
	void cancel_deadline() {
		++n_deadlines_;
		deadline_.cancel();
	}

	Stream stream_;
	Shared& shared_;
	asio::steady_timer deadline_, watch_;
	beast::flat_buffer buffer_{64 << 10};
	std::optional<http::request_parser<http::string_body>> parser_;
	HttpRequest request_; // without its body
	std::weak_ptr<Exchange> exchange_;
	uint64_t n_requests_ = 0, n_deadlines_ = 0;
	Clock::time_point start_ = Clock::now();
	unsigned version_ = 11;
	int status_ = 0;
	std::string note_;
	bool keep_alive_ = false, chunked_ = false;
	bool answering_ = false, begun_ = false, ending_ = false; // a request; its answer; all of it is in out_
	bool lingering_ = false, closed_ = false;
	std::deque<std::string> out_; // the first is being written
	size_t unsent_ = 0;
	std::array<char, 4096> scratch_{};
};

} // namespace kvrun::serve
