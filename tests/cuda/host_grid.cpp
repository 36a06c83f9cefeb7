// The fibers behind host_grid.h, and its checks.
#include "tests/cuda/host_grid.h"
#include "tests/support/sanitizer.h"
#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/preallocated.hpp>
#include <deque>
#include <exception>
#include <memory>
#include <vector>
#ifdef KVRUN_TEST_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace host_grid {
namespace {

namespace context = boost::context;

constexpr size_t kStack = size_t(128) << 10; // bytes; kernels keep arrays of a few hundred
constexpr unsigned kAllLanes = 0xffffffffu;

enum class State : uint8_t { Fresh, Ready, AtBarrier, InWarp, Left };

std::string text(Site s) {
	const std::string file = s.file;
	return file.substr(file.rfind('/') + 1) + ":" + std::to_string(s.line);
}

struct Stack {
	const void* bottom = nullptr;
	size_t bytes = 0;
};

// AddressSanitizer must be told at every switch which stack runs.
void leave([[maybe_unused]] void** kept, [[maybe_unused]] const Stack& to) {
#ifdef KVRUN_TEST_ASAN
	__sanitizer_start_switch_fiber(kept, to.bottom, to.bytes);
#endif
}
void arrive([[maybe_unused]] void* kept, [[maybe_unused]] Stack* from) {
#ifdef KVRUN_TEST_ASAN
	__sanitizer_finish_switch_fiber(kept, from ? &from->bottom : nullptr, from ? &from->bytes : nullptr);
#endif
}

// Runs one thread after the other; a fiber that has finished its thread takes the next.
struct Worker {
	context::fiber fiber;
	Stack stack;
};

struct Abandoned {}; // ends a thread in the middle of a kernel that has failed

struct Thread {
	State state = State::Fresh;
	Worker* worker = nullptr; // set from its beginning to its end
	Site site{};              // of a waiting thread
};

struct Warp { // lanes that have reached one warp function
	unsigned here = 0;
	uint32_t done = 0; // functions in this block
	Site site{};
	uint64_t value[2][kWarp] = {}; // by parity of `done`: the next may begin before all have read these
};

class Grid {
 public:
	~Grid() {
		quit_ = true;
		for (const auto& w : workers_) run(*w);
	}
	void launch(const void* entry, dim3 grid, unsigned n_threads, const void* args) {
		if (n_threads == 0 || n_threads > kMostThreads) throw Error("a block has 1 to 1024 threads");
		run_ = reinterpret_cast<void (*)(const void*)>(const_cast<void*>(entry));
		args_ = args;
		gridDim = grid;
		blockDim = {n_threads, 1, 1};
		threads_.resize(n_threads);
		warps_.resize((n_threads + kWarp - 1) / kWarp);
		for (unsigned z = 0; z < grid.z; ++z)
			for (unsigned y = 0; y < grid.y; ++y)
				for (unsigned x = 0; x < grid.x; ++x) {
					blockIdx = {x, y, z};
					run_block();
				}
	}

	void sync_block(Site s) { wait(State::AtBarrier, s); }

	void sync_warp(unsigned mask, uint64_t value, Site site, bool memory) {
		Warp& w = warps_[threadIdx.x / kWarp];
		const unsigned lane = threadIdx.x % kWarp;
		if (mask != kAllLanes) throw Error("a warp function at " + text(site) + " is for some lanes only; use all");
		if (w.here && w.site != site)
			throw Error("lanes of a warp diverge: some are at " + text(w.site) + ", others at " + text(site));
		w.site = site;
		w.here |= 1u << lane;
		w.value[w.done % 2][lane] = value;
		if (w.here != kAllLanes) return wait(State::InWarp, site);
		w.here = 0; // the last lane: all continue
		++w.done;
		times.warp[threadIdx.x / kWarp] += memory;
		const unsigned first = threadIdx.x / kWarp * kWarp;
		for (unsigned i = first; i < first + kWarp && i < threads_.size(); ++i)
			if (threads_[i].state == State::InWarp) threads_[i].state = State::Ready;
	}
	uint64_t brought(unsigned lane) const {
		const unsigned w = threadIdx.x / kWarp;
		return warps_[w].value[(warps_[w].done + 1) % 2][lane]; // no lane has begun the function after the next
	}

	static std::string where() {
		return ": thread " + std::to_string(threadIdx.x) + " of block (" + std::to_string(blockIdx.x) + ", " +
		       std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
	}

 private:
	void run_block() {
		for (Thread& t : threads_) t = Thread();
		for (Warp& w : warps_) w.here = 0, w.done = 0;
		std::fill(std::begin(times.warp), std::end(times.warp), 0u);
		times.block_began = ++times.now;
		left_ = 0;
		std::exception_ptr error;
		try {
			for (;;) {
				for (unsigned w = 0; w < warps_.size(); ++w) run_warp(w);
				if (left_ == threads_.size()) return;
				pass_barrier();
			}
		} catch (const std::exception&) { error = std::current_exception(); }
		abandon_ = true; // threads in the middle of the kernel
		for (unsigned i = 0; i < threads_.size(); ++i)
			if (threads_[i].worker) resume(i);
		abandon_ = false;
		std::rethrow_exception(error);
	}

	// Runs until none of the warp's lanes can continue by itself.
	void run_warp(unsigned w) {
		const unsigned first = w * kWarp, end = std::min<unsigned>(first + kWarp, unsigned(threads_.size()));
		for (bool any = true; any;) {
			any = false;
			for (unsigned i = first; i < end; ++i)
				if (threads_[i].state == State::Fresh || threads_[i].state == State::Ready) {
					resume(i);
					any = true;
				}
		}
	}

	// No thread can run: either all wait at one barrier, or the kernel is wrong.
	void pass_barrier() {
		const Thread* waiting = nullptr;
		for (const Thread& t : threads_) {
			if (t.state == State::InWarp)
				throw Error("a warp function at " + text(t.site) + " waits for lanes that do not come" + where());
			if (t.state != State::AtBarrier) continue;
			if (waiting && waiting->site != t.site)
				throw Error("threads of a block diverge: some wait at " + text(waiting->site) + ", others at " +
				            text(t.site) + where());
			waiting = &t;
		}
		if (left_)
			throw Error("threads of a block diverge: " + std::to_string(left_) + " have left, others wait at " +
			            text(waiting->site) + where());
		for (Thread& t : threads_) t.state = State::Ready;
		++times.now;
	}

	void resume(unsigned i) {
		Thread& t = threads_[i];
		if (!t.worker) {
			if (free_.empty()) free_.push_back(new_worker());
			t.worker = free_.back();
			free_.pop_back();
		}
		threadIdx = {i, 0, 0};
		t.state = State::Ready;
		Worker* worker = t.worker;
		run(*worker);
		if (t.state != State::Left) return;
		t.worker = nullptr;
		free_.push_back(worker);
		++left_;
		if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
	}

	void run(Worker& w) {
		void* kept = nullptr;
		leave(&kept, w.stack);
		w.fiber = std::move(w.fiber).resume();
		arrive(kept, nullptr);
	}

	Worker* new_worker() {
		workers_.push_back(std::make_unique<Worker>());
		Worker* worker = workers_.back().get();
		context::fixedsize_stack stacks(kStack);
		const context::stack_context stack = stacks.allocate();
		worker->stack = {static_cast<char*>(stack.sp) - stack.size, stack.size};
		worker->fiber = context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack), stacks,
		                               [this](context::fiber&& caller) { return work(std::move(caller)); });
		return worker;
	}

	// Body of a fiber: runs thread after thread.
	context::fiber work(context::fiber&& caller) {
		arrive(nullptr, &home_);
		back_ = std::move(caller);
		while (!quit_) {
			const unsigned i = threadIdx.x;
			try {
				run_(args_);
			} catch (const std::exception&) { failed_ = std::current_exception(); } catch (const Abandoned&) {
			}
			threads_[i].state = State::Left;
			suspend();
		}
		leave(nullptr, home_);
		return std::move(back_);
	}

	void wait(State s, Site site) {
		Thread& t = threads_[threadIdx.x];
		t.state = s, t.site = site;
		suspend();
		if (abandon_) throw Abandoned();
	}
	void suspend() {
		void* kept = nullptr;
		leave(&kept, home_);
		context::fiber caller = std::move(back_);
		context::fiber again = std::move(caller).resume();
		arrive(kept, &home_);
		back_ = std::move(again);
	}

	void (*run_)(const void*) = nullptr;
	const void* args_ = nullptr;
	std::vector<Thread> threads_;
	std::vector<Warp> warps_;
	std::deque<std::unique_ptr<Worker>> workers_;
	std::vector<Worker*> free_;
	context::fiber back_; // where the running fiber returns to launch()
	Stack home_;          // the stack of launch()
	bool abandon_ = false, quit_ = false;
	std::exception_ptr failed_;
	size_t left_ = 0;
};

Grid& grid() {
	static Grid g;
	return g;
}

} // namespace

void launch(const void* entry, dim3 dim, unsigned threads, const void* args) {
	grid().launch(entry, dim, threads, args);
}
void sync_block(Site s) { grid().sync_block(s); }
void sync_warp(unsigned mask, uint64_t value, Site s, bool memory) { grid().sync_warp(mask, value, s, memory); }
uint64_t brought(unsigned lane) { return grid().brought(lane); }
unsigned ballot(unsigned mask, bool vote, Site s) {
	grid().sync_warp(mask, vote, s, false);
	unsigned r = 0;
	for (unsigned i = 0; i < kWarp; ++i) r |= unsigned(grid().brought(i) != 0) << i;
	return r;
}
void fail_access(const char* what) { throw Error(what + Grid::where()); }
void fail_index(uint32_t i, uint32_t n) {
	throw Error("element " + std::to_string(i) + " of shared memory that has " + std::to_string(n) + Grid::where());
}

} // namespace host_grid
