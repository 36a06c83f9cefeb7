// Shared by tests of models that are divided over devices: several backends on one and the same device.
#pragma once
#include "backends/cpu/cpu_backend.h"
#include "backends/split_backend.h"
#include "tests/device/sequences.h"
#include <functional>

namespace kvrun {

// The device `pair`: several backends on one and the same device, which --device refuses. Their results are equal, so
// the bits of a split must be those of the device alone.
struct Pair {
	BackendOptions device;
	std::vector<uint32_t> layers;
	SplitBackend* opened = nullptr;
	bool last_fails = false;                             // the last device is a FailingBackend
	std::function<std::unique_ptr<Backend>()> open = {}; // replaces the device
};
inline Pair g_pair;

class FailingBackend final : public CpuBackend {
 public:
	FailingBackend() : CpuBackend(false) {}
	DeviceInfo info() const override {
		DeviceInfo i = CpuBackend::info();
		i.name = "failing card";
		return i;
	}
	void run(const Op& op) override {
		if (fails) fail(Code::Device, "the driver reset the device; open it again");
		CpuBackend::run(op);
	}
	static inline bool fails = false;
};

class PairSet final : public DeviceSet {
 public:
	PairSet() {
		reports_.emplace_back();
		reports_[0].backend = reports_[0].info.name = "pair";
	}
	std::unique_ptr<Backend> open(size_t) override {
		std::vector<SplitPart> parts;
		for (const uint32_t n : g_pair.layers)
			parts.push_back({g_pair.open ? g_pair.open() : open_backend(g_pair.device), n});
		if (g_pair.last_fails) parts.back().backend = std::make_unique<FailingBackend>();
		auto split = std::make_unique<SplitBackend>(std::move(parts));
		g_pair.opened = split.get();
		return split;
	}
};

inline std::unique_ptr<Engine> open_pair(const TestRow& row, const std::string& model, std::vector<uint32_t> layers,
                                         bool last_fails = false, const WeightOptions& weights = {},
                                         std::function<std::unique_ptr<Backend>()> open = {}) {
	static const bool added = [] {
		add_backend({"pair", false,
		             [](const BackendOptions&) -> std::unique_ptr<DeviceSet> { return std::make_unique<PairSet>(); }});
		return true;
	}();
	CHECK(added);
	g_pair = {select_test_device(row.device), std::move(layers), nullptr, last_fails, std::move(open)};
	EngineOptions o;
	o.model = model;
	o.backend.device = "pair";
	o.ubatch = 32;
	o.weights = weights;
	return Engine::open(o);
}

// 4 layers in quantised blocks.
inline const std::string kBlocks = "synth:llama-3.1-8b,layers=4,dim=256,hidden=512,vocab=1024:q4_k";

inline uint32_t layers_of(const std::string& model) { return read_config(Gguf::open(model)).n_layers; }

// Calls check(engine) with one layer on the first of two devices, and, where there are more than two layers, with a
// device for each.
template <class F> void with_divisions(const TestRow& row, const std::string& model, F&& check) {
	const uint32_t n = layers_of(model);
	REQUIRE(n >= 2);
	std::vector<std::vector<uint32_t>> divisions = {{1, n - 1}};
	if (n > 2) divisions.emplace_back(n, 1);
	for (const std::vector<uint32_t>& layers : divisions) {
		CAPTURE(layers.size());
		check(*open_pair(row, model, layers));
	}
}

} // namespace kvrun
