// The Vulkan backend: memory, submission and waiting.
#include "backends/vulkan/vulkan_backend.h"
#include "engine/core/log.h"
#include "engine/core/system/files.h"
#include <algorithm>
#include <cstring>

namespace kvrun::vk {
namespace {
constexpr uint32_t kPoison = 0x7fc07fc0u; // NaN as f32, and as two f16 or bf16; far out of range as an index
} // namespace

VulkanBackend::VulkanBackend(std::unique_ptr<Instance> instance, const Candidate& c, const BackendOptions& o)
    : dev_(std::move(instance), c), mem_(dev_), cache_(dev_, sys::path_of(o.cache_dir)),
      kernels_(dev_, cache_.handle(), o.shaders), rec_(dev_, mem_, kernels_, o.submit_ms), poison_(o.poison) {
	const Caps& caps = dev_.caps();
	if (!caps.subgroup_ops)
		warn_once(
		    fmt::format("{} has no subgroup arithmetic: reductions go through shared memory", c.report.info.name));
	if (caps.tick_ns <= 0)
		warn_once(fmt::format("{} has no timestamps: submissions are bounded by estimates only", c.report.info.name));
}

VulkanBackend::~VulkanBackend() {
	if (kernels_.compiled())
		log_at(2, "# vulkan: {} pipelines, {:.0f} ms of compilation", kernels_.compiled(), kernels_.compile_ms());
}

DeviceInfo VulkanBackend::info() const {
	DeviceInfo i = dev_.report().info;
	i.free_bytes = mem_.free_bytes();
	i.mapped_bytes = mem_.mapped_bytes();
	return i;
}

void VulkanBackend::run(const Op& op) {
	check_and_count(op);
	std::visit([this](const auto& o) { compute(o); }, op);
}

Buffer VulkanBackend::alloc(size_t bytes, Mem m, const char* label) {
	rec_.collect();
	uint32_t id;
	try {
		id = mem_.create(bytes, m, label);
	} catch (const Error& e) { // buffers that work under way still reads have been given up: then they are free
		if (e.code != Code::OutOfMemory || !rec_.holds_retired()) throw;
		rec_.wait();
		id = mem_.create(bytes, m, label);
	}
	Buffer out = made(id, bytes, m);
	const uint32_t word = poison_ ? kPoison : 0;
	BufferRec& b = mem_.at(id);
	if (b.mapped && b.coherent) {
		std::fill_n(reinterpret_cast<uint32_t*>(b.mapped), b.size / 4, word);
	} else {
		rec_.fill(id, 0, b.size, word);
	}
	return out;
}

void VulkanBackend::write(const Buffer& dst, size_t at, std::span<const std::byte> src) {
	rec_.write(dst.id(), at, src);
}
void VulkanBackend::read(const Buffer& src, size_t at, std::span<std::byte> dst) { rec_.read(src.id(), at, dst); }

void VulkanBackend::submit() { rec_.submit(); }
void VulkanBackend::wait() {
	rec_.wait();
	dev_.instance().messages().take();
}

uint32_t VulkanBackend::rows_per_binding(size_t row_bytes, uint64_t range) const {
	const uint64_t most = (range - 256) / row_bytes; // 256: largest loss by offset alignment
	if (most == 0)
		fail(Code::Unsupported,
		     "a weight row has {} bytes, one binding of this device {} (maxStorageBufferRange, maxTexelBufferElements)",
		     row_bytes, range);
	return uint32_t(std::min<uint64_t>(most, UINT32_MAX));
}

} // namespace kvrun::vk
