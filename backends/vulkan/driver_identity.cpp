// Names of a driver's build, under which its test results and measured choices are kept; known faults of drivers.
#include "backends/vulkan/driver_identity.h"
#include "backends/vulkan/icd_files.h"
#include "backends/vulkan/kernels.h"
#include "backends/vulkan/spirv.h"
#include <xxhash.h>

namespace kvrun::vk {

std::string uuid_text(const uint8_t (&uuid)[VK_UUID_SIZE]) {
	std::string text;
	for (const uint8_t b : uuid) text += fmt::format("{:02x}", b);
	return text;
}

std::string driver_key(const Caps& c, const DeviceInfo& info) {
	static const uint64_t kernels = [] {
		uint64_t h = 0;
		for (const KernelBlob& b : kernel_blobs())
			for (const std::span<const uint32_t> words : {b.spirv, b.no_subgroup})
				h = XXH3_64bits_withSeed(words.data(), words.size_bytes(), h);
		return h;
	}();
	const std::string settings = driver_environment(/*choice=*/false);
	return fmt::format("{}; {:04x}:{:04x} {:#x} {} {:016x} {:016x}", info.driver, c.vendor, c.device, c.driver_version,
	                   uuid_text(c.cache_uuid), XXH3_64bits(settings.data(), settings.size()), kernels);
}

std::string device_build(const Caps& c, const DeviceReport& r) {
	const DeviceInfo& info = r.info;
	return fmt::format("{}{}{}{} {}", driver_key(c, info), info.half_matmul ? " f16" : "",
	                   info.int8_attend ? " int8" : "", info.int8_matmul ? " matmul-int8" : "",
	                   r.tuned.values.empty() ? "" : tuning_text(r.tuned.values));
}

bool is_turing(const Caps& c) {
	constexpr uint32_t kNvidia = 0x10de;
	return c.vendor == kNvidia &&
	       ((c.device >= 0x1e00 && c.device < 0x2000) || (c.device >= 0x2180 && c.device < 0x2200));
}

// Debian 12's lavapipe for Arm: "LLVM ERROR: Cannot select: v4f32 = AArch64ISD::VLSHR".
std::string broken_compiler(const std::string& device, const std::string& machine) {
	if (machine != "aarch64" || !device.starts_with("llvmpipe (LLVM 15.")) return "";
	return "its compiler, LLVM 15, ends the program on this processor; a newer Mesa may work";
}

} // namespace kvrun::vk
