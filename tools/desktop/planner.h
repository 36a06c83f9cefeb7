// Devices and memory plans, computed on a separate thread, because searching for drivers takes seconds.
#pragma once
#include "engine/kvrun.h"
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kvrun::desktop {

struct PlanRequest {
	std::string model, device; // without a model only devices are searched
	std::string kv;            // a policy to plan beside the usual ones
	uint32_t ctx = 0;          // tokens; 0: the trained context
	uint64_t memory_bytes = 0; // in total; 0: the device's free memory
	bool operator==(const PlanRequest&) const = default;
};
struct PolicyPlan {
	std::string kv;
	std::string error; // why there is no plan; else empty
	kvrun_plan plan = KVRUN_PLAN_INIT;
};
struct Plan {
	PlanRequest request;
	std::vector<PolicyPlan> policies; // the requested one first
};
struct DeviceEntry {
	std::string name, backend, driver, refused; // refused: "" if it can be used
	uint64_t free_bytes = 0;
};

class Planner {
 public:
	Planner();
	~Planner(); // waits for the current plan
	Planner(const Planner&) = delete;

	void ask(const PlanRequest&);       // no effect if it equals the last request
	std::optional<Plan> plan();         // of the last request; nullopt: not ready
	std::vector<DeviceEntry> devices(); // empty: not ready

 private:
	void run();
	std::mutex mutex_; // protects all members below
	std::condition_variable wake_;
	std::optional<PlanRequest> asked_, waiting_;
	std::optional<Plan> plan_;
	std::vector<DeviceEntry> devices_;
	bool ending_ = false;
	std::thread thread_;
};

// Why a policy cannot be used with a model; empty: it can, or the model cannot be read.
std::string policy_fault(const std::string& model, const std::string& kv);

extern const std::vector<std::string> kUsualPolicies;

} // namespace kvrun::desktop
