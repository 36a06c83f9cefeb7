// Memory, copies, waiting, timing and errors of the CUDA backend.
#include "backends/cuda/cuda_backend.h"
#include "backends/host_memory.h"
#include "backends/weight_rows.h"
#include "engine/core/iq_grids.h"
#include "engine/core/log.h"
#include <algorithm>
#include <cstring>

namespace kvrun::cuda {
namespace {

constexpr size_t kMiB = size_t(1) << 20;
constexpr size_t kStaging = 4 * kMiB;      // bytes of a piece of staging memory
constexpr size_t kMostStaging = 64 * kMiB; // staging in use before copies are waited for
constexpr size_t kAlign = 64;              // alignment of staged data

} // namespace

CudaBackend::CudaBackend(const Runtime& runtime, const Kernels& kernels, const char* name, DeviceInfo info,
                         OpenOptions options)
    : rt_(runtime), kernels_(kernels), name_(name), info_(std::move(info)), options_(options) {
	const auto attempt = [&](int result, const char* call) {
		if (result == kOk) return;
		release();
		fail(result == kErrorMemory ? Code::OutOfMemory : Code::Device,
		     "{}: {} returned {}; `nvidia-smi` says whether the device works and what uses it", info_.name, call,
		     rt_.error_name(result));
	};
	attempt(rt_.set_device(options_.device), "cudaSetDevice");
	attempt(rt_.stream_create(&stream_), "cudaStreamCreate");
}

CudaBackend::~CudaBackend() {
	grids_ = {};
	release();
}

// Errors of a lost device are ignored here: no one can act on them.
void CudaBackend::release() noexcept {
	if (!stream_) return;
	(void)rt_.set_device(options_.device);
	(void)rt_.stream_wait(stream_);
	for (const Timed& t : timed_) events_.push_back(t.from), events_.push_back(t.to);
	for (void* e : events_)
		if (e) (void)rt_.event_destroy(e);
	for (const Staging& s : staging_) (void)rt_.free_host(s.data);
	for (const Block& b : blocks_)
		if (b.data) (void)(b.host ? rt_.free_host(b.data) : rt_.free(b.data));
	(void)rt_.stream_destroy(stream_);
	stream_ = nullptr;
}

DeviceInfo CudaBackend::info() const {
	DeviceInfo i = info_;
	i.lists_candidates = true;
	size_t free_bytes = 0, total = 0;
	(void)rt_.set_device(options_.device);
	if (rt_.memory(&free_bytes, &total) != kOk) return i;
	const size_t reserve = total / 20; // for the driver, the display and fragmentation
	i.free_bytes = free_bytes > reserve ? free_bytes - reserve : 0;
	if (i.mapped_bytes) i.mapped_bytes = host_free_bytes();
	return i;
}

// ---- errors

void CudaBackend::check(int result, const char* call) {
	if (result == kOk) return;
	const bool memory = result == kErrorMemory;
	lose(memory ? Code::OutOfMemory : Code::Device,
	     fmt::format("{} returned {}: what it was to do is lost; open it again{}", call, rt_.error_name(result),
	                 memory ? ", with a smaller -c or a --kv with fewer bits" : ""));
}

// An error of a kernel stays with the process's context, so the device cannot be used further.
void CudaBackend::lose(Code code, std::string why) {
	if (lost_.empty()) lost_ = std::move(why), lost_code_ = code;
	reads_.clear();
	throw Error(lost_code_, lost_);
}

void CudaBackend::use() const {
	if (!lost_.empty()) throw Error(lost_code_, lost_);
	(void)rt_.set_device(options_.device); // the next call reports the same error
}

// ---- memory

void CudaBackend::refuse(size_t bytes, const char* label, int result) {
	fail(Code::OutOfMemory,
	     "{} needs {:.1f} MiB of device memory, {:.1f} MiB are free{}; give a smaller -c, a --kv with fewer bits, or a "
	     "smaller model",
	     label, double(bytes) / double(kMiB), double(info().free_bytes) / double(kMiB),
	     result == kOk ? "" : fmt::format(", and the driver returned {}", rt_.error_name(result)));
}

Buffer CudaBackend::alloc(size_t bytes, Mem mem, const char* label) {
	use();
	const size_t size = (std::max<size_t>(bytes, 1) + 15) / 16 * 16; // a kernel may read the whole last word
	const bool host = mem == Mem::Host || (mem == Mem::Mapped && info_.mapped_bytes > 0);
	if (!host && bytes > info().free_bytes) refuse(bytes, label, kOk);
	blocks_.reserve();
	void* p = nullptr;
	if (const int result = host ? rt_.alloc_host(&p, size) : rt_.alloc(&p, size); result == kErrorMemory)
		refuse(bytes, label, result);
	else
		check(result, host ? "cudaMallocHost" : "cudaMalloc");
	const uint32_t id = blocks_.add({static_cast<std::byte*>(p), bytes, host});
	Buffer out = made(id, bytes, mem); // frees the allocation if the fill fails
	if (host) {
		std::memset(p, options_.poison ? 0xff : 0, size);
		return out;
	}
	check(rt_.fill(p, options_.poison ? 0xff : 0, size, stream_), "cudaMemsetAsync"); // 0xff: NaN as f32, f16, bf16
	return out;
}

void CudaBackend::free(uint32_t id) noexcept {
	(void)rt_.set_device(options_.device);
	const Block& b = blocks_[id];
	if (b.host) (void)rt_.stream_wait(stream_); // free() of device memory does the same: copies may be in progress
	(void)(b.host ? rt_.free_host(b.data) : rt_.free(b.data));
	blocks_.remove(id);
}

std::byte* CudaBackend::bytes_at(const Buffer& b, size_t at, size_t n) const {
	const Block& block = blocks_[b.id()];
	KV_ASSERT(block.data && block.bytes == b.bytes());
	KV_ASSERT(at <= block.bytes && n <= block.bytes - at);
	return block.data + at;
}

const uint32_t* CudaBackend::half_words(const View& v) const {
	KV_ASSERT(v.at % 8 == 0); // kernels read four halves at a time
	return data<uint32_t>(as_words(v));
}

// The table for types with grids, made when the first such weight is read.
const uint32_t* CudaBackend::grids() {
	const std::span<const uint32_t> words = iq_grids();
	if (!grids_) {
		grids_ = alloc(words.size_bytes(), Mem::Device, "grids of IQ types");
		write(grids_, 0, std::as_bytes(words));
	}
	return reinterpret_cast<const uint32_t*>(bytes_at(grids_, 0, words.size_bytes()));
}

Weight CudaBackend::weight(const View& w) {
	if (!w.buf) return {};
	const size_t row_bytes = device_row_bytes(w.type, w.shape[1]);
	KV_ASSERT(w.at % 16 == 0);
	return {bytes_at(*w.buf, w.at, w.shape[0] * row_bytes), w.shape[1], uint32_t(w.type),
	        weight_traits(uint32_t(w.type)), uses_grid(w.type) ? grids() : nullptr};
}

// ---- copies

// Copies run asynchronously, so their host memory must stay valid. Staging is handed out in order, and is free again
// after the next wait for the stream.
std::byte* CudaBackend::stage(size_t bytes) {
	const size_t need = (bytes + kAlign - 1) / kAlign * kAlign;
	for (Staging& s : staging_)
		if (s.bytes - s.used >= need) return s.data + std::exchange(s.used, s.used + need);
	Staging s{nullptr, std::max(need, kStaging), need};
	staging_.reserve(staging_.size() + 1);
	void* p = nullptr;
	if (const int result = rt_.alloc_host(&p, s.bytes); result == kErrorMemory)
		fail(Code::OutOfMemory,
		     "copies need {:.1f} MiB of host memory that the device can read; close other programs, or give a smaller "
		     "-c or a --kv with fewer bits",
		     double(s.bytes) / double(kMiB));
	else
		check(result, "cudaMallocHost");
	s.data = static_cast<std::byte*>(p);
	staging_.push_back(s);
	return s.data;
}

void CudaBackend::write(const Buffer& dst, size_t at, std::span<const std::byte> src) {
	use();
	std::byte* to = bytes_at(dst, at, src.size());
	if (dst.mem() == Mem::Mapped && blocks_[dst.id()].host && !src.empty()) { // mapped host memory needs no copy
		wait_stream();
		std::memcpy(to, src.data(), src.size());
		return;
	}
	while (!src.empty()) {
		const size_t n = std::min(src.size(), kStaging);
		size_t used = n;
		for (const Staging& s : staging_) used += s.used;
		if (used > kMostStaging) wait_stream();
		std::byte* staged = stage(n);
		std::memcpy(staged, src.data(), n);
		check(rt_.copy(to, staged, n, stream_), "cudaMemcpyAsync");
		to += n, src = src.subspan(n);
	}
}

void CudaBackend::read(const Buffer& src, size_t at, std::span<std::byte> dst) {
	use();
	const std::byte* from = bytes_at(src, at, dst.size());
	const size_t before = reads_.size();
	try {
		while (!dst.empty()) {
			const size_t n = std::min(dst.size(), kStaging);
			reads_.reserve(reads_.size() + 1);
			std::byte* staged = stage(n);
			check(rt_.copy(staged, from, n, stream_), "cudaMemcpyAsync");
			reads_.push_back({dst.first(n), staged});
			from += n, dst = dst.subspan(n);
		}
	} catch (...) { // the caller's memory may be freed before the next wait
		reads_.resize(std::min(before, reads_.size()));
		throw;
	}
}

size_t CudaBackend::weight_row_bytes(DType t, uint32_t cols) const { return device_row_bytes(t, cols); }

bool CudaBackend::arrange_weight(DType t, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const {
	to_device_rows(t, cols, src, dst);
	return true;
}

void CudaBackend::write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
                               std::span<const std::byte> arranged) {
	write_device_rows(w, row, n, src, arranged,
	                  [&](size_t at, std::span<const std::byte> bytes) { write(*w.buf, at, bytes); });
}

void CudaBackend::compute(const op::Copy& o) {
	const auto& [dst, src] = o;
	use();
	const size_t n = src.bytes();
	check(rt_.copy(bytes_at(*dst.buf, dst.at, n), bytes_at(*src.buf, src.at, n), n, stream_), "cudaMemcpyAsync");
}

// ---- launches, waiting and timing

void* CudaBackend::new_event() {
	if (!events_.empty()) {
		void* e = events_.back();
		events_.pop_back();
		return e;
	}
	void* e = nullptr;
	check(rt_.event_create(&e), "cudaEventCreate");
	return e;
}

void CudaBackend::enqueue(const KernelEntry& k, Dim grid, uint32_t threads, void* args, const OpInfo& info) {
	use();
	if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
	log_at(3, "cuda: {} ({}, {}, {}) x {}", k.name, grid.x, grid.y, grid.z, threads);
	if (!timing_) return check(rt_.launch(k, grid, threads, args, stream_), k.name);
	timed_.push_back({info.op, info.bytes, nullptr, nullptr, info.first});
	Timed& t = timed_.back(); // stores each event at once, so that release() destroys it
	t.from = new_event();
	t.to = new_event();
	check(rt_.event_record(t.from, stream_), "cudaEventRecord");
	check(rt_.launch(k, grid, threads, args, stream_), k.name);
	check(rt_.event_record(t.to, stream_), "cudaEventRecord");
}

void CudaBackend::wait_stream() {
	check(rt_.stream_wait(stream_), "cudaStreamSynchronize");
	for (const PendingRead& r : reads_) std::memcpy(r.dst.data(), r.staged, r.dst.size());
	reads_.clear();
	for (Staging& s : staging_) s.used = 0;
	for (const Timed& t : timed_) {
		float ms = 0;
		check(rt_.event_ms(&ms, t.from, t.to), "cudaEventElapsedTime");
		OpTime& sum = times_.try_emplace(t.op, OpTime{t.op, 0, 0, 0}).first->second;
		sum.calls += t.first;
		sum.ms += double(ms);
		sum.bytes += t.bytes;
	}
	for (const Timed& t : timed_) events_.push_back(t.from), events_.push_back(t.to);
	timed_.clear();
}

void CudaBackend::submit() { use(); }

void CudaBackend::wait() {
	use();
	wait_stream();
}

std::vector<OpTime> CudaBackend::op_times(bool reset) {
	if (!timed_.empty()) wait();
	std::vector<OpTime> r;
	for (const auto& [op, time] : times_) r.push_back(time);
	if (reset) times_.clear();
	return r;
}

} // namespace kvrun::cuda
