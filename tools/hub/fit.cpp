// Chooses the model of a repository that fits a device, by the computation of kvrun plan.
#include "tools/hub/fit.h"
#include "engine/core/utf8.h"
#include "engine/kv_host/policy.h"
#include "engine/run/memory_plan.h"
#include "tools/output.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr uint64_t kContext = 8192; // tokens for which there must be room
// More bits per weight hardly improve quality and cost speed; on a CPU more so, because its memory is slow.
constexpr double kMostBits = 8.75, kMostBitsOfCpu = 5.25;
constexpr uint64_t kGuessedRest = uint64_t(512) << 20; // bytes beside weights, if they are unknown

double most_bits(const DeviceInfo& d) { return d.is_cpu ? kMostBitsOfCpu : kMostBits; }

bool is_wide(const HubModel& m) { // judged by its name
	const std::string q = lower_case(m.quant);
	for (const char* end : {"f16", "bf16", "f32", "fp16", "fp32"})
		if (q.ends_with(end)) return true;
	return false;
}

uint64_t encoder_bytes(const HubModel& m) { return m.encoder ? m.encoder->bytes : 0; }

bool fits_by_size(const HubModel& m, const DeviceInfo& d) {
	return m.bytes() + m.bytes() / 8 + encoder_bytes(m) + kGuessedRest <= d.free_bytes;
}

bool fits(const HubModel& m, const DeviceInfo& d, const Config& c, const char* policy, uint64_t tokens) {
	ModelMemory memory = model_memory(c, m.bytes(), /*ubatch=*/512);
	memory.vision_bytes = encoder_bytes(m);
	const KvPlan plan = plan_of_model(CacheLayers(c), parse_policy(policy), tokens);
	return capacity(plan, memory, d.free_bytes).by_memory >= tokens;
}

} // namespace

const HubModel* guess_model(const std::vector<HubModel>& models, const DeviceInfo& d) {
	const HubModel* best = nullptr;
	for (const HubModel& m : models) // by size
		if (m.files.size() == 1 && (!best || (!is_wide(m) && fits_by_size(m, d)))) {
			const bool four = quant_of(m.files.front().path).find('4') != std::string::npos;
			if (!best || !d.is_cpu || four) best = &m;
		}
	return best;
}

Fit choose_model(const std::vector<HubModel>& models, const DeviceInfo& d, const Config* c, uint64_t parameters) {
	const auto narrow = [&](const HubModel& m) {
		return c && parameters ? double(m.bytes()) * 8 / double(parameters) <= most_bits(d) : !is_wide(m);
	};
	std::vector<const HubModel*> candidates;
	for (const HubModel& m : models)
		if (narrow(m)) candidates.push_back(&m);
	std::string among = fmt::format("of {}", models.size());
	if (candidates.empty())
		candidates.push_back(&models.front()); // all are wide
	else if (c && parameters && candidates.size() < models.size())
		among += fmt::format(", and of those of up to {} bits per weight,", most_bits(d));
	std::ranges::reverse(candidates);
	const std::string where = fmt::format("{} ({} free)", one_line(d.name), human_bytes(double(d.free_bytes)));
	const auto why = [&](const HubModel& m, const std::string& cache) {
		return fmt::format("{}, {}: the largest {} that fits {}{}", m.quant, human_bytes(double(m.bytes())), among,
		                   where, cache);
	};
	if (!c) {
		for (const HubModel* m : candidates)
			if (fits_by_size(*m, d)) return {m, why(*m, ", by its size")};
	} else {
		const uint64_t tokens = std::min<uint64_t>(kContext, std::max(c->max_seq, 1u));
		for (const char* policy : {"fp16", "kivi2"})
			for (const HubModel* m : candidates)
				if (fits(*m, d, *c, policy, tokens))
					return {m, why(*m, fmt::format(" with a cache of {} tokens under {}", tokens, policy))};
	}
	const HubModel& least = models.front();
	return {nullptr, fmt::format("the smallest of {}, {}, has {}, which do not fit {}", models.size(), least.quant,
	                             human_bytes(double(least.bytes())), where)};
}

} // namespace kvrun
