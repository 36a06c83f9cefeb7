// libFuzzer target: any bytes as a .npy file, as kvrun replay reads them: from memory and from a file, which must
// agree.
#include "engine/core/error.h"
#include "engine/core/npy.h"
#include <cstdlib>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>

using namespace kvrun;

namespace {

template <class F> std::optional<NpyArray> array_of(F&& read, std::optional<Code>& error) {
	try {
		const NpyArray a = read();
		if (a.data.size() != a.count() * npy_type_info(a.type).bytes) std::abort();
		if (a.type == NpyType::F32 && a.as<float>().size() != a.count()) std::abort();
		return a;
	} catch (const Error& e) {
		if (e.code == Code::Internal) std::abort(); // a violated invariant of kvrun is a finding
		if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
		error = e.code;
		return {};
	}
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	static const int fd = memfd_create("fuzz", MFD_CLOEXEC);
	static const std::string path = "/proc/self/fd/" + std::to_string(fd);
	if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != ssize_t(size)) std::abort();
	std::optional<Code> memory_error, file_error;
	const auto memory = array_of([&] { return npy_parse(std::as_bytes(std::span(data, size)), "fuzz"); }, memory_error);
	const auto file = array_of([&] { return npy_read(path); }, file_error);
	if (memory_error != file_error) std::abort();
	if (memory && (memory->type != file->type || memory->shape != file->shape || memory->data != file->data))
		std::abort();
	return 0;
}
