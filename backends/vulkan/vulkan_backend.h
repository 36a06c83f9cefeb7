// The Vulkan backend: each op chooses a kernel, fills its push struct, lists views and dispatches.
//
// ops_basic.cpp    rows of activations;   ops_matmul.cpp  projections, weights
// ops_experts.cpp  mixtures of experts
// ops_kv.cpp       keys and values into and out of pages
// ops_attend.cpp   attention
// ops_fetch.cpp    tokens that a row attends to most, largest logits, transfers
// ops_score.cpp    saliency, channel balancing
#pragma once
#include "backends/op_walk.h"
#include "backends/registry.h"
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/open_vulkan.h"
#include "backends/vulkan/pipeline_cache.h"
#include "backends/vulkan/recorder.h"

namespace kvrun::vk {

constexpr uint32_t kMergeCounters = 4096; // rows x KV heads of a step whose partial states attend.comp merges
constexpr uint32_t kMostRows = 32768;     // rows along one grid dimension, which may hold only 65535
inline bool aligned16(std::initializer_list<View> views) {
	for (const View& v : views)
		if (v.at % 16) return false;
	return true;
}

struct MatmulX {       // input of projections
	View x;            // (T, cols) f32
	View norm = {};    // (cols) f32, of the norm of x; empty: none
	float eps = 0;     // of the norm
	View rounded = {}; // x rounded, as rows_of_x(): see halve_rows.comp, round_rows.comp, round_vec.comp; empty: no
	View units = {};   // of round_rows.comp, round_vec.comp
	View grids = {};   // the table, for weights of types with grids
};

class VulkanBackend final : public Backend {
 public:
	VulkanBackend(std::unique_ptr<Instance>, const Candidate&, const BackendOptions&);
	~VulkanBackend() override;

	const char* name() const override { return "vulkan"; }
	DeviceInfo info() const override;
	Buffer alloc(size_t bytes, Mem, const char* label) override;
	void free(uint32_t id) noexcept override { rec_.retire(id); }
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override;
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override;
	size_t weight_row_bytes(DType, uint32_t cols) const override;
	bool arrange_weight(DType, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const override;
	void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                  std::span<const std::byte> arranged) override;

	void run(const Op&) override;
	bool norms_in_matmul(const op::NormMatmul&) const override;
	std::span<std::byte> host_bytes(const Buffer&) override;
	uint64_t transfer(View dst, View src) override;
	bool arrive(uint64_t transfer) override;

	void at_layer(uint32_t) override {}
	void submit() override;
	void wait() override;
	uint64_t mark() override;
	void wait_for(uint64_t mark) override;
	bool done(uint64_t mark) override { return rec_.done(mark); }
	std::vector<OpTime> op_times(bool reset) override { return rec_.op_times(reset); }
	void time_ops(bool on) override { rec_.time_dispatches(on); }
	std::vector<Tunable> tunables() const override { return vk::tunables(caps()); }
	void tune(std::string_view name, std::string_view value) override { KV_ASSERT(dev_.tune(name, value)); }

	const Caps& caps() const { return dev_.caps(); }
	Recorder& recorder() { return rec_; } // for tests
	Kernels& kernels() { return kernels_; }
	Memory& memory() { return mem_; }
	Device& device() { return dev_; }
	PipelineCache& cache() { return cache_; }

 private:
#define KV_COMPUTES(O) void compute(const op::O&);
	KV_EACH_OP(KV_COMPUTES)
#undef KV_COMPUTES
	Pipeline& pipeline(const Choice& c) { return kernels_.get(c.kernel, std::span(c.spec)); }
	void check_head_dim(uint32_t head_dim) const;
	static float score_scale(uint32_t head_dim); // 1 / sqrt(head_dim)
	void attend_pages(const char* label, View q, const KvRead&, bool prompt, View merged);
	void attend_latents(const char* label, View q, const KvRead&, bool prompt);
	void attend_own_latents(const op::AttendPrompt&);
	void weigh_latents(const op::Weigh&);
	bool merges_itself(View q, const KvRead&) const;
	View merge_counters();
	void merge_parts(const char* label, View out, View lse, const KvRead&);
	// Rows of a weight that fit one binding: weights larger than maxStorageBufferRange are bound in pieces.
	uint32_t rows_per_binding(size_t row_bytes, uint64_t range) const;
	View aligned_rows(View x);
	View grids();
	void prepare_rows(MatmulX&, std::span<const Proj>);
	void halve_rows(MatmulX&);
	void round_rows(MatmulX&);
	void round_vec(MatmulX&);
	void multiply(std::span<const Proj>, MatmulX, Epilogue, bool decode);
	void project(const Proj&, const MatmulX&, uint32_t epilogue, bool decode);
	bool binds_together(std::span<const Proj>) const;
	void multiply_experts(std::span<const Proj>, const MatmulX&, const ExpertRows&, uint32_t epilogue, bool decode);

	Device dev_;
	Memory mem_;
	PipelineCache cache_;
	Kernels kernels_;
	Recorder rec_;
	Buffer aligned_; // see aligned_rows()
	Buffer rounded_; // see prepare_rows()
	Buffer grids_;   // see grids()
	Buffer merge_counters_;
	bool counters_are_zero_ = false;
	bool poison_; // BackendOptions::poison
};

struct KernelReport;
// Every use of every kernel, compiled on a device that need not have memory (RADV without hardware).
std::vector<KernelReport> compile_kernels(std::unique_ptr<Instance>, const Candidate&, const BackendOptions&,
                                          const UseFilter&, bool assembly);

} // namespace kvrun::vk
