// Devices and memory plans, computed on a separate thread, because searching for drivers takes seconds.
#include "tools/desktop/planner.h"
#include "tools/api_device.h"
#include "tools/desktop/memory_choices.h"
#include "tools/text.h"
#include <utility>

namespace kvrun::desktop {

const std::vector<std::string> kUsualPolicies = [] {
	std::vector<std::string> out;
	for (const MemoryChoice& c : memory_choices()) out.push_back(c.kv);
	return out;
}();

namespace {

// weights: NULL: as kvrun_plan_memory() decides.
PolicyPlan plan_of(const PlanRequest& r, const std::string& kv, uint64_t memory_bytes, const ApiDevice& device,
                   const kvrun_weight_options* weights) {
	PolicyPlan out;
	out.kv = kv;
	kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
	o.model_path = r.model.c_str();
	o.kv = kv.c_str();
	o.ctx = r.ctx;
	o.memory_bytes = memory_bytes;
	o.device = &device.options;
	o.weights = weights;
	if (kvrun_plan_memory(&out.plan, &o) != KVRUN_OK) out.error = kvrun_last_error();
	return out;
}

Plan plan_all(const PlanRequest& r) {
	Plan out{r, {}};
	if (r.model.empty()) return out; // only the devices were requested
	try {
		const ApiDevice device(r.device);
		uint64_t memory = r.memory_bytes;
		const kvrun_weight_options* weights = nullptr;
		constexpr kvrun_weight_options fit = KVRUN_WEIGHT_OPTIONS_INIT;
		out.policies.push_back(plan_of(r, r.kv, memory, device, weights));
		for (const std::string& kv : kUsualPolicies) {
			if (kv == r.kv) continue;
			// the device is queried once: for its free memory, and whether it can read weights in host memory
			if (const PolicyPlan& first = out.policies.front(); !memory && first.error.empty()) {
				memory = first.plan.memory_bytes;
				if (first.plan.host_weight_bytes) weights = &fit;
			}
			out.policies.push_back(plan_of(r, kv, memory, device, weights));
		}
	} catch (const std::exception& e) { out.policies = {{r.kv, e.what(), KVRUN_PLAN_INIT}}; }
	return out;
}

std::vector<DeviceEntry> list_devices() {
	std::vector<DeviceEntry> out;
	kvrun_devices* list = nullptr;
	const ApiDevice device("");
	if (kvrun_devices_list(&list, &device.options) != KVRUN_OK) return {{"", "", "", kvrun_last_error(), 0}};
	for (size_t i = 0; i < kvrun_devices_count(list); ++i) {
		kvrun_device_info d = KVRUN_DEVICE_INFO_INIT;
		if (kvrun_devices_get(list, i, &d) == KVRUN_OK)
			out.push_back({d.name, d.backend, d.driver, d.refused, d.free_bytes});
	}
	kvrun_devices_free(list);
	return out;
}

} // namespace

std::string policy_fault(const std::string& model, const std::string& kv) {
	PlanRequest r;
	r.model = model, r.ctx = 1;
	try {
		const ApiDevice cpu("cpu");
		constexpr uint64_t kAmple = uint64_t(1) << 50; // the device is not asked
		const PolicyPlan plan = plan_of(r, kv, kAmple, cpu, nullptr);
		if (plan.error.empty() || !plan_of(r, "fp16", kAmple, cpu, nullptr).error.empty()) return {};
		return plan.error;
	} catch (const StatusError&) { return {}; }
}

Planner::Planner() : thread_([this] { run(); }) {}

Planner::~Planner() {
	{
		std::lock_guard lock(mutex_);
		ending_ = true;
	}
	wake_.notify_all();
	thread_.join();
}

void Planner::ask(const PlanRequest& r) {
	{
		std::lock_guard lock(mutex_);
		if (asked_ == r) return;
		asked_ = waiting_ = r;
		plan_.reset();
	}
	wake_.notify_all();
}

std::optional<Plan> Planner::plan() {
	std::lock_guard lock(mutex_);
	return plan_;
}

std::vector<DeviceEntry> Planner::devices() {
	std::lock_guard lock(mutex_);
	return devices_;
}

void Planner::run() {
	std::unique_lock lock(mutex_);
	for (;;) {
		wake_.wait(lock, [&] { return ending_ || waiting_; });
		if (ending_) return;
		const PlanRequest r = *std::exchange(waiting_, std::nullopt);
		const bool first = devices_.empty();
		lock.unlock();
		Plan plan = plan_all(r);
		std::vector<DeviceEntry> devices;
		try {
			if (first) devices = list_devices();
		} catch (const std::exception& e) { devices = {{"", "", "", e.what(), 0}}; }
		lock.lock();
		if (first) devices_ = std::move(devices);
		if (asked_ == r) plan_ = std::move(plan);
	}
}

} // namespace kvrun::desktop
