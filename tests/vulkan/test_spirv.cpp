// Reading SPIR-V from files: time and memory are bounded, whatever its words are.
#include "backends/vulkan/spirv.h"
#include "engine/core/error.h"
#include "kernel_list.inc"
#include "tests/support/scoped_env.h"
#include "tests/support/temp_folder.h"
#include "tests/vulkan/vulkan_device.h"
#include <chrono>
#include <doctest/doctest.h>
#include <fstream>
#include <random>

using namespace kvrun;
using Words = std::vector<uint32_t>;

namespace {

void read(const Words& w) { // returns, or throws Error{Format}
	try {
		const vk::Reflection r = vk::reflect(w, "test");
		const vk::SpecValue spec[] = {{0, 64}, {1, UINT32_MAX}};
		(void)vk::footprint(w, r, spec);
	} catch (const Error& e) { CHECK(e.code == Code::Format); }
}

double seconds_of(const Words& w) {
	const auto start = std::chrono::steady_clock::now();
	read(w);
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr uint32_t inst(uint32_t code, uint32_t words) { return words << 16 | code; }
const Words kHead = {0x07230203u, 0x00010500u, 0, 100000, 0, inst(15, 2), 5}; // a compute entry point

Words with(std::initializer_list<uint32_t> more) {
	Words w = kHead;
	w.insert(w.end(), more);
	return w;
}

} // namespace

TEST_CASE("spirv: members without end, types in themselves and operands that are missing are bounded") {
	for (const uint32_t member : {0xffffffffu, 0x7fffffffu, 0x10000u})
		CHECK(seconds_of(with({inst(72, 5), 1, member, 35, 0})) < 1);
	read(with({inst(28, 4), 1, 1, 2, inst(43, 4), 3, 2, 7, inst(32, 4), 4, 4, 1, inst(59, 4), 4, 5,
	           4}));    // an array of itself
	Words wide = kHead; // structs of two structs: 2^40 of them
	for (uint32_t i = 1; i <= 40; ++i) wide.insert(wide.end(), {inst(30, 4), i, i - 1, i - 1});
	wide.insert(wide.end(), {inst(21, 4), 0, 32, 0, inst(32, 4), 50, 4, 40, inst(59, 4), 50, 51, 4});
	CHECK(seconds_of(wide) < 1);
	Words deep = kHead; // a constant that is the sum of a constant that is ...
	for (uint32_t i = 1; i < 20000; ++i) deep.insert(deep.end(), {inst(52, 6), 1, i, 128, i + 1, i + 1});
	deep.insert(deep.end(), {inst(51, 6), 1, 30000, 1, 1, 1, inst(71, 4), 30000, 11, 25});
	CHECK(seconds_of(deep) < 2);
	for (uint32_t code = 0; code < 400; ++code)
		for (uint32_t n = 1; n < 6; ++n) { // every instruction with too few operands
			Words w = with({inst(code, n)});
			for (uint32_t i = 1; i < n; ++i) w.push_back(1);
			read(w);
			w.insert(w.end(),
			         {inst(32, 4), 7, 12, 1, inst(59, 4), 7, 8, 12, inst(71, 4), 8, 33, 0, inst(71, 4), 8, 34, 0});
			read(w);
		}
}

TEST_CASE("spirv: mutants of every kernel are read or refused") {
	std::mt19937 random(3);
	for (const KernelBlob& b : kernel_blobs())
		for (int i = 0; i < 300; ++i) {
			Words w(b.spirv.begin(), b.spirv.end());
			for (uint32_t n = 1 + random() % 4; n > 0; --n) {
				const size_t at = random() % w.size();
				switch (random() % 4) {
				case 0: w[at] ^= 1u << random() % 32; break;
				case 1: w[at] = uint32_t(random()); break;
				case 2: w[at] = w[random() % w.size()]; break;
				default: w.resize(std::max<size_t>(at, 5));
				}
			}
			read(w);
		}
}

TEST_CASE("spirv: KVRUN_SHADERS names a folder of shaders, or the device is not opened") {
	if (!VulkanDevice()) return;
	const TempFolder folder;
	const ScopedEnv unchecked("KVRUN_CHECK", "");
	const auto message = [&](const std::string& path) -> std::string {
		const ScopedEnv shaders("KVRUN_SHADERS", path);
		try {
			const std::unique_ptr<Backend> device = open_test_device(test_driver());
			dynamic_cast<vk::VulkanBackend&>(*device).kernels().get(Kernel::kv_store, {{0, 128}});
		} catch (const Error& e) { return e.what(); }
		return "";
	};
	const std::string file = folder.path / "kv_store.spv";
	CHECK(message("/nonexistent/shaders").find("no folder of .spv files") != std::string::npos);
	CHECK(message(folder.path) == "");
	for (const std::string text : {"", "abc", "not SPIR-V at all...", "12345678901234567890"}) {
		std::ofstream(file, std::ios::trunc) << text;
		CHECK(message(folder.path).find("SPIR-V") != std::string::npos);
	}
	std::filesystem::resize_file(file, uint64_t(5) << 30); // sparse
	CHECK(message(folder.path).find("no SPIR-V") != std::string::npos);
}
