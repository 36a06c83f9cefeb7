// The CUDA runtime's table of functions on the host.
#include "tests/cuda/host_grid.h"
// this header first: it names the build of the kernels
#include "backends/cuda/kernels.h"
#include "backends/cuda/open_cuda.h"
#include "engine/core/error.h"
#include "tests/cuda/host_runtime.h"
#include <chrono>
#include <cstdlib>
#include <vector>

namespace kvrun::cuda {
namespace {

constexpr size_t kMemory = size_t(8) << 30; // bytes of memory that the device reports
constexpr int kErrorConfiguration = 9;      // cudaErrorInvalidConfiguration

struct Copy { // to the host, done when the stream is waited for
	void* dst;
	std::vector<std::byte> bytes;
};
struct State {
	std::map<void*, size_t> device, host; // allocations and their sizes
	std::vector<Copy> copies;
	size_t used = 0;
};
State& state() {
	static State s;
	return s;
}
CudaFaults& faults() { return cuda_faults(); }

using Clock = std::chrono::steady_clock;

int allocate(std::map<void*, size_t>& list, void** p, size_t bytes) {
	*p = std::malloc(bytes);
	if (!*p) return kErrorMemory;
	std::memset(*p, 0xcd, bytes); // no code may rely on the contents
	list[*p] = bytes;
	++faults().live;
	return kOk;
}
int release(std::map<void*, size_t>& list, void* p) {
	if (!list.erase(p)) return 1; // cudaErrorInvalidValue
	--faults().live;
	std::free(p);
	return kOk;
}
bool is_host(const void* p) { // whether it lies in memory of alloc_host()
	for (const auto& [base, bytes] : state().host)
		if (p >= base && p < static_cast<const char*>(base) + bytes) return true;
	return false;
}

// ---- the functions; each first asks cuda_faults()

int device_count(int* n) {
	*n = 1;
	return faults().before("device_count");
}
int properties(int, DeviceProperties* p) {
	p->name = "CUDA sources on the host";
	for (size_t i = 0; i < p->uuid.size(); ++i) p->uuid[i] = uint8_t(i + 1);
	p->memory_bytes = kMemory;
	p->major = 9;
	p->multiprocessors = 16;
	p->maps_host = true;
	return faults().before("properties");
}
int versions(int* driver, int* runtime) {
	*driver = *runtime = 13000;
	return faults().before("versions");
}
int set_device(int) { return kOk; }
int memory(size_t* free, size_t* total) {
	*total = kMemory, *free = kMemory - state().used;
	return faults().before("memory");
}
int alloc(void** p, size_t bytes) {
	if (const int r = faults().before("alloc"); r != kOk) return r;
	if (bytes > kMemory - state().used) return kErrorMemory;
	const int r = allocate(state().device, p, bytes);
	if (r == kOk) state().used += bytes;
	return r;
}
int free_device(void* p) {
	const auto at = state().device.find(p);
	if (at != state().device.end()) state().used -= at->second;
	return release(state().device, p);
}
int alloc_host(void** p, size_t bytes) {
	const int r = faults().before("alloc_host");
	return r != kOk ? r : allocate(state().host, p, bytes);
}
int free_host(void* p) { return release(state().host, p); }
int stream_create(void** s) {
	const int r = faults().before("stream_create");
	return r != kOk ? r : allocate(state().device, s, 1);
}
int stream_destroy(void* s) { return release(state().device, s); }
int stream_wait(void*) {
	if (const int r = faults().before("stream_wait"); r != kOk) {
		state().copies.clear();
		return r;
	}
	for (const Copy& c : state().copies) std::memcpy(c.dst, c.bytes.data(), c.bytes.size());
	state().copies.clear();
	return kOk;
}
int fill(void* dst, uint8_t byte, size_t n, void*) {
	if (const int r = faults().before("fill"); r != kOk) return r;
	std::memset(dst, byte, n);
	return kOk;
}
int copy(void* dst, const void* src, size_t n, void*) {
	if (const int r = faults().before("copy"); r != kOk) return r;
	const auto* from = static_cast<const std::byte*>(src);
	if (is_host(dst))
		state().copies.push_back({dst, std::vector<std::byte>(from, from + n)});
	else
		std::memmove(dst, src, n);
	return kOk;
}
int launch(const KernelEntry& k, Dim grid, uint32_t threads, void* args, void*) {
	if (const int r = faults().before("launch"); r != kOk) return r;
	if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || threads > host_grid::kMostThreads)
		return kErrorConfiguration;
	try {
		host_grid::launch(k.entry, {grid.x, grid.y, grid.z}, threads, args);
	} catch (const host_grid::Error& e) { fail(Code::Internal, "kernel {}: {}", k.name, e.what()); }
	return kOk;
}
int event_create(void** e) {
	const int r = faults().before("event_create");
	return r != kOk ? r : allocate(state().device, e, sizeof(Clock::time_point));
}
int event_destroy(void* e) { return release(state().device, e); }
int event_record(void* e, void*) {
	const Clock::time_point now = Clock::now();
	std::memcpy(e, &now, sizeof now);
	return faults().before("event_record");
}
int event_ms(float* ms, void* from, void* to) {
	Clock::time_point a, b;
	std::memcpy(&a, from, sizeof a), std::memcpy(&b, to, sizeof b);
	*ms = std::chrono::duration<float, std::milli>(b - a).count();
	return faults().before("event_ms");
}
const char* error_name(int r) {
	return r == kErrorMemory      ? "cudaErrorMemoryAllocation"
	       : r == kErrorOldDriver ? "cudaErrorInsufficientDriver"
	       : r == kErrorNoDevice  ? "cudaErrorNoDevice"
	       : r == 700             ? "cudaErrorIllegalAddress"
	                              : "cudaErrorUnknown";
}

} // namespace

const Runtime& host_runtime() {
	static const Runtime r = {device_count,   properties,    versions,     set_device, memory,
	                          alloc,          free_device,   alloc_host,   free_host,  stream_create,
	                          stream_destroy, stream_wait,   fill,         copy,       launch,
	                          event_create,   event_destroy, event_record, event_ms,   error_name};
	return r;
}

const Kernels& host_kernels() {
	static const Kernels k = host_run::all_kernels();
	return k;
}

CudaFaults& cuda_faults() {
	static CudaFaults f;
	return f;
}

void CudaFaults::fail_calls(std::string function, uint64_t first, uint64_t last, int result, bool sticky) {
	reset();
	function_ = std::move(function), first_ = first, last_ = last, result_ = result, sticky_ = sticky;
}

void CudaFaults::reset() {
	calls.clear();
	failed = 0;
	function_.clear();
	stuck_ = false;
}

int CudaFaults::before(const char* function) {
	const uint64_t n = ++calls[function];
	if (stuck_) return result_;
	if (function != function_ || n < first_ || n > last_) return kOk;
	++failed;
	stuck_ = sticky_;
	return result_;
}

void add_cuda_host() {
	add_backend({"cuda-host", /*automatic=*/false,
	             [](const BackendOptions& o) { return find_devices(host_runtime(), host_kernels(), "cuda-host", o); }});
}

} // namespace kvrun::cuda
