// libFuzzer target: any bytes on a connection of kvrun serve, through the parser, the routes, JSON, the chat template
// and the tokenizer, in this process and on this thread. No request is answered: the limit of concurrent answers is 0.
#include "tests/support/temp_folder.h"
#include "tools/serve/http_connection.h"
#include "tools/serve/router.h"
#include <cstdlib>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace kvrun;
using namespace kvrun::serve;

namespace {

EngineHandle open_engine() {
	kvrun_device_options d = KVRUN_DEVICE_OPTIONS_INIT;
	d.device = "cpu";
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = KVRUN_SOURCE_DIR "/tests/golden/tiny/llama.gguf";
	o.device = &d;
	o.kv_budget_bytes = 4 << 20;
	kvrun_engine* engine = nullptr;
	if (kvrun_engine_open(&engine, &o) != KVRUN_OK) std::abort();
	return EngineHandle(engine);
}

HttpOptions http_options() {
	HttpOptions o;
	o.port = 0;
	o.max_body = 8192;
	return o;
}

class Served final : public Handler { // as the router does it, without its thread
 public:
	std::optional<Response> refuse(const HttpRequest& r) override { return router_.refuse(r); }
	void handle(HttpRequest r, std::shared_ptr<Responder> out) override { router_.answer(r, out); }
	Response failure(const HttpRequest& r, int status, std::string_view why) override {
		return router_.failure(r, status, why);
	}
	std::vector<std::pair<std::string, std::string>> headers(const HttpRequest& r) override {
		return router_.headers(r);
	}
	void finished(const HttpRequest& r, int status, double seconds, const std::string& note) override {
		if (status == 500) std::abort(); // no request may be a server error
		router_.finished(r, status, seconds, note);
	}

 private:
	Model model_{open_engine(), "m", KVRUN_SOURCE_DIR "/tests/serve/tools.jinja"};
	Generator generator_{model_, {0, 1, 0, 64}};
	TempFolder folder_;
	SessionStore store_{folder_.path.string()};
	HttpServer server_{http_options()};
	static RouterOptions options() {
		RouterOptions o{.host = "127.0.0.1",
		                .api_keys = {},
		                .cors = {},
		                .allow_hosts = {},
		                .defaults = Defaults("fp16"),
		                .file = {}};
		o.embeddings = 0;
		return o;
	}
	Router router_{model_, model_, generator_, store_, server_, options()};
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	static Served served;
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
	asio::io_context io{1};
	Shared shared(http_options());
	shared.handler = &served;
	const Socket::protocol_type local{asio::local::stream_protocol()};
	const auto connection = std::make_shared<Connection>(Socket(io, local, ends[0]), shared);
	shared.connections.insert(connection);
	connection->start();
	std::string answer(1 << 16, '\0');
	bool first = true;
	for (size_t at = 0; at <= size && !shared.connections.empty();) { // in pieces, as from a network
		const size_t n = std::min<size_t>(size - at, 4096);
		if (n && write(ends[1], data + at, n) < 0) break;
		at += n ? n : 1;
		while (io.poll() > 0) {}
		const ssize_t got = read(ends[1], answer.data(), answer.size());
		if (got > 0 && std::exchange(first, false) && !answer.starts_with("HTTP/1.1 ")) std::abort();
	}
	close(ends[1]);
	while (io.poll() > 0) {}
	if (!shared.connections.empty()) std::abort(); // it ends with its client
	return 0;
}
