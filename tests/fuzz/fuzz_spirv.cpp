// libFuzzer target: any words as a shader's SPIR-V, as loaded by KVRUN_SHADERS: time and memory of reading are bounded.
#include "backends/vulkan/spirv.h"
#include "engine/core/error.h"
#include <cstdlib>
#include <cstring>

using namespace kvrun;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	std::vector<uint32_t> words(size / 4);
	if (!words.empty()) std::memcpy(words.data(), data, words.size() * 4);
	try {
		const vk::Reflection r = vk::reflect(words, "fuzz");
		if (r.bindings.size() > vk::kMaxBindings) std::abort();
		const vk::SpecValue spec[] = {{0, 64}, {1, 0}, {2, UINT32_MAX}, {8, 1}};
		(void)vk::footprint(words, r, spec);
	} catch (const Error& e) {
		if (e.code != Code::Format) std::abort(); // a violated invariant of kvrun is a finding
	}
	return 0;
}
