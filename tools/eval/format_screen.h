// What each layer's keys and values lose in each format: attention's error on captured queries, turned into KL
// divergence by a few end-to-end measurements.
#pragma once
#include "engine/kv_host/choose.h"
#include "engine/run/session.h"
#include "tools/eval/evaluate.h"
#include <memory>

namespace kvrun {

// One chunk of text: a prompt, which the model reads once under an f16 cache, and the tokens behind it.
class CapturedPrompt {
 public:
	// session: of every sequence, but for the policy. The last `scored` tokens come behind the prompt.
	CapturedPrompt(Engine&, const SessionOptions& session, std::span<const uint32_t> tokens, uint32_t scored);
	~CapturedPrompt();

	// Attention's output for the first kQueries tokens behind the prompt, which the policy has packed: squared error
	// over the square of an f16 cache's output, by layer of the cache; where several layers of the model read it, their
	// mean.
	std::vector<double> attention_error(const KvPolicy&);
	// Mean KL divergence of the next token from an f16 cache's, over the tokens behind the prompt. They go through the
	// model in pieces of kQueries tokens, which see each other exactly.
	double kld(const KvPolicy&);
	static constexpr uint32_t kQueries = 64;

 private:
	std::unique_ptr<Session> stored(const KvPolicy&);
	// Logits of all tokens behind the prompt; queries of the first kQueries where they are asked for.
	void go_on(Session&, const std::function<void(uint32_t row, std::span<const float> log_prob)>&,
	           std::vector<std::vector<float>>* queries = nullptr);

	Engine& e_;
	SessionOptions options_;
	std::vector<uint32_t> behind_;
	std::unique_ptr<Session> prompt_, all_;   // f16: the prompt alone; all tokens
	std::vector<std::vector<float>> queries_; // by layer of the model; empty: its cache is not the policy's
	std::vector<std::vector<float>> exact_;   // attention's output with f16
	std::vector<float> log_prob_;             // (scored, vocab) with f16
};

struct Budget { // a policy that --kv tuned:BITS would be
	double bits;
	std::string policy;                // empty: there is none
	std::string why;                   // there is none
	double expected = 0, measured = 0; // KL divergence
};
struct Screened {
	Tuning tuning;
	std::vector<Budget> budgets;
	uint32_t chunks = 0, scored = 0; // tokens scored of each chunk
	uint32_t end_to_end = 0;         // policies that were measured through the whole model, of each chunk
};
struct ScreenOptions {
	uint32_t scored = 128;
	std::vector<double> budgets = {2, 2.5, 3, 4};
};
// Every format of either side of all layers together gives attention's errors; one format of each side of each layer
// alone, the others at 8 bits, gives the KL divergence that an error of that layer makes. Costs are the product,
// and what is chosen for a budget is measured, too: its ratio to what was expected multiplies all costs. Throws
// Error{Invalid} where nothing is packed. Nothing in the result where a hook stopped it.
Screened screen_formats(Engine&, const SessionOptions& session, std::span<const std::vector<uint32_t>> chunks,
                        const ScreenOptions&, const EvalHooks& = {});

} // namespace kvrun
