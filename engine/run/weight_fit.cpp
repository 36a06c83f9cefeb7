// Chooses which weights move to host memory, so that a context under a policy fits the device.
#include "engine/run/weight_fit.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "engine/run/tuning_file.h"
#include <algorithm>

namespace kvrun {
namespace {

double gib(uint64_t bytes) { return double(bytes) / double(1 << 30); }

// Bytes with a unit: GiB, or MiB for small models.
std::string size_text(uint64_t bytes) {
	if (bytes < uint64_t(100) << 20) return fmt::format("{:.1f} MiB", double(bytes) / double(1 << 20));
	return fmt::format("{:.1f} GiB", gib(bytes));
}

class Fit {
 public:
	Fit(const Gguf& g, const Config& c, const FitGoal& goal, uint64_t free_bytes)
	    : file_(g), config_(c), goal_(goal), layers_(c), free_bytes_(fit_memory(free_bytes)),
	      tokens_(fit_tokens(c, goal.ctx)) {
		if (goal_.kv.empty()) goal_.kv = {parse_policy("fp16")};
	}
	// Whether the goal fits beside weights of this size.
	bool has_room(uint64_t weight_bytes) const {
		const ModelMemory m = model_memory(config_, weight_bytes, goal_.ubatch);
		const MemoryAccount account = memory_account(m, free_bytes_, tokens_);
		return std::ranges::all_of(goal_.kv, [&](const KvPolicy& p) {
			return account.cache >= (goal_.kv_budget ? goal_.kv_budget : cache_bytes(p, account.cache));
		});
	}

 private:
	// Bytes of a cache of the goal's tokens; UINT64_MAX: the policy cannot be resolved within the budget.
	uint64_t cache_bytes(const KvPolicy& p, uint64_t budget) const {
		try {
			const KvPolicy chosen =
			    is_choice(p) ? choose_policy(p, layers_.main_shape(), file_, tokens_, budget).policy : p;
			return bytes_at(plan_of_model(layers_, chosen, tokens_), tokens_).total();
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory) throw;
			return UINT64_MAX;
		}
	}
	const Gguf& file_;
	const Config& config_;
	FitGoal goal_;
	CacheLayers layers_;
	uint64_t free_bytes_, tokens_;
};

} // namespace

uint64_t fit_tokens(const Config& c, uint32_t ctx) { return ctx ? ctx : std::clamp(c.max_seq, 1u, kFitTokens); }

DeviceRoom room_of(const DeviceInfo& d) { return {d.name, d.free_bytes, d.shares_memory, d.mapped_bytes}; }

WeightPlan place_weights(const Gguf& g, const Config& c, const WeightPlan::RowBytes& row_bytes, const WeightOptions& o,
                         const FitGoal& goal, const DeviceRoom& room) {
	WeightPlan plan(g, c, row_bytes);
	WeightPlan asked = plan;
	asked.apply(o); // refuses wrong options on every device
	if (room.shares_memory) {
		if (asked.host_bytes())
			warn_once(fmt::format(
			    "{} shares the host's memory, where all weights lie: options that name a part of them change nothing",
			    one_line(room.name)));
		return plan;
	}
	if (!room.mapped_bytes) {
		if (asked.host_bytes())
			fail(Code::Unsupported,
			     "{} reads no weights in host memory; leave out --weights-budget, -ngl, --cpu-moe and --n-cpu-moe",
			     one_line(room.name));
		return plan;
	}
	plan = std::move(asked);
	if (o.fit) {
		const Fit fit(g, c, goal, room.free_bytes);
		while (!fit.has_room(plan.device_bytes()) && plan.move_next()) {}
	}
	if (plan.host_bytes() > room.mapped_bytes)
		fail(Code::OutOfMemory,
		     "{} of weights would lie in host memory, which has {} for {}; choose a smaller model, a smaller -c or a "
		     "--kv "
		     "with fewer bits",
		     size_text(plan.host_bytes()), size_text(room.mapped_bytes), one_line(room.name));
	return plan;
}

std::string weights_text(const WeightPlan& p, const std::string& device) {
	if (!p.host_bytes()) return {};
	return fmt::format("weights: {} of {} on {}, {} ({}) in host memory, read over the bus",
	                   size_text(p.device_bytes()), size_text(p.bytes()), one_line(device), size_text(p.host_bytes()),
	                   p.host_text());
}

} // namespace kvrun
