// Accepts connections and stops on signals. All code that uses Boost.Beast and Boost.Asio is compiled here.
#include "tools/serve/http_connection.h"
#include <csignal>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvrun::serve {

constexpr size_t kMaxTurnedAway = 64; // connections beyond the limit that are being answered with 503

// The first SIGTERM or SIGINT is passed to the server through a pipe. It also restores the default action, so that
// the second signal ends the program whatever its threads are doing.
class FirstSignal {
 public:
	FirstSignal() {
		if (::pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("no pipe can be made for signals");
		write_end = ends_[1];
		struct sigaction ours {};
		ours.sa_flags = SA_RESTART; // a log line that is blocked on its reader is not lost
		ours.sa_handler = [](int) {
			restore();
			const int error = errno;
			(void)!::write(write_end, "", 1);
			errno = error;
		};
		for (const int sig : kSignals) ::sigaction(sig, &ours, nullptr);
	}
	~FirstSignal() {
		restore();
		for (const int fd : ends_) ::close(fd);
	}
	int read_end() const { return ends_[0]; }

 private:
	static constexpr int kSignals[] = {SIGINT, SIGTERM};
	static void restore() {
		struct sigaction usual {};
		usual.sa_handler = SIG_DFL;
		for (const int sig : kSignals) ::sigaction(sig, &usual, nullptr);
	}
	static inline volatile int write_end = -1;
	int ends_[2];
};

struct HttpServer::Impl {
	explicit Impl(const HttpOptions& o) : shared(o), acceptor(io), pause(io), drain_over(io), signalled(io) {}
	~Impl() { remove_socket(); }

	void remove_socket() {
		if (!bound_path.empty()) ::unlink(bound_path.c_str());
		bound_path.clear();
	}

	void listen() {
		const HttpOptions& o = shared.options;
		try {
			if (!o.unix_path.empty()) return listen_at(o.unix_path);
			tcp::resolver resolver(io);
			const auto found = resolver.resolve(o.host, std::to_string(o.port), tcp::resolver::passive);
			const tcp::endpoint where = found.begin()->endpoint();
			acceptor.open(where.protocol());
			acceptor.set_option(asio::socket_base::reuse_address(true));
			acceptor.bind(where);
			acceptor.listen();
		} catch (const boost::system::system_error& e) {
			const std::string where = o.unix_path.empty() ? "--host " + o.host + " --port " + std::to_string(o.port)
			                                              : "--unix " + o.unix_path;
			throw std::runtime_error(where + " cannot be listened on: " + e.code().message());
		}
	}
	// Replaces a stale socket file on which nobody listens; any other file stays.
	void listen_at(const std::string& path) {
		const asio::local::stream_protocol::endpoint where(path);
		struct stat st;
		if (::lstat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode)) {
			asio::local::stream_protocol::socket other(io);
			ErrorCode alone;
			other.connect(where, alone);
			if (alone == asio::error::connection_refused) ::unlink(path.c_str());
		}
		acceptor.open(where.protocol());
		const mode_t mask = ::umask(0177); // accessible to its owner only
		ErrorCode failed;
		acceptor.bind(where, failed);
		::umask(mask);
		if (failed) throw boost::system::system_error(failed);
		bound_path = path;
		acceptor.listen();
	}

	void accept() {
		acceptor.async_accept([this](ErrorCode ec, Socket socket) {
			if (shared.draining || ec == asio::error::operation_aborted) return;
			if (ec) return accept_later(); // most likely out of file descriptors
			const size_t open = shared.connections.size();
			auto c = std::make_shared<Connection>(std::move(socket), shared);
			shared.connections.insert(c);
			shared.n_connections = open + 1;
			if (open < shared.options.max_connections)
				c->start();
			else
				c->turn_away();
			if (open + 1 < shared.options.max_connections + kMaxTurnedAway)
				accept();
			else
				accept_later();
		});
	}
	void accept_later() {
		pause.expires_after(std::chrono::milliseconds(100));
		pause.async_wait([this](ErrorCode ec) {
			if (!ec && !shared.draining) accept();
		});
	}

	void wait_for_signal() {
		first_signal.emplace();
		signalled.assign(::dup(first_signal->read_end()));
		signalled.async_wait(asio::posix::stream_descriptor::wait_read, [this](ErrorCode ec) {
			if (!ec) drain();
		});
	}
	void drain() {
		shared.draining = true;
		ErrorCode ignored;
		acceptor.close(ignored);
		remove_socket();
		const auto all = shared.connections; // a copy, because connections leave the set as they close
		for (const auto& c : all) c->drain();
		drain_over.expires_after(std::chrono::milliseconds(int64_t(shared.options.drain_s * 1000)));
		drain_over.async_wait([this](ErrorCode ec) {
			if (!ec) io.stop();
		});
		if (shared.connections.empty()) io.stop();
	}

	asio::io_context io{1};
	Shared shared;
	asio::basic_socket_acceptor<asio::generic::stream_protocol> acceptor;
	std::string bound_path; // of the socket file; empty if none
	asio::steady_timer pause, drain_over;
	std::optional<FirstSignal> first_signal;
	asio::posix::stream_descriptor signalled;
};

HttpServer::HttpServer(const HttpOptions& o) : impl_(std::make_unique<Impl>(o)) { impl_->listen(); }
HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const {
	sockaddr_storage where{};
	socklen_t size = sizeof where;
	if (::getsockname(impl_->acceptor.native_handle(), reinterpret_cast<sockaddr*>(&where), &size) != 0) return 0;
	if (where.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(where).sin6_port);
	return where.ss_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in&>(where).sin_port) : 0;
}
size_t HttpServer::n_connections() const { return impl_->shared.n_connections; }
size_t HttpServer::body_bytes() const { return impl_->shared.bodies->used(); }

void HttpServer::stop() {
	asio::post(impl_->io, [this] { impl_->io.stop(); });
}

void HttpServer::run(Handler& handler) {
	Impl& s = *impl_;
	s.shared.handler = &handler;
	s.shared.closed = [&s] {
		if (s.shared.draining && s.shared.connections.empty()) s.io.stop();
	};
	s.wait_for_signal();
	s.accept();
	s.io.run();
	s.shared.draining = true;
	const auto rest = s.shared.connections; // connections whose requests were not answered in time
	for (const auto& c : rest) c->close();
}

} // namespace kvrun::serve
