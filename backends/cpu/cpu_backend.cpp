// Memory, reads and timing of the cpu backend; submit and wait have nothing to do.
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/open_cpu.h"
#include "backends/host_memory.h"
#include "engine/core/block_quant.h"
#include "engine/core/log.h"
#include "engine/core/round.h"
#include "engine/core/system/machine.h"
#include <cstring>

namespace kvrun {
namespace {

constexpr size_t kAlign = 64;             // bytes: a cache line
constexpr size_t kBig = size_t(64) << 20; // bytes: larger allocations are compared with the free memory

double mib(size_t bytes) { return double(bytes) / 1048576.; }

} // namespace

DeviceInfo CpuBackend::info() const {
	DeviceInfo r;
	const std::string model = sys::processor_name();
	r.name = model.empty() ? "host processor" : model;
	r.driver = "kvrun cpu backend " KVRUN_VERSION;
	r.type = "cpu";
	r.is_cpu = r.shares_memory = true;
	r.memory_bytes = host_memory_bytes();
	r.free_bytes = host_free_bytes();
	if (r.memory_bytes == 0) r.memory_bytes = r.free_bytes = SIZE_MAX / 2; // unknown: let the allocator decide
	r.max_buffer_bytes = r.memory_bytes;
	r.max_view_bytes = SIZE_MAX;
	r.piece_tokens = 1024, r.prompt_most_pieces = 1; // many short pieces do not help one thread
	return r;
}

Buffer CpuBackend::alloc(size_t bytes, Mem mem, const char* label) {
	const auto refuse = [&](size_t free_bytes) {
		fail(Code::OutOfMemory,
		     "{} needs {:.1f} MiB of host memory, {:.1f} MiB are free; use a shorter context or a smaller model", label,
		     mib(bytes), mib(free_bytes));
	};
	if (bytes >= kBig)
		if (const size_t free_bytes = info().free_bytes; bytes > free_bytes) refuse(free_bytes);
	Block b;
	b.memory.reset(std::calloc(bytes + kAlign, 1)); // pages of large blocks are zeroed by the system when touched
	if (!b.memory) refuse(info().free_bytes);
	const uintptr_t address = reinterpret_cast<uintptr_t>(b.memory.get());
	b.data = static_cast<std::byte*>(b.memory.get()) + (kAlign - address % kAlign) % kAlign;
	b.bytes = bytes;
	if (poison_) std::memset(b.data, 0xff, bytes); // NaN as f32, as f16 and as bf16
	return made(blocks_.add(std::move(b)), bytes, mem);
}

void CpuBackend::free(uint32_t id) noexcept { blocks_.remove(id); }

std::byte* CpuBackend::bytes_at(const Buffer& b, size_t at, size_t n) const {
	const Block& block = blocks_[b.id()];
	KV_ASSERT(block.data && block.bytes == b.bytes());
	KV_ASSERT(at <= block.bytes && n <= block.bytes - at);
	return block.data + at;
}

void CpuBackend::write(const Buffer& dst, size_t at, std::span<const std::byte> src) {
	std::byte* to = bytes_at(dst, at, src.size());
	if (!src.empty()) std::memcpy(to, src.data(), src.size());
}

void CpuBackend::read(const Buffer& src, size_t at, std::span<std::byte> dst) {
	// Kept until wait(), as on a device: a caller that reads too early sees old bytes here too.
	const std::byte* from = bytes_at(src, at, dst.size());
	reads_.push_back({dst, std::vector<std::byte>(from, from + dst.size())});
}

void CpuBackend::wait() {
	for (const PendingRead& r : reads_)
		if (!r.bytes.empty()) std::memcpy(r.dst.data(), r.bytes.data(), r.bytes.size());
	reads_.clear();
}

// GGUF rows, each padded to whole words so that a view may start at any row, then the row's factor.
size_t CpuBackend::weight_row_bytes(DType t, uint32_t cols) const {
	return align_up(dtype_row_bytes(t, cols), 4) + (has_row_factor(t) ? sizeof(float) : 0);
}

void CpuBackend::write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
                              std::span<const std::byte>) {
	const uint32_t cols = w.shape[1];
	const size_t row_bytes = dtype_row_bytes(w.type, cols), stride = weight_row_bytes(w.type, cols);
	KV_ASSERT(w.buf && w.at % 4 == 0 && cols % dtype_info(w.type).block == 0);
	KV_ASSERT(uint64_t(row) + n <= w.shape[0] && src.bytes.size() == n * row_bytes);
	std::byte* to = bytes_at(*w.buf, w.at + row * stride, n * stride);
	for (uint32_t r = 0; r < n; ++r) {
		std::memcpy(to + r * stride, src.bytes.data() + r * row_bytes, row_bytes);
		const float factor = src.factor(r);
		if (has_row_factor(w.type)) std::memcpy(to + r * stride + align_up(row_bytes, 4), &factor, sizeof factor);
	}
}

void CpuBackend::weight_row(DType type, const std::byte* row, float* out, size_t cols) {
	dequantise_row(type, row, out, cols);
	if (!has_row_factor(type)) return;
	float factor;
	std::memcpy(&factor, row + align_up(dtype_row_bytes(type, cols), 4), sizeof factor);
	for (size_t i = 0; i < cols; ++i) out[i] *= factor;
}

const std::byte* CpuBackend::weight_rows(const View& w) const {
	KV_ASSERT(w.buf && w.at % 4 == 0);
	return bytes_at(*w.buf, w.at, w.shape[0] * weight_row_bytes(w.type, w.shape[1]));
}

void CpuBackend::run(const Op& op) {
	check_and_count(op);
	const Timed timed(*this, op);
	std::visit([this](const auto& o) { compute(o); }, op);
}

CpuBackend::Timed::Timed(CpuBackend& b, const Op& op) : backend_(b), op_(op), start_(std::chrono::steady_clock::now()) {
	log_at(3, "cpu: {} -> {}", op_name(op), shape_text(op_output(op)));
}

CpuBackend::Timed::~Timed() {
	if (!backend_.timing_) return;
	const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start_;
	const char* name = op_name(op_);
	OpTime& t = backend_.times_.try_emplace(name, OpTime{name, 0, 0, 0}).first->second;
	++t.calls;
	t.ms += ms.count();
	t.bytes += op_bytes(op_);
}

std::vector<OpTime> CpuBackend::op_times(bool reset) {
	std::vector<OpTime> r;
	for (const auto& [op, time] : times_) r.push_back(time);
	if (reset) times_.clear();
	return r;
}

std::unique_ptr<Backend> make_cpu_backend(bool poison) { return std::make_unique<CpuBackend>(poison); }

namespace {
class CpuDevice final : public DeviceSet {
 public:
	explicit CpuDevice(bool poison) : poison_(poison) {
		reports_.emplace_back();
		reports_[0].backend = "cpu";
		reports_[0].info = CpuBackend(poison).info();
	}
	std::unique_ptr<Backend> open(size_t) override { return make_cpu_backend(poison_); }

 private:
	bool poison_;
};
} // namespace

std::unique_ptr<DeviceSet> find_cpu_device(const BackendOptions& o) { return std::make_unique<CpuDevice>(o.poison); }

} // namespace kvrun
