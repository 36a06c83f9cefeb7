// The stream of a connection's bytes: a socket, or TLS on one. For http_connection.h only.
#pragma once
#include <boost/asio.hpp>
#ifdef KVRUN_TLS
#include <boost/asio/ssl.hpp>
#endif
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace kvrun::serve {

namespace asio = boost::asio;
using Socket = asio::generic::stream_protocol::socket; // TCP or a Unix socket
using ErrorCode = boost::system::error_code;

#ifdef KVRUN_TLS
using TlsContext = asio::ssl::context;

// TLS 1.2 and newer. Throws std::runtime_error naming the file that cannot be used.
inline std::unique_ptr<TlsContext> tls_context(const std::string& certificate, const std::string& key) {
	auto c = std::make_unique<TlsContext>(TlsContext::tls_server);
	c->set_options(TlsContext::default_workarounds | TlsContext::no_tlsv1 | TlsContext::no_tlsv1_1);
	SSL_CTX_set_options(c->native_handle(), SSL_OP_NO_RENEGOTIATION);
	c->set_password_callback([](size_t, TlsContext::password_purpose) { return std::string(); }); // else it would ask
	ErrorCode failed;
	c->use_certificate_chain_file(certificate, failed);
	if (failed)
		throw std::runtime_error("--ssl-cert-file " + certificate +
		                         " is no certificate in PEM form: " + failed.message());
	c->use_private_key_file(key, TlsContext::pem, failed);
	if (failed)
		throw std::runtime_error("--ssl-key-file " + key + " is no private key in PEM form, without a password, of " +
		                         certificate + ": " + failed.message());
	return c;
}
#else
struct TlsContext {};
inline std::unique_ptr<TlsContext> tls_context(const std::string&, const std::string&) {
	throw std::runtime_error("--ssl-cert-file needs OpenSSL (libssl-dev), which this kvrun was built without");
}
#endif

// An AsyncReadStream and AsyncWriteStream of Boost.Asio.
class Stream {
 public:
	using executor_type = Socket::executor_type;

	Stream(Socket s, [[maybe_unused]] TlsContext* tls) : socket_(std::move(s)) {
#ifdef KVRUN_TLS
		if (tls) tls_.emplace(socket_, *tls);
#endif
	}
	executor_type get_executor() { return socket_.get_executor(); }
	Socket& socket() { return socket_; }

	// f(error), before anything is read or written.
	template <class F> void async_handshake(F f) {
#ifdef KVRUN_TLS
		if (tls_) {
			tls_->async_handshake(asio::ssl::stream_base::server, std::move(f));
			return;
		}
#endif
		f(ErrorCode());
	}
	// Whether the handshake failed with this error because the client sent HTTP without TLS. Then drop_tls() lets the
	// answer pass as it is; not inside of a handler of this stream.
	static bool is_plain_http([[maybe_unused]] ErrorCode ec) {
#ifdef KVRUN_TLS
		return ec.category() == asio::error::get_ssl_category() &&
		       ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_HTTP_REQUEST;
#else
		return false;
#endif
	}
	void drop_tls() {
#ifdef KVRUN_TLS
		tls_.reset();
#endif
	}
	// Tells the client that nothing more is written; then f().
	template <class F> void async_finish(F f) {
		auto shut = [this, f = std::move(f)](ErrorCode) mutable {
			ErrorCode ignored;
			socket_.shutdown(Socket::shutdown_send, ignored);
			f();
		};
#ifdef KVRUN_TLS
		if (tls_) {
			tls_->async_shutdown(std::move(shut));
			return;
		}
#endif
		shut({});
	}
	template <class Buffers, class F> void async_read_some(const Buffers& to, F&& f) {
		with_stream([&](auto& s) { s.async_read_some(to, std::forward<F>(f)); });
	}
	template <class Buffers, class F> void async_write_some(const Buffers& from, F&& f) {
		with_stream([&](auto& s) { s.async_write_some(from, std::forward<F>(f)); });
	}

 private:
	template <class F> void with_stream(F f) {
#ifdef KVRUN_TLS
		if (tls_) return f(*tls_);
#endif
		f(socket_);
	}
	Socket socket_;
#ifdef KVRUN_TLS
	std::optional<asio::ssl::stream<Socket&>> tls_;
#endif
};

} // namespace kvrun::serve
