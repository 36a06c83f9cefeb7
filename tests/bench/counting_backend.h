// A backend that counts ops and bytes written and computes nothing: what is left of a step's time is the host's part.
#pragma once
#include "backends/registry.h"

namespace kvrun {

struct Counted { // since the last take()
	uint32_t ops = 0, writes = 0, submits = 0;
	size_t bytes = 0; // written
};

// Memory is none: alloc() hands out ids, reads leave their destination as it is.
class CountingBackend final : public Backend {
 public:
	static Counted take() { return std::exchange(counted_, {}); }

	const char* name() const override { return "counting"; }
	DeviceInfo info() const override {
		DeviceInfo i;
		i.name = "counting", i.driver = "none", i.type = "discrete";
		i.memory_bytes = i.free_bytes = size_t(64) << 30;
		i.max_buffer_bytes = i.max_view_bytes = size_t(2) << 30;
		return i;
	}
	Buffer alloc(size_t bytes, Mem, const char*) override { return {*this, next_id_++, bytes}; }
	void free(uint32_t) noexcept override {}
	void write(const Buffer&, size_t, std::span<const std::byte> src) override {
		++counted_.writes, counted_.bytes += src.size();
	}
	void read(const Buffer&, size_t, std::span<std::byte>) override { ++counted_.ops; }
	std::span<std::byte> host_bytes(const Buffer& b) override {
		host_.resize(std::max(host_.size(), b.bytes()));
		return std::span(host_).first(b.bytes());
	}
	uint64_t transfer(View, View) override { return ++counted_.ops; }
	bool arrive(uint64_t) override { return true; }
	size_t weight_row_bytes(DType t, uint32_t cols) const override { return dtype_row_bytes(t, cols); }
	void write_weight(const View&, uint32_t, uint32_t, std::span<const std::byte>,
	                  std::span<const std::byte>) override {}

	void embed(View, View, View) override { ++counted_.ops; }
	void rmsnorm(View, View, View, float) override { ++counted_.ops; }
	void layer_norm(View, View, View, View, float) override { ++counted_.ops; }
	void activate(View, View, View, const Elementwise&) override { ++counted_.ops; }
	void matmul(std::span<const Proj>, View, Epilogue, bool) override { ++counted_.ops; }
	void route(View, View, View, const RouteArgs&) override { ++counted_.ops; }
	void sort_slots(View, View, uint32_t) override { ++counted_.ops; }
	void expert_matmul(std::span<const Proj>, View, const ExpertRows&, Epilogue, bool) override { ++counted_.ops; }
	void expert_sum(View, View, View) override { ++counted_.ops; }
	void rope_store(View, View, View, const RopeArgs&, const HeadNorm&, const KvDst&) override { ++counted_.ops; }
	void kv_store(const KvRows&, uint32_t, const KvDst&) override { ++counted_.ops; }
	void kv_load(const KvRows&, uint32_t, const KvDst&) override { ++counted_.ops; }
	void attend(View, View, View, const KvRead&) override { ++counted_.ops; }
	void attend_prompt(View, View, View, const KvRows&, const KvRead*) override { ++counted_.ops; }
	void kv_pack(const KvRows&, const PackArgs&) override { ++counted_.ops; }
	void kv_block(const KvRows&, const BlockArgs&) override { ++counted_.ops; }
	void score_prompt(View, View, View, View, const KvRows&, Saliency) override { ++counted_.ops; }
	void score_slots(View, View, const ScoreArgs&) override { ++counted_.ops; }
	void channel_max(View, View) override { ++counted_.ops; }
	void kv_balance(View, View, const KvRows&, uint32_t) override { ++counted_.ops; }
	void copy(View, View) override { ++counted_.ops; }
	void weigh(View, View, const WeighArgs&) override { ++counted_.ops; }
	void top_k(View, View, View) override { ++counted_.ops; }
	void candidates(View, View, View, uint32_t) override { ++counted_.ops; }
	void scatter(View, View) override { ++counted_.ops; }
	void part_share(View, View, View) override { ++counted_.ops; }

	void at_layer(uint32_t) override {}
	void submit() override { ++counted_.submits; }
	void wait() override {}
	uint64_t mark() override { return ++counted_.submits; }
	void wait_for(uint64_t) override {}
	bool done(uint64_t) override { return true; }
	std::vector<OpTime> op_times(bool) override { return {}; }
	void time_ops(bool) override {}

 private:
	static inline Counted counted_;
	uint32_t next_id_ = 1;
	std::vector<std::byte> host_;
};

} // namespace kvrun
