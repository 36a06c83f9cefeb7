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
	void write_weight(const View&, uint32_t, uint32_t, const WeightRows&, std::span<const std::byte>) override {}

	void run(const Op&) override { ++counted_.ops; }

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
