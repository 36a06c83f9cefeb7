// A failure in the CUDA runtime becomes one Error with the code that Vulkan would give, leaks nothing, and the next
// attempt succeeds: memory, any call, a context with a permanent error; and devices that cannot be used.
#include "backends/cuda/open_cuda.h"
#include "tests/cuda/host_runtime.h"
#include "tests/device/outcome.h"
#include "tests/device/sequences.h"
#include <algorithm>
#include <doctest/doctest.h>

using namespace kvrun;
using cuda::cuda_faults;
using cuda::CudaFaults;

namespace {

constexpr uint64_t kAll = UINT64_MAX;
constexpr int kIllegalAddress = 700, kUnknown = 999;
// A window so short that a prompt of 80 tokens fills pages.
const char* const kPolicy = "kivi2,recent_keep=8,flush=32";
const std::string kModel = kGolden + "tiny/llama_f16.gguf";

Floats answer(Session& s) { return greedy_logits(s, random_tokens(40, 90, 4), 2); }
Floats answer() {
	const auto engine = open_engine("cuda-host", kModel);
	Session s(*engine, with(kPolicy, 80));
	return answer(s);
}

// Opens, decodes, and closes, while calls fail.
Outcome attempt(const Floats& want) {
	return outcome_of([&] {
		const Floats got = answer();
		CHECK(got == want); // the failure was handled
	});
}
// The process is as before: nothing is held, and the same call gives the same answer.
void check_recovered(const Floats& want) {
	CudaFaults& f = cuda_faults();
	f.reset();
	CHECK(f.live == 0);
	CHECK(answer() == want);
	CHECK(f.live == 0);
}

} // namespace

TEST_CASE("cuda faults: no memory at the n-th allocation") {
	CudaFaults& f = cuda_faults();
	f.reset();
	const Floats want = answer();
	const uint64_t n_calls = f.calls["alloc"];
	REQUIRE(n_calls >= 5);
	for (uint64_t n = 1; n <= n_calls; n += 1 + n / 8) {
		CAPTURE(n);
		f.fail_calls("alloc", n, kAll, cuda::kErrorMemory); // from this call on
		check_out_of_memory(attempt(want));
		CHECK(f.failed > 0);
		CHECK(f.live == 0);
	}
	check_recovered(want);
}

TEST_CASE("cuda faults: an engine whose cache found no memory answers when there is some again") {
	CudaFaults& f = cuda_faults();
	f.reset();
	const auto engine = open_engine("cuda-host", kModel);
	Session s(*engine, with(kPolicy, 80));
	const Floats want = answer(s);
	for (uint64_t n = 1;; ++n) {
		CAPTURE(n);
		REQUIRE(n < 50);
		f.reset();
		const auto own = open_engine("cuda-host", kModel);
		Session fresh(*own, with(kPolicy, 80));
		f.fail_calls("alloc", n, kAll, cuda::kErrorMemory);
		const Outcome o = outcome_of([&] { (void)answer(fresh); });
		if (!f.failed) break;
		CHECK(o.threw);
		CHECK(o.code == Code::OutOfMemory);
		f.reset();
		if (fresh.n_tokens()) fresh.reset();
		CHECK(answer(fresh) == want);
	}
	f.reset();
}

TEST_CASE("cuda faults: any call that fails is one error, and leaves nothing behind") {
	CudaFaults& f = cuda_faults();
	f.reset();
	const Floats want = answer();
	const std::map<std::string, uint64_t> calls = f.calls;
	CHECK(calls.size() >= 10);
	for (const auto& call : calls) {
		const std::string& function = call.first;
		const uint64_t n_calls = call.second;
		size_t i = 0;
		for (const uint64_t n : {uint64_t(1), uint64_t(2), (n_calls + 1) / 2, n_calls}) {
			if (n > n_calls) continue;
			const int result = i++ % 2 ? kUnknown : cuda::kErrorMemory;
			INFO(fmt::format("{}, call {} of {} returns {}", function, n, n_calls, result));
			f.fail_calls(function, n, n, result);
			const Outcome o = attempt(want);
			// How much an engine enqueues at once, and so how often it calls, depends on its pace.
			if (n < n_calls - n_calls / 4) CHECK(f.failed == 1);
			// Free memory and versions may be unknown, a cache can use less memory, and the last wait closes the
			// device.
			const bool may_pass = function == "memory" || function == "versions" || function == "alloc" ||
			                      (function == "stream_wait" && n + 1 >= n_calls);
			if (f.failed && !may_pass) CHECK(o.threw);
			if (o.threw) CHECK_MESSAGE((o.code == Code::OutOfMemory || o.code == Code::Device), o.what);
			if (o.threw && o.code == Code::OutOfMemory) CHECK(result == cuda::kErrorMemory);
			f.reset();
			CHECK(f.live == 0);
		}
	}
	check_recovered(want);
}

TEST_CASE("cuda faults: a lost context stays lost, and the device can be opened again") {
	CudaFaults& f = cuda_faults();
	f.reset();
	const Floats want = answer();
	for (const char* function : {"launch", "stream_wait", "copy"}) {
		INFO(function);
		{
			f.reset();
			const auto engine = open_engine("cuda-host", kModel);
			Session s(*engine, with(kPolicy, 80));
			f.fail_calls(function, 1, 1, kIllegalAddress, /*sticky=*/true);
			std::string first;
			try {
				(void)answer(s);
			} catch (const Error& e) {
				CHECK(e.code == Code::Device);
				first = e.what();
			}
			CHECK_MESSAGE(has(first, "cudaErrorIllegalAddress"), first);
			CHECK_MESSAGE(has(first, "open it again"), first);
			const uint64_t launches = f.calls["launch"];
			for (int again = 0; again < 2; ++again) {
				s.reset();
				CHECK_THROWS_WITH_AS(answer(s), first.c_str(), Error);
			}
			CHECK(f.calls["launch"] == launches); // nothing was launched again
		}
		check_recovered(want);
	}
}

TEST_CASE("cuda faults: a read that finds no memory on its way is forgotten") {
	CudaFaults& f = cuda_faults();
	f.reset();
	{
		const auto b = open_test_device("cuda-host");
		constexpr size_t kBytes = size_t(9) << 20; // three pieces
		const Buffer x = b->alloc(kBytes, Mem::Device, "x");
		const std::byte mark{0x5a};
		std::vector<std::byte> first(64, mark), second(kBytes, mark);
		b->read(x, 0, first);
		f.fail_calls("alloc_host", 2, kAll, cuda::kErrorMemory);
		CHECK_THROWS_AS(b->read(x, 0, second), Error);
		CHECK(f.failed > 0);
		f.reset();
		b->wait();
		CHECK(std::ranges::count(first, std::byte{}) == 64); // it was requested before
		CHECK(std::ranges::count(second, mark) == int64_t(kBytes));
		b->read(x, 0, second);
		b->wait();
		CHECK(std::ranges::count(second, std::byte{}) == int64_t(kBytes));
	}
	CHECK(f.live == 0);
}

TEST_CASE("cuda faults: times of ops, and events that fail") {
	CudaFaults& f = cuda_faults();
	f.reset();
	const auto norm = [](Backend& b) {
		const Buffer x = b.alloc(512, Mem::Device, "x"), w = b.alloc(256, Mem::Device, "w");
		b.rmsnorm(view(x, 0, DType::F32, 2, 64), view(x, 0, DType::F32, 2, 64), view(w, 0, DType::F32, 64), 1e-6f);
		b.wait();
	};
	{
		const auto b = open_test_device("cuda-host");
		norm(*b);
		CHECK(b->op_times(false).empty()); // unless timing is on
		b->time_ops(true);
		norm(*b);
		norm(*b);
		const std::vector<OpTime> times = b->op_times(true);
		REQUIRE(times.size() == 1);
		CHECK(times[0].op == "rmsnorm");
		CHECK(times[0].calls == 2);
		CHECK(times[0].bytes == 2 * 4. * (2 * 128 + 64));
		CHECK(b->op_times(false).empty());
	}
	for (const char* function : {"event_create", "event_record", "event_ms"})
		for (const uint64_t n : {1, 2}) {
			INFO(function << " " << n);
			const auto b = open_test_device("cuda-host");
			b->time_ops(true);
			f.fail_calls(function, n, n, kUnknown);
			CHECK_THROWS_AS((norm(*b), norm(*b)), Error);
			f.reset();
		}
	CHECK(f.live == 0);
}

TEST_CASE("cuda faults: devices that cannot be used are refused with the reason") {
	CudaFaults& f = cuda_faults();
	const std::pair<int, const char*> rows[] = {{cuda::kErrorOldDriver, "no NVIDIA driver"},
	                                            {cuda::kErrorNoDevice, "found no device"},
	                                            {kUnknown, "cudaErrorUnknown"}};
	for (const auto& row : rows) {
		f.fail_calls("device_count", 1, kAll, row.first);
		const auto set = cuda::find_devices(cuda::host_runtime(), cuda::host_kernels(), "cuda-host", {});
		REQUIRE(set->reports().size() == 1);
		CHECK_MESSAGE(has(set->reports()[0].refused, row.second), set->reports()[0].refused);
		CHECK_THROWS_AS((void)set->open(0), Error);
	}
	f.fail_calls("properties", 1, kAll, kUnknown);
	const auto set = cuda::find_devices(cuda::host_runtime(), cuda::host_kernels(), "cuda-host", {});
	CHECK_MESSAGE(has(set->reports()[0].refused, "cudaGetDeviceProperties"), set->reports()[0].refused);
	f.reset();
	const auto good = cuda::find_devices(cuda::host_runtime(), cuda::host_kernels(), "cuda-host", {});
	CHECK(good->reports()[0].refused.empty());
	CHECK(good->reports()[0].uuid == "0102030405060708090a0b0c0d0e0f10");
}

TEST_CASE("cuda faults: a device is chosen by backend and index") {
	const BackendOptions options = select_test_device("cuda-host"); // adds the backend
	CHECK(std::string(open_backend(options)->name()) == "cuda-host");
	BackendOptions first = options, second = options;
	first.device = "cuda-host:0", second.device = "cuda-host:1";
	CHECK(std::string(open_backend(first)->name()) == "cuda-host");
	CHECK_THROWS_WITH_AS((void)open_backend(second), doctest::Contains("there is no device cuda-host:1"), Error);
}
