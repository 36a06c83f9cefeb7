// The CUDA runtime as a table of functions; the driver is loaded when the first of them is called.
#include "backends/cuda/real_runtime.h"
#include <cstring>
#include <cuda_runtime.h>

namespace kvrun::cuda {
namespace {

cudaStream_t stream_of(void* s) { return static_cast<cudaStream_t>(s); }
cudaEvent_t event_of(void* e) { return static_cast<cudaEvent_t>(e); }

int properties(int device, DeviceProperties* out) {
	cudaDeviceProp p;
	if (const cudaError_t r = cudaGetDeviceProperties(&p, device); r != cudaSuccess) return r;
	out->name = p.name;
	std::memcpy(out->uuid.data(), p.uuid.bytes, out->uuid.size());
	out->memory_bytes = p.totalGlobalMem;
	out->major = p.major, out->minor = p.minor;
	out->multiprocessors = p.multiProcessorCount;
	out->integrated = p.integrated;
	out->maps_host = p.canMapHostMemory && p.unifiedAddressing;
	int khz = 0, bits = 0; // two transfers per clock
	if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device) == cudaSuccess &&
	    cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device) == cudaSuccess)
		out->peak_bytes_per_s = 2. * khz * 1e3 * bits / 8;
	return cudaSuccess;
}

int versions(int* driver, int* runtime) {
	const cudaError_t r = cudaDriverGetVersion(driver);
	return r != cudaSuccess ? r : cudaRuntimeGetVersion(runtime);
}

int launch(const KernelEntry& k, Dim grid, uint32_t threads, void* args, void* stream) {
	void* list[] = {args}; // every kernel takes one struct as its argument
	return cudaLaunchKernel(k.entry, dim3(grid.x, grid.y, grid.z), dim3(threads), list, 0, stream_of(stream));
}

const Runtime kRuntime = {
    .device_count = [](int* n) -> int { return cudaGetDeviceCount(n); },
    .properties = properties,
    .versions = versions,
    .set_device = [](int d) -> int { return cudaSetDevice(d); },
    .memory = [](size_t* free, size_t* total) -> int { return cudaMemGetInfo(free, total); },
    .alloc = [](void** p, size_t n) -> int { return cudaMalloc(p, n); },
    .free = [](void* p) -> int { return cudaFree(p); },
    .alloc_host = [](void** p, size_t n) -> int { return cudaMallocHost(p, n); },
    .free_host = [](void* p) -> int { return cudaFreeHost(p); },
    .stream_create = [](void** s) -> int {
	    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(s), cudaStreamNonBlocking);
    },
    .stream_destroy = [](void* s) -> int { return cudaStreamDestroy(stream_of(s)); },
    .stream_wait = [](void* s) -> int { return cudaStreamSynchronize(stream_of(s)); },
    .fill = [](void* p, uint8_t byte, size_t n, void* s) -> int { return cudaMemsetAsync(p, byte, n, stream_of(s)); },
    .copy = [](void* dst, const void* src, size_t n, void* s) -> int {
	    return cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, stream_of(s));
    },
    .launch = launch,
    .event_create = [](void** e) -> int { return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(e)); },
    .event_destroy = [](void* e) -> int { return cudaEventDestroy(event_of(e)); },
    .event_record = [](void* e, void* s) -> int { return cudaEventRecord(event_of(e), stream_of(s)); },
    .event_ms = [](float* ms, void* a, void* b) -> int { return cudaEventElapsedTime(ms, event_of(a), event_of(b)); },
    .error_name = [](int r) { return cudaGetErrorName(cudaError_t(r)); },
};

} // namespace

const Runtime& real_runtime() { return kRuntime; }

} // namespace kvrun::cuda
