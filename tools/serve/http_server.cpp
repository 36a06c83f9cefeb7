// Accepts connections and stops on signals. All code that uses Boost.Beast and Boost.Asio is compiled here.
#include "engine/core/system/files.h"
#include "engine/core/system/terminal.h"
#include "tools/serve/http_connection.h"
#include <cstring>

namespace kvrun::serve {

constexpr size_t kMaxTurnedAway = 64; // connections beyond the limit that are being answered with 503

struct HttpServer::Impl {
	explicit Impl(const HttpOptions& o) : shared(o), acceptor(io), pause(io), drain_over(io) {}
	~Impl() { remove_socket(); }

	void remove_socket() {
		if (!bound_path.empty()) sys::remove_file(bound_path);
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
			const auto bound = acceptor.local_endpoint();
			tcp::endpoint address; // has the longest of the addresses that have ports
			std::memcpy(address.data(), bound.data(), bound.size());
			port = address.port();
		} catch (const boost::system::system_error& e) {
			const std::string where = o.unix_path.empty() ? "--host " + o.host + " --port " + std::to_string(o.port)
			                                              : "--unix " + o.unix_path;
			throw std::runtime_error(where + " cannot be listened on: " + e.code().message());
		}
	}
	// Replaces a stale socket file on which nobody listens; any other file stays.
	void listen_at(const std::string& path) {
#ifdef BOOST_ASIO_HAS_LOCAL_SOCKETS
		const asio::local::stream_protocol::endpoint where(path);
		sys::FileInfo info;
		if (sys::stat_file(path, /*follow_link=*/false, info) && info.kind == sys::FileKind::Socket) {
			asio::local::stream_protocol::socket other(io);
			ErrorCode alone;
			other.connect(where, alone);
			if (alone == asio::error::connection_refused) sys::remove_file(path);
		}
		acceptor.open(where.protocol());
		ErrorCode failed;
		sys::for_owner_only([&] { acceptor.bind(where, failed); });
		if (failed) throw boost::system::system_error(failed);
		bound_path = path;
		acceptor.listen();
#else
		throw std::runtime_error("--unix " + path + " cannot be listened on: Windows has ports only; give --port");
#endif
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
		first_signal.emplace([this] { asio::post(io, [this] { drain(); }); });
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
	uint16_t port = 0;      // 0: a socket file. Kept, because other threads ask while this one closes the acceptor
	asio::steady_timer pause, drain_over;
	std::optional<sys::FirstSignal> first_signal;
};

HttpServer::HttpServer(const HttpOptions& o) : impl_(std::make_unique<Impl>(o)) { impl_->listen(); }
HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return impl_->port; }
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
