// kvrun bench --draft: generation with and without drafts, in turns.
#pragma once
#include "engine/run/draft_model.h"
#include "tools/args_draft.h"
#include "tools/output.h"
#include <functional>

namespace kvrun {

struct DraftBench {
	std::vector<KvPolicy> policies;
	std::vector<uint32_t> generate, depth; // tokens of an answer; tokens of its prompt, 0: kDraftPrompt
	uint32_t ctx = 0, draft_max = 0, repeat = 1;
	bool warm_up = true;
	std::string text; // the prompt, cut to the depth; empty: repeating tokens
};
constexpr uint32_t kDraftPrompt = 256; // tokens

struct DraftMeasured {
	std::string test, kv;
	std::vector<double> plain, drafted; // tokens per second of each run
	uint64_t draft_n = 0, accepted = 0; // tokens of one run
	bool same = true;                   // both gave the same tokens in every run
};
// Measures greedy answers. `all`: gets the finished results, also where Ctrl-C or an Error ends it. `progress`: current
// test and share done.
void bench_drafts(Engine&, DraftModel* small, const DraftBench&, std::vector<DraftMeasured>& all,
                  const std::function<void(const std::string&, double)>& progress);
void print_drafts(const std::vector<DraftMeasured>&);
Json drafts_json(const std::vector<DraftMeasured>&);

} // namespace kvrun
