// Chooses which weights move to host memory, so that a context under a policy fits the device.
#pragma once
#include "backends/backend.h"
#include "engine/run/memory_plan.h"
#include "models/gguf.h"
#include "models/weight_plan.h"
#include <algorithm>
#include <limits>
#include <string>

namespace kvrun {

struct FitGoal {                   // what must fit beside the weights
	std::vector<KvPolicy> kv = {}; // each alone must fit; empty: f16
	uint32_t ctx = 0;              // tokens; 0: kFitTokens, or the trained context
	uint64_t kv_budget = 0;        // bytes of all caches; 0: one cache of `ctx` tokens
	uint32_t ubatch = 512;
	double bus = 0, bandwidth = 0; // bytes per second of bus and device memory, for `auto`; 0: unknown
};
constexpr uint32_t kFitTokens = 8192;
// Part of free memory for weights, activations and caches together; the rest is for staging and the driver.
constexpr uint64_t fit_memory(uint64_t free_bytes) {
	const uint64_t left = std::clamp(free_bytes / 8, uint64_t(32) << 20, uint64_t(256) << 20);
	return free_bytes - std::min(left, free_bytes / 2);
}
// Bytes of weights, and of the largest cache that must fit. A policy that is a choice counts as f16. 0: the model
// cannot be used with a policy.
uint64_t fit_bytes(const Gguf&, const Config&, const FitGoal&);
// Tokens of the context that must fit.
uint64_t fit_tokens(const Config&, uint32_t ctx);

struct DeviceRoom { // memory for weights, of a device or of a described one
	std::string name;
	uint64_t free_bytes = 0;
	bool shares_memory = false;
	uint64_t mapped_bytes = std::numeric_limits<uint64_t>::max(); // DeviceInfo::mapped_bytes
	uint32_t parts = 1;                                           // devices, which have a ring each
};
DeviceRoom room_of(const DeviceInfo&);

// Throws Error: Invalid for a budget that cannot be met, OutOfMemory if host memory has no room for the weights that
// leave the device, Unsupported if options ask for host memory and the device cannot read it. On a device that shares
// the host's memory all weights stay where they are.
// With `auto`, where f16 would move weights: weighs bits of the cache against weights on the device, for the expected
// time of a decode step with a full context and for the expected loss. `trade` gets trade_text() of what it found.
WeightPlan place_weights(const Gguf&, const Config&, const WeightPlan::RowBytes&, const WeightOptions&, const FitGoal&,
                         const DeviceRoom&, std::string* trade = nullptr);
// Seconds of a decode step by bytes and rates: weights in host memory over the bus, the other ones and the cache from
// device memory.
double step_seconds(const WeightPlan&, uint64_t cache_bytes, double bus, double bandwidth);
// "kivi2 frees 2.1 GiB against fp16: experts of 6 more layers stay on the device, 120.0 MiB less over the bus per
// token"; empty: nothing stays that would not with f16.
std::string trade_text(const KvPolicy&, const WeightPlan&, const WeightPlan& with_f16);
// "weights: 5.1 of 18.6 GiB on NAME, 13.5 GiB (experts of 40 layers) in host memory, read over the bus; prompts copy
// them through 680.0 MiB"; empty: all lie on the device.
std::string weights_text(const WeightPlan&, const std::string& device);
// "at most 8.3 tokens/s by 12.1 GB/s of the bus and 300 GB/s of the device": of decode steps without a cache. Empty: a
// rate is unknown, or all weights lie on the device.
std::string rate_text(const WeightPlan&, double bus, double bandwidth);

} // namespace kvrun
