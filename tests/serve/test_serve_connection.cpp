// Connections of kvrun serve, without a network or a clock: clients that do not read, deadlines, bodies.
#include "tools/serve/http_connection.h"
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace kvrun::serve;

namespace {

// The server's side of one connection, run by the test: poll() does its pending work.
class Served final : public Handler {
 public:
	explicit Served(const HttpOptions& o) : shared(o) {
		REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends_) == 0);
		const int small = 4096;
		for (const int end : ends_) REQUIRE(setsockopt(end, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
		shared.handler = this;
		const Socket::protocol_type local{asio::local::stream_protocol()};
		const auto c = std::make_shared<Connection>(Socket(io, local, ends_[0]), shared);
		shared.connections.insert(c);
		c->start();
	}
	~Served() override {
		responder.reset();
		leave();
	}
	void leave() { // closes the client's side
		if (ends_[1] >= 0) close(ends_[1]);
		ends_[1] = -1;
		while (!shared.connections.empty()) io.restart(), io.run_one();
	}

	std::optional<Response> refuse(const HttpRequest&) override { return {}; }
	void handle(HttpRequest r, std::shared_ptr<Responder> out) override {
		request = std::move(r), responder = std::move(out), ++handled;
	}
	Response failure(const HttpRequest& r, int status, std::string_view why) override {
		return {status, r.path + ": " + std::string(why)};
	}
	std::vector<std::pair<std::string, std::string>> headers(const HttpRequest&) override { return {}; }
	void finished(const HttpRequest&, int status, double, const std::string&) override { last_status = status; }

	void poll() {
		io.restart();
		io.poll();
	}
	size_t put(std::string_view bytes) { // as many as fit
		const ssize_t n = write(ends_[1], bytes.data(), bytes.size());
		return n > 0 ? size_t(n) : 0;
	}
	void send(std::string_view bytes) {
		while (!bytes.empty()) {
			bytes.remove_prefix(put(bytes));
			poll();
		}
	}
	std::string receive() { // everything available
		poll();
		std::string out(1 << 16, '\0');
		const ssize_t n = read(ends_[1], out.data(), out.size());
		out.resize(n > 0 ? size_t(n) : 0);
		return out;
	}

	asio::io_context io{1};
	Shared shared;
	HttpRequest request;
	std::shared_ptr<Responder> responder;
	int handled = 0, last_status = 0;

 private:
	int ends_[2];
};

HttpOptions no_hurry() {
	HttpOptions o;
	o.timeout_s = 3600;
	return o;
}

std::string post(size_t length) {
	return "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n";
}

} // namespace

TEST_CASE("T57 serve: a stream whose client takes nothing ends after 4 MiB, however long it may wait") {
	Served s(no_hurry());
	s.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	REQUIRE(s.handled == 1);
	s.responder->begin({});
	size_t sent = 0;
	for (; sent < (64 << 20) && !s.responder->gone(); sent += 64 << 10) {
		s.responder->send(std::string(64 << 10, 'x'));
		s.poll();
	}
	CHECK(s.responder->gone());
	CHECK(sent > (4 << 20));
	CHECK(sent < (6 << 20));
	CHECK(s.last_status == 499);
}

TEST_CASE("serve: a request that has come in time gets its own answer, though its deadline's handler was queued") {
	HttpOptions o;
	o.timeout_s = 0.01;
	Served s(o);
	const auto late = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
	s.put("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	while (std::chrono::steady_clock::now() < late) {} // both the bytes and the deadline are pending for poll()
	s.poll();
	if (s.handled == 1) {
		CHECK(s.receive() == "");
		s.responder->respond({200, "mine"});
		CHECK(s.receive().starts_with("HTTP/1.1 200 OK\r\n"));
	} else {
		CHECK(s.receive().starts_with("HTTP/1.1 408 "));
	}
}

TEST_CASE("T51 serve: bodies share one limit, from the first byte to the request's end") {
	HttpOptions o = no_hurry();
	o.max_body = 1000, o.max_bodies = 1500;
	Served s(o);
	BodyMemory& all = *s.shared.bodies;
	SUBCASE("while it is read, while it waits, and after it") {
		s.send(post(800) + std::string(300, 'x'));
		CHECK(all.used() == 300);
		s.send(std::string(500, 'x'));
		REQUIRE(s.handled == 1);
		CHECK(s.request.body.size() == 800);
		CHECK(all.used() == 800);
		s.request = {};
		CHECK(all.used() == 0);
	}
	SUBCASE("refused by its length, before it is read") {
		BodyMemory::Held other(s.shared.bodies);
		REQUIRE(other.grow(1000));
		s.send(post(501));
		const std::string answer = s.receive();
		CHECK(answer.starts_with("HTTP/1.1 429 "));
		CHECK(answer.find("\r\n\r\n/: the bodies") != answer.npos); // what refuses it knows the request
		CHECK(s.handled == 0);
	}
	SUBCASE("refused because it is longer than any may be") {
		s.send("POST /long?x HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
		const std::string answer = s.receive();
		CHECK(answer.starts_with("HTTP/1.1 413 "));
		CHECK(answer.find("\r\n\r\n/long: the body") != answer.npos);
	}
	SUBCASE("refused where it has no length and grows too long") {
		BodyMemory::Held other(s.shared.bodies);
		REQUIRE(other.grow(1000));
		s.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n190\r\n" + std::string(400, 'x') +
		       "\r\n");
		CHECK(all.used() == 1400);
		s.send("190\r\n" + std::string(400, 'x') + "\r\n");
		CHECK(s.receive().substr(0, 12) == "HTTP/1.1 429");
		CHECK(all.used() == 1000);
	}
	SUBCASE("given back where the client leaves") {
		{
			Served gone(o);
			gone.send(post(800) + std::string(300, 'x'));
			CHECK(gone.shared.bodies->used() == 300);
			gone.leave();
			CHECK(gone.shared.bodies->used() == 0);
		}
	}
}

TEST_CASE("T50 serve: two Host fields, and encodings other than chunked") {
	const auto status = [](const std::string& fields) {
		Served s(no_hurry());
		s.send("POST / HTTP/1.1\r\n" + fields + "\r\n");
		const std::string answer = s.receive();
		CHECK(s.handled == (answer.empty() ? 1 : 0));
		return answer.substr(0, 12);
	};
	CHECK(status("Host: a\r\n") == "");
	CHECK(status("Host: a\r\nHost: a\r\n") == "HTTP/1.1 400");
	CHECK(status("Host: a\r\nTransfer-Encoding: xchunked\r\n") == "HTTP/1.1 501");
	CHECK(status("Host: a\r\nTransfer-Encoding: gzip, chunked\r\n") == "HTTP/1.1 501");
	CHECK(status("Host: a\r\nTransfer-Encoding: identity\r\n") == "HTTP/1.1 501");
	CHECK(status("Host: a\r\nTransfer-Encoding: chunked, identity\r\n") == "HTTP/1.1 501");
}
