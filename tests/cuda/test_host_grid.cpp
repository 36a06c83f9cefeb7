// host_grid.h itself: its results, and every error of a kernel that it must detect.
#include "tests/cuda/host_grid.h"
// this header first
#include "backends/cuda/device.cuh"
#include <doctest/doctest.h>
#include <numeric>
#include <vector>

using kvrun::cuda::Shared;

namespace {

struct Args {
	int* out = nullptr;        // as many as threads
	const float* in = nullptr; // the same
	int a = 0, b = 0;          // numbers of threads
};

template <void (*Kernel)(Args)> void run(unsigned threads, Args args, dim3 grid = {}) {
	host_grid::launch(host_grid::entry_of<Args, Kernel>(), grid, threads, &args);
}

// The message of the error of a kernel; empty if it has none.
template <void (*Kernel)(Args)> std::string error_of(unsigned threads, Args args, dim3 grid = {}) {
	try {
		run<Kernel>(threads, args, grid);
	} catch (const host_grid::Error& e) { return e.what(); }
	return "";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// ---- correct kernels

void index_kernel(Args a) {
	const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
	a.out[block * blockDim.x + threadIdx.x] = int(block * 1000 + threadIdx.x);
}

// Each thread's neighbour, through shared memory, twice.
void reverse_kernel(Args a) {
	__shared__ Shared<int, 128> s;
	for (int round = 0; round < 2; ++round) {
		s[threadIdx.x] = a.out[threadIdx.x];
		__syncthreads();
		a.out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x] + 1;
		__syncthreads();
	}
}

void shuffle_kernel(Args a) {
	const int x = int(threadIdx.x);
	int sum = x;
	for (unsigned step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
	const int down = __shfl_down_sync(0xffffffffu, x, 3), up = __shfl_up_sync(0xffffffffu, x, 1);
	const double third = __shfl_sync(0xffffffffu, double(x) / 2, 3);
	const unsigned odd = __ballot_sync(0xffffffffu, x % 2 == 1);
	const bool any = __any_sync(0xffffffffu, x == 40), all = __all_sync(0xffffffffu, x < 64);
	a.out[threadIdx.x] = sum + 10000 * (down - x) + 100000 * (x - up) + 1000000 * int(third * 2 - (x / 32 * 32)) +
	                     10000000 * (odd == 0xaaaaaaaau) + 20000000 * any + 40000000 * all;
}

void warp_memory_kernel(Args a) { // a warp may exchange values with its own barrier
	__shared__ Shared<int, 64> s;
	s[threadIdx.x] = int(threadIdx.x);
	__syncwarp();
	a.out[threadIdx.x] = s[threadIdx.x ^ 1];
}

void atomic_kernel(Args a) {
	atomicAdd(&a.out[0], 2);
	atomicMax(&a.out[1], int(threadIdx.x));
	atomicMin(&a.out[2], -int(threadIdx.x));
	atomicOr(&a.out[3], 1 << threadIdx.x % 8);
	atomicCAS(&a.out[4], 0, int(threadIdx.x) + 1);
}

// ---- wrong kernels

void leaves_kernel(Args a) { // threads from a.a on leave before the barrier
	if (int(threadIdx.x) >= a.a) return;
	__syncthreads();
}
void two_barriers_kernel(Args a) {
	if (int(threadIdx.x) < a.a)
		__syncthreads();
	else
		__syncthreads();
}
void lost_lane_kernel(Args a) {
	if (int(threadIdx.x) == a.a) return;
	a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
void two_shuffles_kernel(Args a) {
	if (int(threadIdx.x) < a.a)
		a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
	else
		a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 2, 1);
}
void shuffle_and_barrier_kernel(Args a) {
	if (int(threadIdx.x) < a.a)
		__syncthreads();
	else
		__syncwarp();
}
void some_lanes_kernel(Args a) { a.out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1, 1); }
void unwritten_kernel(Args a) { // element a.a is never written
	__shared__ Shared<int, 64> s;
	if (int(threadIdx.x) != a.a) s[threadIdx.x] = 1;
	__syncthreads();
	a.out[threadIdx.x] = s[threadIdx.x];
}
void earlier_block_kernel(Args a) { // only block 0 writes
	__shared__ Shared<int, 64> s;
	if (blockIdx.x == 0) s[threadIdx.x] = 1;
	__syncthreads();
	a.out[threadIdx.x] = s[threadIdx.x];
}
void outside_kernel(Args a) {
	__shared__ Shared<int, 64> s;
	s[threadIdx.x + unsigned(a.a)] = 1;
}
void no_barrier_kernel(Args a) { // reads what the previous thread has just written
	__shared__ Shared<int, 64> s;
	s[threadIdx.x] = 1;
	a.out[threadIdx.x] = s[threadIdx.x ? threadIdx.x - 1 : 0];
}
void overwrite_kernel(Args a) { // thread 1 writes what thread 0 has just read
	__shared__ Shared<int, 64> s;
	s[threadIdx.x] = 1;
	__syncthreads();
	if (threadIdx.x == 0) a.out[0] = s[1];
	if (threadIdx.x == 1) s[1] = 2;
}
void next_round_kernel(Args a) { // the barrier at the end of a round is missing
	__shared__ Shared<int, 64> s;
	for (int round = 0; round < 2; ++round) {
		s[threadIdx.x] = round;
		__syncthreads();
		a.out[threadIdx.x] = s[63 - threadIdx.x];
	}
}
void same_element_kernel(Args) {
	__shared__ Shared<int, 64> s;
	s[0] = 1;
}
void shuffle_is_no_barrier_kernel(Args a) {
	__shared__ Shared<int, 64> s;
	s[threadIdx.x] = 1;
	a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
	a.out[threadIdx.x] += s[threadIdx.x ^ 1];
}
void other_warp_kernel(Args a) { // a warp's own barrier is not enough for another warp
	__shared__ Shared<int, 64> s;
	s[threadIdx.x] = 1;
	__syncwarp();
	a.out[threadIdx.x] = s[threadIdx.x ^ 32];
}

} // namespace

TEST_CASE("host grid: every thread of every block runs once and knows where it is") {
	std::vector<int> out(2 * 3 * 2 * 40, -1);
	run<index_kernel>(40, {out.data()}, {2, 3, 2});
	for (int i = 0; i < int(out.size()); ++i) CHECK(out[size_t(i)] == i / 40 * 1000 + i % 40);
}

TEST_CASE("host grid: shared memory and barriers") {
	std::vector<int> out(128);
	std::iota(out.begin(), out.end(), 0);
	run<reverse_kernel>(128, {out.data()});
	for (int i = 0; i < 128; ++i) CHECK(out[size_t(i)] == i + 2);
}

TEST_CASE("host grid: shuffles, votes and a warp's own barrier") {
	std::vector<int> out(64);
	run<shuffle_kernel>(64, {out.data()});
	for (int i = 0; i < 64; ++i) {
		const int sum = i < 32 ? 496 : 496 + 32 * 32, down = i % 32 < 29 ? 3 : 0, up = i % 32 ? 1 : 0;
		CHECK(out[size_t(i)] ==
		      sum + 10000 * down + 100000 * up + 3000000 + 10000000 + (i < 32 ? 0 : 20000000) + 40000000);
	}
	run<warp_memory_kernel>(64, {out.data()});
	for (int i = 0; i < 64; ++i) CHECK(out[size_t(i)] == (i ^ 1));
}

TEST_CASE("host grid: atomics") {
	std::vector<int> out(5);
	run<atomic_kernel>(64, {out.data()}, {3});
	CHECK(out == std::vector<int>{384, 63, -63, 255, 1});
}

TEST_CASE("host grid: threads that leave while others wait are an error") {
	const std::string what = error_of<leaves_kernel>(64, {nullptr, nullptr, 63});
	CHECK_MESSAGE(has(what, "1 have left, others wait at test_host_grid.cpp:"), what);
	CHECK(error_of<leaves_kernel>(64, {nullptr, nullptr, 64}).empty());
	CHECK(error_of<leaves_kernel>(64, {nullptr, nullptr, 0}).empty()); // all threads leave
}

TEST_CASE("host grid: threads at different barriers are an error") {
	const std::string what = error_of<two_barriers_kernel>(64, {nullptr, nullptr, 32});
	CHECK_MESSAGE(has(what, "threads of a block diverge: some wait at"), what);
	CHECK(error_of<two_barriers_kernel>(64, {nullptr, nullptr, 64}).empty());
}

TEST_CASE("host grid: a warp function to which a lane does not come is an error") {
	std::vector<int> out(64);
	CHECK(has(error_of<lost_lane_kernel>(64, {out.data(), nullptr, 33}), "waits for lanes that do not come"));
	CHECK(has(error_of<lost_lane_kernel>(48, {out.data(), nullptr, 99}), "waits for lanes that do not come"));
	CHECK(error_of<lost_lane_kernel>(64, {out.data(), nullptr, 99}).empty());
	CHECK(has(error_of<two_shuffles_kernel>(32, {out.data(), nullptr, 5}), "lanes of a warp diverge"));
	CHECK(has(error_of<shuffle_and_barrier_kernel>(32, {out.data(), nullptr, 5}), "waits for lanes that do not come"));
	CHECK(has(error_of<some_lanes_kernel>(32, {out.data()}), "for some lanes only"));
}

TEST_CASE("host grid: reading shared memory that the block has not written is an error") {
	std::vector<int> out(64);
	const std::string what = error_of<unwritten_kernel>(64, {out.data(), nullptr, 7});
	CHECK_MESSAGE(has(what, "has not written: thread 7 of block (0, 0, 0)"), what);
	CHECK(error_of<unwritten_kernel>(64, {out.data(), nullptr, 99}).empty());
	// contents from an earlier block or launch do not count as written
	CHECK(has(error_of<unwritten_kernel>(64, {out.data(), nullptr, 7}), "has not written"));
	CHECK(has(error_of<earlier_block_kernel>(64, {out.data()}, {2}), "has not written: thread 0 of block (1, 0, 0)"));
	CHECK(has(error_of<outside_kernel>(64, {out.data(), nullptr, 1}), "element 64 of shared memory that has 64"));
}

TEST_CASE("host grid: sharing an element without a barrier is an error") {
	std::vector<int> out(64);
	CHECK(has(error_of<no_barrier_kernel>(64, {out.data()}), "is read that another thread writes"));
	CHECK(has(error_of<overwrite_kernel>(64, {out.data()}), "is written that another thread reads"));
	CHECK(has(error_of<next_round_kernel>(64, {out.data()}), "without a barrier between"));
	CHECK(has(error_of<same_element_kernel>(2, {}), "two threads write one element"));
	CHECK(has(error_of<shuffle_is_no_barrier_kernel>(64, {out.data()}), "is read that another thread writes"));
	CHECK(has(error_of<other_warp_kernel>(64, {out.data()}), "shared memory is read that"));
}

TEST_CASE("host grid: the next launch after an error is as any other") {
	std::vector<int> out(128);
	CHECK(!error_of<leaves_kernel>(128, {nullptr, nullptr, 5}).empty());
	std::iota(out.begin(), out.end(), 0);
	run<reverse_kernel>(128, {out.data()});
	CHECK(out[5] == 7);
	CHECK(!error_of<leaves_kernel>(0, {}).empty());
	CHECK(!error_of<leaves_kernel>(1025, {}).empty());
}
