// Chooses which weights move to host memory, so that a context under a policy fits the device.
#include "engine/run/weight_fit.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "engine/run/tuning_file.h"
#include <algorithm>
#include <cmath>
#include <optional>

namespace kvrun {
namespace {

// The ring: at most this share of what is in host memory, and an eighth of free memory, as a prompt block. Each of
// several devices has slots of its own.
RingSize ring_of(const WeightPlan& plan, double share, uint64_t free_bytes, uint32_t parts) {
	RingSize r = plan.ring_within(std::min(free_bytes / 8, uint64_t(share * double(plan.host_bytes()))) / parts);
	r.slots *= parts;
	return r;
}

double gib(uint64_t bytes) { return double(bytes) / double(1 << 30); }

// Bytes with a unit: GiB, or MiB for small models.
std::string size_text(uint64_t bytes) {
	if (bytes < uint64_t(100) << 20) return fmt::format("{:.1f} MiB", double(bytes) / double(1 << 20));
	return fmt::format("{:.1f} GiB", gib(bytes));
}

class Fit {
 public:
	Fit(const Gguf& g, const Config& c, const FitGoal& goal, uint64_t free_bytes, uint32_t parts)
	    : file_(g), config_(c), goal_(goal), layers_(c), free_bytes_(free_bytes), fit_bytes_(fit_memory(free_bytes)),
	      tokens_(fit_tokens(c, goal.ctx)), parts_(parts) {
		if (goal_.kv.empty()) goal_.kv = {parse_policy("fp16")};
	}
	// Moves weights until the goal fits; false: it does not, and none is left to move.
	bool fit(WeightPlan& plan, double ring) const {
		for (;;) {
			plan.set_ring(ring_of(plan, ring, free_bytes_, parts_));
			if (has_room(plan)) return true;
			if (!plan.move_next()) return false;
		}
	}
	// Bytes of a cache of the goal's tokens under a policy that is not a choice.
	uint64_t cache_bytes(const KvPolicy& p) const {
		return bytes_at(plan_of_model(layers_, p, tokens_), tokens_).total();
	}
	// Whether the goal fits beside the weights that the plan leaves on the device, and its ring.
	bool has_room(const WeightPlan& plan) const {
		const ModelMemory m = model_memory(config_, plan, goal_.ubatch);
		const MemoryAccount account = memory_account(m, fit_bytes_, tokens_);
		return !account.exceeded && std::ranges::all_of(goal_.kv, [&](const KvPolicy& p) {
			return account.cache >= (goal_.kv_budget ? goal_.kv_budget : bytes_within(p, account.cache));
		});
	}

 private:
	// Bytes of a cache of the goal's tokens; UINT64_MAX: the policy cannot be resolved within the budget.
	uint64_t bytes_within(const KvPolicy& p, uint64_t budget) const {
		try {
			const uint64_t left = budget - std::min(budget, index_bytes(layers_, tokens_));
			return cache_bytes(
			    choose_policy(p, layers_.policy_shape(), file_, tokens_ / layers_.policy_block(), left).policy);
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory) throw;
			return UINT64_MAX;
		}
	}
	const Gguf& file_;
	const Config& config_;
	FitGoal goal_;
	CacheLayers layers_;
	uint64_t free_bytes_, fit_bytes_, tokens_;
	uint32_t parts_;
};

// With `auto` a smaller cache leaves more weights on the device, and loses more. Of its steps this takes the one with
// the least log(time of a decode step) + KL divergence / kNats: a loss of 0.01 nats per token counts as 10 % of the
// time. On SmolLM2 4 bits lose 0.003, 3/2 bits 0.017 and 2/1 bits 0.09 nats. Where f16 moves nothing, nothing is
// weighed. The session then takes the best cache that fits beside these weights, which is this one or a better one.
WeightPlan weigh_auto(const Gguf& g, const Config& c, const WeightPlan& asked, double ring, const FitGoal& goal,
                      const DeviceRoom& room, std::string* trade) {
	constexpr double kNats = 0.1;
	constexpr double kBus = 25e9, kBandwidth = 300e9; // of a card whose rates are unknown; only their ratio matters
	const KvPolicy& choice = *std::ranges::find_if(goal.kv, is_auto);
	std::optional<WeightPlan> first, best;
	double least = 0;
	for (const CacheStep& step : auto_steps(choice, CacheLayers(c).policy_shape(), g)) {
		FitGoal own = goal;
		std::ranges::replace_if(own.kv, is_auto, step.policy);
		const Fit fit(g, c, own, room.free_bytes, room.parts);
		WeightPlan plan = asked;
		const bool fits = fit.fit(plan, ring);
		if (!first) first = plan;
		if (!fits && best) continue;
		if (first->host_bytes() == asked.host_bytes() && fits) return plan; // f16 fits as it is
		const double seconds = step_seconds(plan, fit.cache_bytes(step.policy), goal.bus > 0 ? goal.bus : kBus,
		                                    goal.bandwidth > 0 ? goal.bandwidth : kBandwidth),
		             cost = std::log(seconds) + step.kld / kNats;
		if (best && (cost >= least || !fits)) continue;
		best = plan, least = cost;
		if (trade) *trade = trade_text(step.policy, plan, *first);
	}
	return *best;
}

} // namespace

uint64_t fit_bytes(const Gguf& g, const Config& c, const FitGoal& goal) try {
	if (goal.kv_budget) return g.tensor_bytes() + goal.kv_budget;
	const Fit fit(g, c, goal, 0, 1);
	const KvPolicy f16 = parse_policy("fp16");
	uint64_t cache = 0;
	for (const KvPolicy& p : goal.kv.empty() ? std::vector{f16} : goal.kv)
		cache = std::max(cache, fit.cache_bytes(is_choice(p) ? f16 : p));
	return g.tensor_bytes() + cache;
} catch (const Error&) { // the session will say why
	return 0;
}

uint64_t fit_tokens(const Config& c, uint32_t ctx) { return ctx ? ctx : std::clamp(c.max_seq, 1u, kFitTokens); }

DeviceRoom room_of(const DeviceInfo& d) { return {d.name, d.free_bytes, d.shares_memory, d.mapped_bytes, d.parts}; }

WeightPlan place_weights(const Gguf& g, const Config& c, const WeightPlan::RowBytes& row_bytes, const WeightOptions& o,
                         const FitGoal& goal, const DeviceRoom& room, std::string* trade) {
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
	const double ring = o.ring;
	if (!o.fit) {
		plan = std::move(asked);
		plan.set_ring(ring_of(plan, ring, room.free_bytes, room.parts));
	} else if (!goal.kv_budget && std::ranges::any_of(goal.kv, is_auto)) {
		plan = weigh_auto(g, c, asked, ring, goal, room, trade);
	} else {
		plan = std::move(asked);
		(void)Fit(g, c, goal, room.free_bytes, room.parts).fit(plan, ring);
	}
	if (plan.host_bytes() > room.mapped_bytes)
		fail(Code::OutOfMemory,
		     "{} of weights would lie in host memory, which has {} for {}; choose a smaller model, a smaller -c or a "
		     "--kv "
		     "with fewer bits",
		     size_text(plan.host_bytes()), size_text(room.mapped_bytes), one_line(room.name));
	return plan;
}

double step_seconds(const WeightPlan& w, uint64_t cache_bytes, double bus, double bandwidth) {
	return double(w.host_token_bytes()) / bus + double(w.device_token_bytes() + cache_bytes) / bandwidth;
}

std::string trade_text(const KvPolicy& p, const WeightPlan& w, const WeightPlan& f16) {
	if (w.host_bytes() >= f16.host_bytes()) return {};
	uint32_t layers[kWeightParts] = {}; // layers that stay only with the policy
	for (const WeightGroup& g : f16.groups()) layers[int(g.part)] += g.in_host;
	for (const WeightGroup& g : w.groups()) layers[int(g.part)] -= g.in_host;
	constexpr const char* names[kWeightParts] = {"embedding", "experts", "MLP", "attention", "output"};
	std::string what;
	for (int i = 0; i < kWeightParts; ++i)
		if (layers[i])
			what += fmt::format("{}{}{}", what.empty() ? "" : ", ", names[i],
			                    i == int(WeightPart::Embedding) || i == int(WeightPart::Output)
			                        ? ""
			                        : fmt::format(" of {} more layer{}", layers[i], layers[i] == 1 ? "" : "s"));
	return fmt::format("{} frees {} against fp16: {} stay on the device, {} less over the bus per token",
	                   one_line(p.text), size_text(f16.host_bytes() - w.host_bytes()), what,
	                   size_text(f16.host_token_bytes() - w.host_token_bytes()));
}

std::string weights_text(const WeightPlan& p, const std::string& device) {
	if (!p.host_bytes()) return {};
	std::string out =
	    fmt::format("weights: {} of {} on {}, {} ({}) in host memory, read over the bus", size_text(p.device_bytes()),
	                size_text(p.bytes()), one_line(device), size_text(p.host_bytes()), p.host_text());
	if (p.ring().slots) out += fmt::format("; prompts copy them through {}", size_text(p.ring().bytes()));
	return out;
}

std::string rate_text(const WeightPlan& w, double bus, double bandwidth) {
	if (!w.host_bytes() || !(bus > 0) || !(bandwidth > 0)) return {};
	return fmt::format("at most {:.3g} tokens/s by {:.3g} GB/s of the bus and {:.3g} GB/s of the device",
	                   1 / step_seconds(w, 0, bus, bandwidth), bus / 1e9, bandwidth / 1e9);
}

} // namespace kvrun
