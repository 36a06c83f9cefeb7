// The Vulkan backend: each op chooses a kernel, fills its push struct, lists views and dispatches.
//
// ops_basic.cpp    embed, rmsnorm, rope_store, kv_store, copy
// ops_matmul.cpp   matmul;   weights_layout.cpp  weight_row_bytes, write_weight
// ops_attend.cpp   attend, attend_prompt;   ops_kv_move.cpp  kv_load
// ops_kv_pack.cpp  kv_pack, kv_block
// ops_score.cpp    score_prompt, score_slots, channel_max, kv_balance
#pragma once
#include "backends/backend.h"
#include "backends/vulkan/pipeline_cache.h"
#include "backends/vulkan/recorder.h"

namespace kvrun::vk {

class VulkanBackend final : public Backend {
 public:
	explicit VulkanBackend(std::unique_ptr<Instance>, const Candidate&);
	~VulkanBackend() override;

	const char* name() const override { return "vulkan"; }
	DeviceInfo info() const override;
	Buffer alloc(size_t bytes, Mem, const char* label) override;
	void free(uint32_t id) noexcept override { rec_.retire(id); }
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override;
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override;
	size_t weight_row_bytes(DType, uint32_t cols) const override;
	void write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src) override;

	void embed(View out, View table, View tokens) override;
	void rmsnorm(View out, View x, View w, float eps) override;
	void matmul(std::span<const Proj>, View x, Epilogue, bool decode) override;
	void rope_store(View q, View k, View v, const RopeArgs&, const HeadNorm&, const KvDst& dst) override;
	void kv_store(const PromptKv& src, uint32_t n, const KvDst& dst) override;
	void kv_load(const PromptKv& dst, uint32_t n, const KvDst& src) override;
	void attend(View out, View q, const KvRead&) override;
	void attend_prompt(View out, View q, const PromptKv&, const KvRead* older) override;
	void kv_pack(const PromptKv& src, const PackArgs&) override;
	void kv_block(const PromptKv& src, const BlockArgs&) override;
	void score_prompt(View score, View q, View rows, const PromptKv&) override;
	void score_slots(View score, View q, View rows, View lse, const KvRead& f16) override;
	void channel_max(View out, View x) override;
	void kv_balance(View out, View q_max, const PromptKv&, uint32_t n) override;
	void copy(View dst, View src) override;

	void submit() override;
	void wait() override;
	std::vector<OpTime> op_times(bool reset) override { return rec_.op_times(reset); }
	void time_ops(bool on) override { rec_.time_dispatches(on); }

	const Caps& caps() const { return dev_.caps(); }
	Recorder& recorder() { return rec_; } // for tests
	Kernels& kernels() { return kernels_; }
	Memory& memory() { return mem_; }
	Device& device() { return dev_; }
	PipelineCache& cache() { return cache_; }

 private:
	void attend_pages(const char* label, View q, const KvRead&, bool prompt);
	void merge_parts(const char* label, View out, View lse, const KvRead&);
	// Rows of a weight that fit one binding: weights larger than maxStorageBufferRange are bound in pieces.
	uint32_t rows_per_binding(size_t row_bytes, uint64_t range) const;
	View aligned_rows(View x);
	void project(const Proj&, View x, uint32_t epilogue, bool decode);

	Device dev_;
	Memory mem_;
	PipelineCache cache_;
	Kernels kernels_;
	Recorder rec_;
	Buffer aligned_; // see aligned_rows()
	bool poison_;    // KVRUN_POISON
};

// How each op uses its kernels on a device; see KernelUse.
void basic_uses(const Caps&, std::vector<KernelUse>&);
void matmul_uses(const Caps&, std::vector<KernelUse>&);
void attend_uses(const Caps&, std::vector<KernelUse>&);
void kv_move_uses(const Caps&, std::vector<KernelUse>&);
void kv_pack_uses(const Caps&, std::vector<KernelUse>&);
void score_uses(const Caps&, std::vector<KernelUse>&);
inline void all_uses(const Caps& c, std::vector<KernelUse>& out) {
	basic_uses(c, out);
	matmul_uses(c, out);
	attend_uses(c, out);
	kv_move_uses(c, out);
	kv_pack_uses(c, out);
	score_uses(c, out);
}

struct KernelReport;
// Every use of every kernel, compiled on a device that need not have memory (RADV without hardware).
std::vector<KernelReport> compile_kernels(std::unique_ptr<Instance>, const Candidate&);

} // namespace kvrun::vk
