// What kvrun plan says about a policy and a model: verdict, account of every byte, ranked table; as text and JSON.
#pragma once
#include "engine/run/memory_plan.h"
#include "engine/run/weight_fit.h"
#include "tools/output.h"
#include <optional>

namespace kvrun {

struct PlanSubject {  // what policies are planned for
	std::string name; // of the model, or the shape as typed
	KvShape shape;
	uint64_t n_tokens = 0;                  // in the cache, given as one prompt
	bool requested = false;                 // by -c, else a default
	ModelMemory model;                      // all 0 for a shape
	std::optional<CacheLayers> layers = {}; // of a model; `shape` is the one of its main cache
	std::string where;                      // "8.0 GiB given", or a device's name; empty: no memory is known
	uint64_t total_bytes = 0;               // free there
	DeviceRoom room = {};                   // the same, for weights
	std::optional<WeightPlan> weights = {}; // some lie in host memory
	std::string trade = {};                 // what a smaller cache than f16 keeps on the device; empty: nothing
	double bus = 0, bandwidth = 0;          // bytes per second of bus and device memory; 0: not known
};

struct PlanVerdict {
	Capacity capacity;  // all 0 where no memory is known
	uint64_t kept = 0;  // of the subject's tokens
	bool known = false; // there is a memory to judge by
	bool fits = false;  // the memory, the trained context, and the policy forgets none of the tokens
};
PlanVerdict verdict_of(const KvPlan&, const PlanSubject&);
// Why no policy helps: what is there beside the cache takes all memory; empty: it does not.
std::string why_no_cache(const PlanSubject&);
// "does NOT fit: 131072 tokens requested, 113000 fit"
std::string verdict_text(const KvPlan&, const PlanSubject&, const PlanVerdict&);

// What a policy costs, as measured on one model under exactly these options: nothing is said of other options, and
// other models differ.
struct MeasuredQuality {
	const char* policy;
	double kld;  // mean KL divergence from an f16 cache, in nats per token
	double half; // of its 95 % interval
};
extern const char *const kMeasuredModel, *const kMeasuredHow;
const MeasuredQuality* measured_quality(const KvPolicy&); // null: not measured

struct Planned {
	KvPlan plan;
	PlanVerdict verdict;
	PlanSubject subject; // with its weights as this policy leaves them room
};
// "kivi2 frees 2.1 GiB of the card: experts of 6 more layers stay there"; empty: nothing stays that would not with f16.
std::string trade_text(const KvPolicy&, const WeightPlan&, const WeightPlan& with_f16);
// Tokens per second of decode steps by bytes and rates alone, at the subject's context; 0: a rate is not known.
double expected_rate(const KvPlan&, const PlanSubject&);
Json plan_json(const Planned&, const PlanSubject&);
void print_plan(const Planned&, const PlanSubject&);
// One row per policy, best first: those that fit, by measured quality and size; then the others, by the tokens they
// have room for.
void print_ranking(const std::vector<Planned>&, const PlanSubject&);

} // namespace kvrun
