// What the backend needs of the CUDA runtime, as a table of functions: the runtime itself, or in tests code that runs
// kernels on the host. Each function returns 0 or the runtime's error number.
#pragma once
#include "backends/cuda/args.h"
#include <array>
#include <cstddef>
#include <string>

namespace kvrun::cuda {

// Error numbers of the runtime that the backend tells apart (driver_types.h).
constexpr int kOk = 0, kErrorMemory = 2, kErrorOldDriver = 35, kErrorNoDevice = 100;

struct DeviceProperties {
	std::string name;
	std::array<uint8_t, 16> uuid{}; // the same as Vulkan's deviceUUID of the same GPU
	size_t memory_bytes = 0;
	int major = 0, minor = 0; // compute capability
	int multiprocessors = 0;
	bool integrated = false;
	bool maps_host = false;      // kernels read memory of alloc_host() in place
	double peak_bytes_per_s = 0; // 0: unknown
};

struct Dim {
	uint32_t x = 1, y = 1, z = 1;
};

struct Runtime {
	int (*device_count)(int* n);
	int (*properties)(int device, DeviceProperties*);
	int (*versions)(int* driver, int* runtime); // 1000 * major + 10 * minor
	int (*set_device)(int device);              // device for later calls of this thread
	int (*memory)(size_t* free, size_t* total);
	int (*alloc)(void** p, size_t bytes);
	int (*free)(void* p);
	int (*alloc_host)(void** p, size_t bytes); // pinned memory, for asynchronous copies
	int (*free_host)(void* p);
	int (*stream_create)(void** stream);
	int (*stream_destroy)(void* stream);
	int (*stream_wait)(void* stream); // until all enqueued work is done; also returns errors of that work
	// In order in a stream.
	int (*fill)(void* dst, uint8_t byte, size_t bytes, void* stream);
	int (*copy)(void* dst, const void* src, size_t bytes, void* stream); // either side may be host or device
	int (*launch)(const KernelEntry&, Dim grid, uint32_t threads, void* args, void* stream);
	int (*event_create)(void** event);
	int (*event_destroy)(void* event);
	int (*event_record)(void* event, void* stream);
	int (*event_ms)(float* ms, void* from, void* to); // both events must be done
	const char* (*error_name)(int);
};

} // namespace kvrun::cuda
