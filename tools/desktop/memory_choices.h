// "Memory for conversations": cache policies from quality to length, described in a user's words.
#pragma once
#include <string>
#include <vector>

namespace kvrun::desktop {

struct MemoryChoice {
	std::string kv;         // policy
	std::string name, what; // "Balanced"; one sentence
	double divergence = 0;  // KL from f16, nats per token
	double same_token = 1;  // share of tokens that equal those with f16
};

// From the best quality to the longest conversations. Losses were measured on SmolLM2-135M-Instruct, 1024 tokens of
// prose, dialogue and code each: tools/BENCHMARKS.md. A larger model loses less.
const std::vector<MemoryChoice>& memory_choices();
// The index of a policy among them; -1: it is another one.
int memory_choice_of(const std::string& kv);

} // namespace kvrun::desktop
