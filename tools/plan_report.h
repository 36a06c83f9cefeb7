// Reports of kvrun plan about a policy and a model: verdict, bytes by kind, ranked table; as text and JSON.
#pragma once
#include "engine/run/memory_plan.h"
#include "engine/run/weight_fit.h"
#include "tools/output.h"
#include <optional>

namespace kvrun {

struct PlanSubject {  // the model or shape that policies are planned for
	std::string name; // of the model, or the shape as typed
	KvShape shape;
	uint64_t n_tokens = 0;                  // tokens in the cache, given as one prompt
	bool requested = false;                 // n_tokens is from -c; otherwise it is a default
	ModelMemory model;                      // all 0 for a shape
	uint64_t prediction_bytes = 0;          // of the file's prediction layers, which --draft mtp loads
	std::optional<CacheLayers> layers = {}; // of a model; `shape` is that of its main cache
	std::string where;                      // "8.0 GiB given", or a device's name; empty if no memory is known
	uint64_t total_bytes = 0;               // free bytes of that memory
	DeviceRoom room = {};                   // the same memory, for placing weights
	std::optional<WeightPlan> weights = {}; // set if some lie in host memory
	std::string trade = {};                 // text: what a cache smaller than f16 keeps on the device; empty if nothing
	double bus = 0, bandwidth = 0;          // bytes per second of bus and device memory; 0 if unknown
	bool is_measured = false;               // it is the model of measured_quality()

	// No token has a position behind the last one of a table.
	bool beyond_training() const {
		return model.trained_tokens && n_tokens > model.trained_tokens && !model.positions_end;
	}
};

struct PlanVerdict {
	Capacity capacity;  // all 0 if no memory is known
	uint64_t kept = 0;  // number of the subject's tokens that the policy keeps
	bool known = false; // the memory is known
	bool fits = false;  // the memory suffices, and the policy evicts no token
};
PlanVerdict verdict_of(const KvPlan&, const PlanSubject&);
// Why no policy helps: everything except the cache already fills the memory; empty if it does not.
std::string why_no_cache(const PlanSubject&);
// "does NOT fit: 131072 tokens requested, 113000 fit"
std::string verdict_text(const KvPlan&, const PlanSubject&, const PlanVerdict&);

// Quality loss of a policy, measured on one model with exactly these options, however they are written. Says nothing
// about other options, and other models differ.
struct MeasuredQuality {
	const char* policy;
	double kld;  // mean KL divergence from an f16 cache, in nats per token
	double half; // half width of its 95 % confidence interval
};
extern const char *const kMeasuredModel, *const kMeasuredHow;
const MeasuredQuality* measured_quality(const KvPolicy&); // null if not measured
bool is_measured_model(const std::string& path, const std::string& name);

struct Planned {
	KvPlan plan;
	PlanVerdict verdict;
	PlanSubject subject;    // with its weights placed for this policy
	std::string asked = {}; // the policy as it was asked for: tuned:4.24
	double expected = -1;   // KL divergence that kvrun tune expects of a chosen policy; below 0: none
};
// Tokens per second of decode steps, estimated from bytes and rates at the subject's context; 0 if a rate is unknown.
double expected_rate(const KvPlan&, const PlanSubject&);
Json plan_json(const Planned&, const PlanSubject&);
void print_plan(const Planned&, const PlanSubject&);
// One row per policy, best first: those that fit, by measured quality and size; then the others, by the tokens they
// have room for.
void print_ranking(const std::vector<Planned>&, const PlanSubject&);

} // namespace kvrun
