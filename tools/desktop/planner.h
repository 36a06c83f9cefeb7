// Devices and memory plans, computed on a thread of their own: looking for drivers takes seconds.
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
	std::string model, device; // no model: only the devices are looked for
	std::string kv;            // planned beside the usual policies
	uint32_t ctx = 0;          // tokens; 0: the trained context
	uint64_t memory_bytes = 0; // for everything; 0: what the device has free
	bool operator==(const PlanRequest&) const = default;
};
struct PolicyPlan {
	std::string kv;
	std::string error; // why there is no plan; empty: there is
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
	~Planner(); // after the plan under way
	Planner(const Planner&) = delete;

	void ask(const PlanRequest&);       // nothing where it is the one asked for last
	std::optional<Plan> plan();         // of the last request; nullopt: not yet
	std::vector<DeviceEntry> devices(); // empty: not yet

 private:
	void run();
	std::mutex mutex_; // of all that follow
	std::condition_variable wake_;
	std::optional<PlanRequest> asked_, waiting_;
	std::optional<Plan> plan_;
	std::vector<DeviceEntry> devices_;
	bool ending_ = false;
	std::thread thread_;
};

extern const std::vector<std::string> kUsualPolicies;

} // namespace kvrun::desktop
