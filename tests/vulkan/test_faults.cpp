// A failure in the driver becomes one Error, leaks nothing, and the next attempt succeeds: T66 memory, T67 any call,
// T68 a lost device, T69 a submission that does not end. Under KVRUN_VALIDATE=1 the validation layer reports leaks.
#include "backends/vulkan/vulkan_backend.h"
#include "tests/device/outcome.h"
#include "tests/device/sequences.h"
#include "tests/support/compare.h"
#include "tests/support/scoped_env.h"
#include "tests/vulkan/vulkan_device.h"
#include "tests/vulkan/vulkan_faults.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <map>

using namespace kvrun;

namespace {

constexpr uint64_t kAll = UINT64_MAX;
// A window so short that a prompt of 80 tokens fills pages.
const char* const kPolicy = "kivi2,recent_keep=8,flush=32";
const char* const kFetches = "kivi2,recent_keep=8,flush=32,fetch=12";

const std::string kBundled = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf"; // more than a block of memory

// A card whose weights all lie in host memory, and a prompt that copies them in six slices.
const char* const kCopying = "mapped=1073741824,transfer=2";
std::unique_ptr<Engine> open_copying() {
	EngineOptions o;
	o.model = kSmallModel;
	o.backend = select_test_device(test_driver());
	o.ubatch = 32;
	o.weights = {.gpu_layers = 0, .ring = 1};
	return Engine::open(o);
}
Floats copied_answer(Engine& e) {
	Session s(e, with("fp16", 256));
	return greedy_logits(s, random_tokens(170, 300, 4), 2);
}

bool no_device() {
	try {
		(void)open_test_device(test_driver());
		return false;
	} catch (const Error& e) {
		skip(test_driver() + ": " + e.what());
		return true;
	}
}
Floats answer(Session& s) { return greedy_logits(s, random_tokens(80, 300, 4), 3); }
Floats answer(const std::string& model = kSmallModel) {
	const auto engine = open_engine(test_driver(), model);
	Session s(*engine, with(kPolicy, 200));
	return answer(s);
}

// Opens, decodes, and closes, while calls fail.
Outcome attempt(const Floats& want, const std::string& model = kSmallModel) {
	return outcome_of([&] {
		const Floats got = answer(model);
		CHECK(got == want); // the failure was handled
	});
}
// The process is as before: no memory is held, and the same call gives the same answer.
void check_recovered(const Floats& want, const std::string& model = kSmallModel) {
	VulkanFaults& f = vulkan_faults();
	f.reset();
	CHECK(f.live_memory == 0);
	CHECK(answer(model) == want);
	CHECK(f.live_memory == 0);
}

} // namespace

TEST_CASE("faults: T66 no memory at the n-th allocation") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	const ScopedEnv small("KVRUN_TEST_CAPS", "heap=67108864,memory_budget=0"); // small blocks, many of them
	f.reset();
	const Floats want = answer(kBundled);
	const uint64_t n_calls = f.calls["vkAllocateMemory"];
	MESSAGE(n_calls << " allocations");
	REQUIRE(n_calls >= 3);
	for (uint64_t n = 1; n <= n_calls; n += test_every()) {
		CAPTURE(n);
		f.fail_calls("vkAllocateMemory", n, kAll, VK_ERROR_OUT_OF_DEVICE_MEMORY); // from this call on
		const Outcome o = attempt(want, kBundled);
		CHECK((o.threw || n > 1)); // without one block there is no answer; later, staging does with less
		if (o.threw) check_out_of_memory(o);
		CHECK(f.failed > 0);
		CHECK(f.live_memory == 0);
		f.fail_calls("vkAllocateMemory", n, n, VK_ERROR_OUT_OF_DEVICE_MEMORY); // this call only
		if (attempt(want, kBundled).threw) CHECK(f.failed == 1);
		CHECK(f.live_memory == 0);
	}
	check_recovered(want, kBundled);
}

TEST_CASE("faults: T66 an engine whose cache found no memory answers when there is some again") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	for (const std::string policy : {kPolicy, "mikv,recent_keep=8,flush=16", "zipcache,flush=25"}) {
		CAPTURE(policy);
		Floats want;
		for (uint64_t n = 0;; n += n ? test_every() : 1) { // every buffer of a prompt and the next tokens; first none
			CAPTURE(n);
			REQUIRE(n < 50 + test_every());
			f.reset();
			const auto engine = open_engine(test_driver(), kSmallModel);
			Session s(*engine, with(policy, 200));
			f.fail_calls("vkCreateBuffer", n, n ? kAll : 0, VK_ERROR_OUT_OF_DEVICE_MEMORY);
			const uint64_t before = f.calls["vkCreateBuffer"];
			const Outcome o = outcome_of([&] {
				const Floats got = answer(s);
				if (n == 0) want = got;
			});
			if (n == 0) CHECK(f.calls["vkCreateBuffer"] - before >= 3);
			if (n && !f.failed) break;
			CHECK(o.threw == (n > 0));
			if (o.threw) CHECK(o.code == Code::OutOfMemory);
			if (o.threw) CHECK_MESSAGE(has(o.what, "--kv"), o.what);
			f.reset();
			if (s.n_tokens()) s.reset(); // a failed prompt undoes itself
			CHECK(engine->pool().used_bytes() == 0);
			CHECK(answer(s) == want);
		}
	}
	f.reset();
}

TEST_CASE("faults: T66 an engine that fetches and found no memory answers when there is some again") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	for (const char* caps : {"transfer=0", "transfer=2"}) { // copies in order with ops, and separately
		CAPTURE(std::string(caps));
		const ScopedEnv set("KVRUN_TEST_CAPS", caps);
		f.reset();
		const auto engine = open_engine(test_driver(), kSmallModel);
		const auto ask = [&] {
			Session s(*engine, with(kFetches, 200));
			return greedy_logits(s, random_tokens(80, 300, 4), 12);
		};
		f.reset();
		const Floats want = ask();
		const uint64_t n_calls = f.calls["vkCreateBuffer"];
		CHECK(n_calls > 5);
		for (uint64_t n = 1; n <= n_calls; n += test_every()) {
			CAPTURE(n);
			engine->pool().trim();
			f.fail_calls("vkCreateBuffer", n, n % 2 ? n : kAll, VK_ERROR_OUT_OF_DEVICE_MEMORY);
			const Outcome o = outcome_of([&] {
				const Floats got = ask();
				CHECK(relative_error(got, want) < 0.05); // pinned memory, or a larger chunk, is optional
			});
			if (o.threw) CHECK_MESSAGE(o.code == Code::OutOfMemory, o.what);
			f.reset();
			CHECK(engine->pool().used_bytes() == 0);
			engine->pool().trim(); // pages in other chunks are summed in another order
			CHECK(ask() == want);
		}
	}
	f.reset();
}

TEST_CASE("faults: T67 any call that fails is one error, and leaves nothing behind") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	const ScopedEnv no_file("KVRUN_CACHE_DIR", "off");
	f.reset();
	const Floats want = answer();
	const std::map<std::string, uint64_t> calls = f.calls;
	CHECK(calls.size() > 15);
	for (const auto& call : calls) {
		const std::string& function = call.first;
		const uint64_t n_calls = call.second;
		std::vector<uint64_t> ns = {1, (n_calls + 1) / 2};
		if (test_every() == 1) ns.insert(ns.end(), {2, n_calls});
		std::sort(ns.begin(), ns.end());
		ns.erase(std::unique(ns.begin(), ns.end()), ns.end());
		size_t i = 0;
		for (const uint64_t n : ns) {
			if (n > n_calls) continue;
			const VkResult results[] = {VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_UNKNOWN, VK_ERROR_DEVICE_LOST};
			const VkResult result = results[i++ % 3];
			INFO(fmt::format("{}, call {} of {} returns {}", function, n, n_calls, vk::result_name(result)));
			f.fail_calls(function, n, n, result);
			const Outcome o = attempt(want);
			CHECK((f.failed == 1 ||
			       f.calls[function] < n)); // prompts are cut by time: now there may be fewer submissions
			if (o.threw) {
				CHECK_MESSAGE((o.code == Code::OutOfMemory || o.code == Code::Device), o.what);
				if (o.code == Code::OutOfMemory) CHECK(result == VK_ERROR_OUT_OF_HOST_MEMORY);
				CHECK_MESSAGE((has(o.what, function) || has(o.what, "MiB")), o.what);
			}
			f.reset();
			CHECK(f.live_memory == 0);
		}
	}
	check_recovered(want);
}

TEST_CASE("faults: T68, T69 a device that is lost or does not answer stays lost, and can be opened again") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	const Floats want = answer();
	const std::pair<std::string, VkResult> rows[] = {{"vkQueueSubmit2", VK_ERROR_DEVICE_LOST},
	                                                 {"vkWaitForFences", VK_ERROR_DEVICE_LOST},
	                                                 {"vkWaitForFences", VK_TIMEOUT}};
	for (const auto& row : rows) {
		const std::string& function = row.first;
		const VkResult result = row.second;
		INFO(fmt::format("{} returns {}", function, vk::result_name(result)));
		const auto engine = open_engine(test_driver(), kSmallModel);
		Session s(*engine, with(kPolicy, 200));
		f.fail_calls(function, 1, 1, result);
		std::string first;
		try {
			(void)answer(s);
		} catch (const Error& e) {
			CHECK(e.code == Code::Device);
			first = e.what();
		}
		CHECK(f.failed == 1);
		CHECK_MESSAGE(has(first, result == VK_TIMEOUT ? "did not finish" : "VK_ERROR_DEVICE_LOST"), first);
		CHECK_MESSAGE(has(first, "open it again"), first);
		const uint64_t submits = f.calls["vkQueueSubmit2"];
		for (int again = 0; again < 2; ++again) {
			s.reset();
			CHECK_THROWS_WITH_AS(answer(s), first.c_str(), Error);
		}
		CHECK(f.calls["vkQueueSubmit2"] == submits); // it was not called again
		CHECK(answer() == want);                     // on another device
	}
	check_recovered(want);
}

TEST_CASE("faults: T69 a device that never answers again is left as it is") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	const Floats want = answer();
	CHECK(f.live_memory == 0);
	f.fail_calls("vkWaitForFences", 2, UINT64_MAX, VK_TIMEOUT);
	const Outcome o = attempt(want);
	CHECK(o.threw);
	CHECK_MESSAGE(has(o.what, "did not finish"), o.what);
	CHECK(f.live_memory > 0); // the device may still write to it
	f.live_memory = 0;
	{
		const ScopedEnv queue("KVRUN_TEST_CAPS", "transfer=2");
		f.fail_calls("vkWaitSemaphores", 1, UINT64_MAX, VK_TIMEOUT);
		const Outcome fetching = outcome_of([&] {
			const auto engine = open_engine(test_driver(), kSmallModel);
			Session s(*engine, with(kFetches, 400));
			(void)greedy_logits(s, random_tokens(80, 300, 4), 130);
		});
		CHECK(f.failed > 0);
		CHECK(f.failed <= 3); // one ordinary wait, the last one, and not one for each buffer
		CHECK(f.live_memory > 0);
		f.live_memory = 0;
	}
	check_recovered(want);
}

TEST_CASE("faults: T68, T69 a device that is lost, or does not answer, while tokens are fetched") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	const ScopedEnv queue("KVRUN_TEST_CAPS", "transfer=2"); // separate submissions
	const auto ask = [](Engine& e, uint32_t n) {
		Session s(e, with(kFetches, 400));
		return greedy_logits(s, random_tokens(80, 300, 4), n);
	};
	const uint32_t steps = 130; // more transfers than may be in flight: the oldest is waited for
	f.reset();
	Floats want;
	{
		const auto engine = open_engine(test_driver(), kSmallModel);
		f.reset();
		want = ask(*engine, steps);
	}
	const std::map<std::string, uint64_t> calls = f.calls;
	const std::pair<std::string, VkResult> rows[] = {{"vkQueueSubmit2", VK_ERROR_DEVICE_LOST},
	                                                 {"vkWaitForFences", VK_ERROR_DEVICE_LOST},
	                                                 {"vkWaitForFences", VK_TIMEOUT},
	                                                 {"vkWaitSemaphores", VK_TIMEOUT},
	                                                 {"vkWaitSemaphores", VK_ERROR_DEVICE_LOST},
	                                                 {"vkBeginCommandBuffer", VK_ERROR_OUT_OF_HOST_MEMORY},
	                                                 {"vkCreateSemaphore", VK_ERROR_UNKNOWN}};
	for (const auto& row : rows) {
		const std::string& function = row.first;
		const VkResult result = row.second;
		const auto n_calls = calls.find(function);
		REQUIRE_MESSAGE(n_calls != calls.end(), function);
		const uint64_t n = (n_calls->second + 1) / 2;
		INFO(fmt::format("{}, call {} of {}, returns {}", function, n, n_calls->second, vk::result_name(result)));
		const auto engine = open_engine(test_driver(), kSmallModel);
		f.fail_calls(function, n, n, result);
		const Outcome first = outcome_of([&] {
			const Floats got = ask(*engine, steps);
			CHECK(got == want);
		});
		if (first.threw) CHECK_MESSAGE((first.code == Code::Device || first.code == Code::OutOfMemory), first.what);
		CHECK((first.threw || f.failed == 0 || function == "vkWaitSemaphores")); // while memory is freed
		f.reset();
		const Outcome again = outcome_of([&] { ask(*engine, 1); });
		if (result == VK_ERROR_DEVICE_LOST && first.threw) CHECK(again.what == first.what);
	}
	f.reset();
	const auto engine = open_engine(test_driver(), kSmallModel);
	CHECK(ask(*engine, 20) == Floats(want.begin(), want.begin() + std::ptrdiff_t(want.size() / (steps + 1) * 21)));
}

TEST_CASE("faults: T66 without memory for copies of weights, prompts read them in host memory, to the same bits") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	const ScopedEnv card("KVRUN_TEST_CAPS", kCopying);
	f.reset();
	const Floats want = copied_answer(*open_copying());
	f.reset();
	(void)open_copying();
	const uint64_t n_calls = f.calls["vkCreateBuffer"];
	uint32_t without = 0; // engines that opened without the ring
	for (uint64_t n = 1; n <= n_calls; ++n) {
		CAPTURE(n);
		std::unique_ptr<Engine> engine;
		f.fail_calls("vkCreateBuffer", n, n, VK_ERROR_OUT_OF_DEVICE_MEMORY);
		const Outcome o = outcome_of([&] { engine = open_copying(); });
		f.reset();
		CHECK(o.threw == !engine);
		if (o.threw) CHECK_MESSAGE(o.code == Code::OutOfMemory, o.what);
		if (!engine || engine->ring().bytes()) continue;
		++without;
		CHECK(copied_answer(*engine) == want);
	}
	CHECK(without == 2); // a buffer for each slot
}

TEST_CASE("faults: T67, T68 a call that fails, or a device that is lost, while a prompt copies weights") {
	VulkanFaults& f = vulkan_faults();
	if (no_device()) return;
	const ScopedEnv card("KVRUN_TEST_CAPS", kCopying);
	f.reset();
	Floats want;
	{
		const auto engine = open_copying();
		f.reset();
		want = copied_answer(*engine);
	}
	const std::map<std::string, uint64_t> calls = f.calls;
	const std::pair<std::string, VkResult> rows[] = {{"vkQueueSubmit2", VK_ERROR_DEVICE_LOST},
	                                                 {"vkWaitForFences", VK_ERROR_DEVICE_LOST},
	                                                 {"vkBeginCommandBuffer", VK_ERROR_OUT_OF_HOST_MEMORY},
	                                                 {"vkAllocateCommandBuffers", VK_ERROR_OUT_OF_HOST_MEMORY},
	                                                 {"vkCreateSemaphore", VK_ERROR_OUT_OF_HOST_MEMORY}};
	for (const auto& row : rows) {
		const std::string& function = row.first;
		const VkResult result = row.second;
		const auto n_calls = calls.find(function);
		REQUIRE_MESSAGE(n_calls != calls.end(), function);
		for (uint64_t n = 1; n <= n_calls->second; n += 1 + n_calls->second / 5) {
			INFO(fmt::format("{}, call {} of {}, returns {}", function, n, n_calls->second, vk::result_name(result)));
			const auto engine = open_copying();
			f.fail_calls(function, n, n, result);
			const Outcome first = outcome_of([&] {
				const Floats got = copied_answer(*engine);
				CHECK(got == want); // without copies
			});
			const bool failed = f.failed > 0; // a slow device gets the prompt in other pieces: fewer calls
			f.reset();
			if (!failed) continue;
			if (first.threw) CHECK_MESSAGE((first.code == Code::Device || first.code == Code::OutOfMemory), first.what);
			if (function == "vkCreateSemaphore" || result == VK_ERROR_DEVICE_LOST)
				CHECK(first.threw == (result == VK_ERROR_DEVICE_LOST));
			const Outcome again = outcome_of([&] {
				const Floats got = copied_answer(*engine);
				CHECK(got == want);
			});
			CHECK(again.threw == (first.threw && again.what == first.what)); // lost for good, or as before
		}
	}
	f.reset();
	CHECK(copied_answer(*open_copying()) == want);
}
