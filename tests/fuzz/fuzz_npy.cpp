// libFuzzer target: any bytes as a .npy file, as kvrun replay reads them.
#include "engine/core/error.h"
#include "engine/core/npy.h"
#include <cstdlib>

using namespace kvrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	try {
		const NpyArray a = npy_parse(std::as_bytes(std::span(data, size)), "fuzz");
		if (a.data.size() != a.count() * npy_type_info(a.type).bytes) std::abort();
		if (a.type == NpyType::F32 && a.as<float>().size() != a.count()) std::abort();
	} catch (const Error& e) {
		if (e.code == Code::Internal) std::abort();
	}
	return 0;
}
