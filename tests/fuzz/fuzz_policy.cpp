// libFuzzer target: any text as cache policies, planned for some shape; then a sequence of prompts and tokens on a
// device made of lists, against plain references. The first byte chooses the shape, the next ones the numbers of
// tokens.
#include "engine/core/error.h"
#include "engine/kv_host/counts.h"
#include "tests/support/kv_sim.h"
#include <cstdio>
#include <cstdlib>

using namespace kvrun;

namespace {

// Numbers of kv heads are powers of two, so that means over heads are exact, and scores tie equally in both programs.
constexpr KvShape kShapes[] = {{4, 2, 64}, {3, 1, 128}, {2, 4, 80}, {5, 4, 96}, {1, 8, 32}, {2, 2, 48}};
constexpr size_t kSteps = 6; // of a sequence; an odd byte is a prompt

void simulate(const KvPlan& plan, std::span<const uint8_t> steps) {
	SimMemory memory(plan);
	{
		Sim sim(memory, 0);
		std::vector<Reference> refs; // (n_layers, n_kv_heads)
		for (uint32_t l = 0; l < plan.shape.n_layers; ++l)
			for (uint32_t h = 0; h < plan.shape.n_kv_heads; ++h) refs.emplace_back(plan, l, h);
		for (const uint8_t step : steps) {
			if (step == 0) continue;
			if (step % 2) {
				sim.prompt(step);
				for (Reference& r : refs) r.prompt(step, sim.prompt_rows.back());
			} else {
				for (uint8_t i = 0; i < step; ++i) {
					sim.decode(1);
					const bool scores = sim.cache.token_scores();
					for (Reference& r : refs) r.decode(scores);
				}
			}
			sim.verify();
			for (const Reference& r : refs)
				if (sim.cache.tiers(r.l, r.h) != r.tiers()) throw std::runtime_error("tiers differ from the reference");
		}
	}
	if (memory.used_bytes() != 0 || !memory.broken.empty())
		throw std::runtime_error("pages were left: " + memory.broken);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	if (size < 1 + kSteps) return 0;
	const KvShape shape = kShapes[data[0] % std::size(kShapes)];
	const std::span<const uint8_t> steps(data + 1, kSteps);
	const std::string_view text(reinterpret_cast<const char*>(data) + 1 + kSteps, size - 1 - kSteps);
	try {
		for (const KvPolicy& policy : parse_policies(text)) {
			if (parse_policy(policy.text).text != policy.text) std::abort(); // its own text has the same meaning
			simulate(make_plan(policy, shape), steps);
		}
	} catch (const Error& e) {
		if (e.code == Code::Internal) std::abort();
	} catch (const std::runtime_error& e) {
		std::fprintf(stderr, "%s\n", e.what());
		std::abort();
	}
	return 0;
}
