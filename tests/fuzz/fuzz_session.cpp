// libFuzzer target: any bytes as a session file of a tiny model, and one more token if it is valid. The first byte says
// whether checksums are recomputed and the length set to that of the file, so that the content behind them is read.
#include "engine/run/session_file.h"
#include "tests/fuzz/expect.h"
#include "tests/support/session_header.h"
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

using namespace kvrun;

namespace {

Engine& engine() {
	static const std::unique_ptr<Engine> e = [] {
		EngineOptions o;
		o.model = KVRUN_SOURCE_DIR "/tests/golden/tiny/llama.gguf";
		o.backend.device = "cpu";
		o.kv_budget = 4 << 20;
		return Engine::open(o);
	}();
	return *e;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	if (size == 0) return 0;
	std::vector<std::byte> bytes(size - 1);
	if (!bytes.empty()) std::memcpy(bytes.data(), data + 1, bytes.size());
	if (data[0] & 1 && bytes.size() >= kHeaderBytes) {
		set_word(bytes, 16, bytes.size());
		seal(bytes);
	}
	static const int fd = memfd_create("fuzz", MFD_CLOEXEC);
	static const std::string path = "/proc/self/fd/" + std::to_string(fd);
	if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, bytes.data(), bytes.size(), 0) != ssize_t(bytes.size()))
		std::abort();
	expect_errors_only([&] {
		const std::unique_ptr<Session> s = restore_session(engine(), path);
		if (s->n_tokens() > s->ctx()) std::abort();
		SessionRow row{s.get(), 1};
		if (s->n_tokens() < s->ctx()) (void)decode({&row, 1});
	});
	expect_errors_only([&] { (void)read_session_note(path); });
	if (engine().pool().used_bytes() != 0) std::abort(); // a refused session leaves nothing
	return 0;
}
