// Choice and refusal of Vulkan devices, memory ranges, reflection, the pipeline cache file, validation messages.
#include "backends/vulkan/driver_identity.h"
#include "backends/vulkan/kernel_uses.h"
#include "backends/vulkan/open_vulkan.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "tests/support/rig.h"
#include "tests/support/scoped_env.h"
#include "tests/support/temp_folder.h"
#include "tests/vulkan/vulkan_device.h"
#include <array>
#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <map>
#include <set>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

std::unique_ptr<Backend> open_device(const std::string& which) {
	BackendOptions o = options_from_environment();
	o.device = which;
	return open_backend(o);
}
std::string message_of_open(const std::string& which) {
	try {
		open_device(which);
	} catch (const Error& e) {
		CHECK(e.code == Code::Device);
		return e.what();
	}
	return "no error";
}
bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

struct Drivers { // the loader finds only this ICD file
	explicit Drivers(const std::string& icd) : files("VK_DRIVER_FILES", icd), names("VK_ICD_FILENAMES", icd) {}
	ScopedEnv files, names;
};

std::string radv() {
	const ScopedEnv files("VK_DRIVER_FILES", ""), names("VK_ICD_FILENAMES", "");
	const std::string icd = vk::find_icd("radeon_icd");
	if (icd.empty()) skip("no RADV driver (package mesa-vulkan-drivers)");
	return icd;
}

// In builds with CUDA its devices come last.
std::vector<DeviceReport> vulkan_and_cpu() {
	std::vector<DeviceReport> all = list_devices(options_from_environment());
	std::erase_if(all, [](const DeviceReport& r) { return r.backend == "cuda"; });
	return all;
}

} // namespace

TEST_CASE("vulkan: T62 no driver: a refusal with the next step") {
	const Drivers none("/nonexistent/icd.json");
	const std::vector<DeviceReport> all = vulkan_and_cpu();
	REQUIRE(all.size() == 2); // and the cpu backend
	CHECK(has(all[0].refused, "mesa-vulkan-drivers"));
	CHECK(all[1].backend == "cpu");
	CHECK(has(message_of_open(""), "mesa-vulkan-drivers"));
	CHECK(open_device("cpu")->info().is_cpu);
	CHECK(open_device("1")->info().is_cpu);
	CHECK(has(message_of_open("0"), "mesa-vulkan-drivers"));
	CHECK(has(message_of_open("7"), "no device 7"));
	CHECK(has(message_of_open("geforce"), "no device is called 'geforce'"));
}

TEST_CASE("vulkan: T63 a device without memory is unusable; budgets never underflow") {
	using vk::budget_left;
	constexpr uint64_t G = uint64_t(1) << 30;
	CHECK(budget_left(0, 0, 8 * G) == 0);
	CHECK(budget_left(8 * G, 0, 0) == 0);
	CHECK(budget_left(8 * G, 9 * G, 8 * G) == 0);
	CHECK(budget_left(UINT64_MAX, 0, 16 * G) == 15 * G); // a budget larger than the heap
	CHECK(budget_left(16 * G, UINT64_MAX, 16 * G) == 0);
	CHECK(budget_left(4 * G, 1 * G, 5 * G) == 4 * G - G - G / 2); // reserve: a tenth of the heap
	CHECK(budget_left(1000, 0, 1000) == 900);
	const std::string icd = radv();
	if (!icd.empty()) {
		const Drivers only(icd);
		const ScopedEnv family("RADV_FORCE_FAMILY", "navi21");
		const std::vector<DeviceReport> all = vulkan_and_cpu();
		REQUIRE(all.size() == 2);
		if (all[0].limits.empty()) {
			skip("this RADV has no RADV_FORCE_FAMILY, newer ones dropped it");
		} else {
			CHECK(has(all[0].refused, "no memory"));
			CHECK(all[0].info.free_bytes == 0);
			CHECK(has(message_of_open(""), "no memory"));
		}
	}
	const ScopedEnv caps("KVRUN_TEST_CAPS", "heap=0,memory_budget=0");
	if (!select_test_driver()) return;
	CHECK(has(message_of_open(""), "no memory"));
}

TEST_CASE("vulkan: transfers take the first family that copies and does nothing else") {
	constexpr VkQueueFlags G = VK_QUEUE_GRAPHICS_BIT, C = VK_QUEUE_COMPUTE_BIT, T = VK_QUEUE_TRANSFER_BIT,
	                       S = VK_QUEUE_SPARSE_BINDING_BIT, kDecode = 0x20, kEncode = 0x40, kFlow = 0x100;
	struct Row {
		const char* driver;
		std::vector<std::pair<VkQueueFlags, uint32_t>> families; // flags, queues
		uint32_t want;
	};
	const Row rows[] = {
	    {"NVIDIA, Ada",
	     {{G | C | T | S, 16},
	      {T | S, 2},
	      {C | T | S, 8},
	      {T | S | kDecode, 1},
	      {T | S | kEncode, 1},
	      {T | S | kFlow, 1}},
	     1},
	    {"video engines alone", {{G | C | T | S, 16}, {T | S | kDecode, 1}, {T | kFlow, 1}}, UINT32_MAX},
	    {"RADV", {{G | C | T | S, 1}, {C | T | S, 4}, {kDecode, 1}, {T | S, 2}}, 3},
	    {"none of its own", {{G | C | T, 1}}, UINT32_MAX},
	    {"a family without queues", {{G | C | T, 1}, {T, 0}}, UINT32_MAX},
	};
	for (const Row& row : rows) {
		std::vector<VkQueueFamilyProperties> all;
		for (auto [flags, n] : row.families) all.push_back({flags, n, 64, {1, 1, 1}});
		CHECK_MESSAGE(vk::find_transfer_family(all) == row.want, row.driver);
	}
}

TEST_CASE("vulkan: T64 the poor device runs with what it has") {
	VulkanDevice device;
	if (!device) return;
	const vk::Caps& c = device->caps();
	if (test_driver() == "swiftshader") { // if this changes, the tests need another limited device
		CHECK(c.subgroup == 4);
		CHECK(c.workgroup == 256);
		CHECK(c.align == 256);
	}
	const ScopedEnv poor("KVRUN_TEST_CAPS",
	                     "int_dot=0,push_descriptor=0,pipeline_robustness=0,subgroup_ops=0,texel_range=0");
	VulkanDevice poorer;
	CHECK_FALSE(poorer->caps().push_descriptor);
	CHECK_FALSE(poorer->caps().pipeline_robustness);
	CHECK_FALSE(poorer->caps().subgroup_ops);
	Rig rig(*poorer);
	const Floats x(96, 2.f);
	const View v = rig.f32(x, 1, 96), w = rig.f32(Floats(96, 1.f), 96), out = rig.out(1, 96);
	poorer->rmsnorm(out, v, w, 0);
	for (float y : rig.get(out)) CHECK(y == doctest::Approx(1));
}

TEST_CASE("vulkan: T65 a device below the least is refused by the limit's name") {
	if (!select_test_driver()) return;
	const std::pair<const char*, const char*> rows[] = {{"ssbo=4", "maxPerStageDescriptorStorageBuffers is 4"},
	                                                    {"ssbo=8", "maxPerStageDescriptorStorageBuffers is 8"}, // V3D
	                                                    {"workgroup=64", "maxComputeWorkGroupInvocations is 64"},
	                                                    {"shared=8192", "maxComputeSharedMemorySize is 8192"},
	                                                    {"push=64", "maxPushConstantsSize is 64"},
	                                                    {"groups=1024", "maxComputeWorkGroupCount[0] is 1024"},
	                                                    {"range=65536", "maxStorageBufferRange is 65536"},
	                                                    {"alloc=65536", "maxMemoryAllocationSize is 65536"},
	                                                    {"align=512", "minStorageBufferOffsetAlignment is 512"}};
	for (const auto& row : rows) {
		const ScopedEnv clamp("KVRUN_TEST_CAPS", row.first);
		INFO(row.first);
		CHECK(has(message_of_open(""), row.second));
	}
	CHECK(has(vk::broken_compiler("llvmpipe (LLVM 15.0.6, 128 bits)", "aarch64"), "LLVM 15"));
	CHECK(vk::broken_compiler("llvmpipe (LLVM 15.0.6, 256 bits)", "x86_64").empty());
	CHECK(vk::broken_compiler("llvmpipe (LLVM 19.1.7, 128 bits)", "aarch64").empty());
	for (const char* wrong : {"bogus=1", "ssbo", "ssbo=", "ssbo=x", "=4"}) {
		const ScopedEnv clamp("KVRUN_TEST_CAPS", wrong);
		INFO(wrong);
		CHECK_THROWS_AS(open_device(""), Error);
	}
}

TEST_CASE("vulkan: every kernel is within the specification's minima and listed with its uses") {
	vk::Caps least; // Vulkan 1.3's required limits, except for the storage buffers of ssbo_needed()
	least.workgroup = least.workgroup_size[0] = least.workgroup_size[1] = 128;
	least.workgroup_size[2] = 64;
	for (uint32_t& g : least.groups) g = 65535;
	least.shared_bytes = 16384;
	least.push_bytes = 128;
	least.range = 128u << 20;
	least.align = 256;
	least.subgroup = least.subgroup_min = least.subgroup_max = 1;
	for (bool software : {false, true}) {
		least.is_cpu = software;
		least.texel_range = software ? least.range : 0;
		least.subgroup_ops = software;
		for (const vk::KernelUse& u : vk::kernel_uses(least)) {
			const KernelBlob& blob = kernel_blobs()[size_t(u.kernel)];
			INFO(blob.name << ", " << u.what);
			const vk::Reflection r = vk::reflect(blob.spirv, blob.name);
			std::vector<vk::SpecValue> spec = u.spec;
			spec.push_back({8, 1}); // SPEC_SUBGROUP
			const vk::Footprint f = vk::footprint(blob.spirv, r, spec);
			CHECK(f.local[0] * f.local[1] * f.local[2] <= 128);
			CHECK(f.shared_bytes <= 16384);
			CHECK(r.push_bytes <= 128);
		}
	}
	std::set<Kernel> listed;
	for (const int matrices : {0, 1, 2}) // 2: with scores in registers
		for (bool software : {false, true}) {
			vk::Caps rich = least;
			rich.workgroup = rich.workgroup_size[0] = 1024;
			rich.shared_bytes = 65536;
			rich.subgroup = software ? 8 : 32;
			rich.is_cpu = software;
			rich.texel_range = software ? 128u << 20 : 0;
			rich.subgroup_ops = rich.int_dot = true;
			if (matrices) rich.matrix = {16, 16, 16};
			rich.matrix_rows = matrices == 2;
			if (matrices == 2) REQUIRE(vk::set_knob(rich.knobs, "register_scores", "on"));
			for (const vk::KernelUse& u : vk::kernel_uses(rich)) listed.insert(u.kernel);
		}
	for (size_t k = 0; k < size_t(Kernel::Count); ++k) {
		INFO(kernel_blobs()[k].name);
		CHECK(listed.count(Kernel(k)) == 1);
		const vk::Reflection r = vk::reflect(kernel_blobs()[k].spirv, kernel_blobs()[k].name);
		for (const vk::Binding& b : r.bindings) CHECK(b.present);
	}
	const std::array<uint32_t, 4> junk{1, 2, 3, 4};
	CHECK_THROWS_AS(vk::reflect(junk, "junk"), Error);
	const std::span<const uint32_t> cut = kernel_blobs()[0].spirv.first(kernel_blobs()[0].spirv.size() / 2 + 1);
	try {
		vk::reflect(cut, "cut"); // whatever its words, it must not read past the end
	} catch (const Error&) {}
}

TEST_CASE("vulkan: sub-allocation never overlaps and gives everything back") {
	Random random(17);
	constexpr uint64_t kSize = 1 << 16;
	FreeRanges ranges(kSize);
	std::map<uint64_t, uint64_t> taken; // start -> bytes
	for (int step = 0; step < 20000; ++step) {
		if (random.below(100) < 55) {
			const uint64_t bytes = 1 + random.below(3000), align = uint64_t(1) << random.below(10);
			const uint64_t at = ranges.take(bytes, align);
			if (at == UINT64_MAX) continue;
			REQUIRE(at % align == 0);
			REQUIRE(at + bytes <= kSize);
			auto next = taken.lower_bound(at);
			REQUIRE((next == taken.end() || at + bytes <= next->first));
			REQUIRE((next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= at));
			taken[at] = bytes;
		} else if (!taken.empty()) {
			auto it = std::next(taken.begin(), random.below(uint32_t(taken.size())));
			ranges.give(it->first, it->second);
			taken.erase(it);
		}
		uint64_t used = 0;
		for (auto [at, bytes] : taken) used += bytes;
		REQUIRE(ranges.taken() == used);
	}
	for (auto [at, bytes] : taken) ranges.give(at, bytes);
	CHECK(ranges.empty());
	CHECK(ranges.take(kSize, 1) == 0);
}

TEST_CASE("vulkan: memory that does not fit is refused with numbers, and all of it comes back") {
	const ScopedEnv caps("KVRUN_TEST_CAPS", "heap=268435456,memory_budget=0");
	VulkanDevice device;
	if (!device) return;
	const uint64_t free = device->info().free_bytes;
	std::vector<Buffer> held;
	std::string said;
	for (int i = 0; i < 1000 && said.empty(); ++i) try {
			held.push_back(device->alloc(8 << 20, Mem::Device, "kv cache"));
		} catch (const Error& e) {
			CHECK(e.code == Code::OutOfMemory);
			said = e.what();
		}
	INFO(said);
	CHECK(has(said, "kv cache needs 8.0 MiB"));
	CHECK(held.size() >= 20); // 80 % of 256 MiB, minus what is lost in blocks
	CHECK(held.size() <= 26);
	held.clear();
	CHECK(device->info().free_bytes == free);
}

TEST_CASE("vulkan: T70 a pipeline cache file that is not exactly right is ignored and rebuilt") {
	const TempFolder folder;
	const ScopedEnv where("KVRUN_CACHE_DIR", folder.path.string());
	fs::path file;
	auto open_and_close = [&]() -> std::string { // returns why the file was rejected
		VulkanDevice device;
		if (!device) return "skipped";
		device->kernels().get(Kernel::kv_store, {{0, 128}}); // it can be used
		file = device->cache().path();
		return device->cache().rejected();
	};
	if (open_and_close() == "skipped") return;
	REQUIRE(fs::exists(file));
	const auto content = [&] {
		std::ifstream in(file, std::ios::binary);
		return std::string((std::istreambuf_iterator<char>(in)), {});
	};
	const std::string good = content();
	REQUIRE(good.size() > 64);
	CHECK(open_and_close() == "");
	auto rejected = [&](const std::string& bytes) {
		std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
		const std::string why = open_and_close();
		CHECK(open_and_close() == ""); // a valid file has replaced it
		return why;
	};
	CHECK(rejected("") == "shorter than its header");
	CHECK(rejected(good.substr(0, 63)) == "shorter than its header");
	CHECK(rejected(good.substr(0, good.size() - 1)) == "truncated or extended");
	CHECK(rejected(good + "x") == "truncated or extended");
	std::string other = good;
	for (size_t at : {0, 8, 12, 16, 20, 24, 28, 32, 47}) { // magic, format, pointer, vendor, device, driver, api, uuid
		other = good;
		other[at] = char(other[at] ^ 1);
		INFO("byte " << at);
		CHECK(rejected(other) == "of another device, driver or version");
	}
	for (size_t at = 64; at < good.size(); at += std::max<size_t>(1, (good.size() - 64) / 5)) {
		other = good;
		other[at] = char(other[at] ^ 0x10);
		CHECK(rejected(other) == "damaged");
	}
	fs::resize_file(file, uint64_t(300) << 20); // sparse
	CHECK(open_and_close() == "too large");
	fs::remove(file);
	fs::create_directory(file); // neither readable nor replaceable
	CHECK(open_and_close() == "not a regular file");
	fs::remove(file);
	fs::create_symlink("/etc/hostname", file);
	CHECK(open_and_close() == "a symbolic link");
	fs::remove(file);
	REQUIRE(mkfifo(file.c_str(), 0600) == 0); // there is no writer
	CHECK(open_and_close() == "not a regular file");
	CHECK(fs::is_regular_file(file));                   // a valid file has replaced it
	for (const unsigned mode : {0666u, 0620u, 0602u}) { // others could have written it
		REQUIRE(chmod(file.c_str(), mode) == 0);
		CHECK(open_and_close() == "writable by other users");
		CHECK(open_and_close() == "");
	}
	if (geteuid() == 0 && chown(file.c_str(), 1, 1) == 0) { // only root can change the owner
		CHECK(open_and_close() == "owned by another user");
		CHECK(open_and_close() == "");
	}
	{ // a folder that cannot be created
		const ScopedEnv nowhere("KVRUN_CACHE_DIR", "/proc/kvrun/cache");
		CHECK(open_and_close() == "");
	}
	{
		const ScopedEnv off("KVRUN_CACHE_DIR", "off");
		CHECK(open_and_close() == "");
		CHECK(file.empty());
	}
	std::vector<pid_t> children; // processes that save at the same time
	for (int i = 0; i < 3; ++i) {
		const pid_t pid = fork();
		if (pid == 0) {
			for (int n = 0; n < 3; ++n) open_and_close();
			_exit(0);
		}
		children.push_back(pid);
	}
	for (pid_t pid : children) {
		int status = 0;
		waitpid(pid, &status, 0);
		CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
	}
	CHECK(open_and_close() == "");
	size_t files = 0;
	for ([[maybe_unused]] const auto& e : fs::directory_iterator(folder.path)) ++files;
	CHECK(files == 2); // this one and drivers.json: no temporary files are left
}

TEST_CASE("vulkan: T82 the folder of caches and what is in it belong to the user alone, whatever the umask") {
	const TempFolder folder;
	const ScopedEnv where("KVRUN_CACHE_DIR", (folder.path / "new/er").string());
	const mode_t before = umask(0);
	bool opened = false;
	{
		VulkanDevice device; // reports if there is none
		if (device) opened = true, device->kernels().get(Kernel::kv_store, {{0, 128}});
	}
	umask(before);
	if (!opened) return;
	REQUIRE(fs::exists(folder.path / "new"));
	const auto mode = [](const fs::path& p) { return unsigned(fs::status(p).permissions()); };
	CHECK(mode(folder.path / "new") == 0700);
	CHECK(mode(folder.path / "new/er") == 0700);
	size_t n = 0;
	for (const auto& e : fs::directory_iterator(folder.path / "new/er")) n += mode(e.path()) == 0600;
	CHECK(n == 2); // pipelines, and test results of drivers
}

TEST_CASE("vulkan: a validation message is an error, and the process cannot end well without it") {
	const ScopedEnv validate("KVRUN_VALIDATE", "1");
	auto misuse = [](VulkanDevice& device, bool leak) {
		vk::Device& d = device->device();
		VkFenceCreateInfo info{};
		info.sType = leak ? VK_STRUCTURE_TYPE_FENCE_CREATE_INFO : VK_STRUCTURE_TYPE_EVENT_CREATE_INFO;
		VkFence fence = VK_NULL_HANDLE;
		CHECK(d.fn.vkCreateFence(d.handle(), &info, nullptr, &fence) == VK_SUCCESS);
		if (!leak) d.fn.vkDestroyFence(d.handle(), fence, nullptr);
	};
	{
		VulkanDevice device;
		if (!device) return;
		misuse(device, false);
		std::string said;
		try {
			device->wait();
		} catch (const Error& e) { said = e.what(); }
		CHECK(has(said, "VUID-VkFenceCreateInfo-sType"));
		device->wait(); // reported once
	}
	const pid_t pid = fork();
	if (pid == 0) {
		{
			VulkanDevice device;
			misuse(device, true); // found when the device is destroyed, after the last wait
		}
		std::exit(0);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 1));
	const ScopedEnv wrong("KVRUN_VALIDATE", "yes");
	CHECK_THROWS_AS(open_device("0"), Error);
}
