// Loss of each layer's keys and values in each format: attention's error on captured queries, converted to KL
// divergence by a few end-to-end measurements.
#pragma once
#include "engine/kv_host/choose.h"
#include "engine/run/session.h"
#include "engine/run/store_as.h"
#include "tools/eval/evaluate.h"
#include <functional>
#include <memory>

namespace kvrun {

// One chunk of text: a prompt, which the model reads once under an f16 cache, and the tokens after it.
class CapturedPrompt {
 public:
	// session: options of every sequence, except the policy. The last `scored` tokens follow the prompt. goes_on: asked
	// after every piece of a prompt; where it returns false, this and the functions below throw Stopped.
	CapturedPrompt(Engine&, const SessionOptions& session, std::span<const uint32_t> tokens, uint32_t scored,
	               std::function<bool()> goes_on = {});
	~CapturedPrompt();

	// Error of attention's output for the first kQueries tokens after the prompt, which the policy has packed: squared
	// error over the squared output with an f16 cache, per layer of the cache; the mean if several layers of the model
	// read it.
	std::vector<double> attention_error(const KvPolicy&);
	// Mean KL divergence of the next token relative to an f16 cache, over the tokens after the prompt. They go through
	// the model in pieces of kQueries tokens; attention inside a piece is exact.
	double kld(const KvPolicy&);
	static constexpr uint32_t kQueries = 64;
	struct Stopped {};

 private:
	void read(Session&, std::span<const uint32_t> tokens, PrefillHooks = {}) const;
	std::unique_ptr<Session> stored(const KvPolicy&);
	// Logits of all tokens after the prompt; queries of the first kQueries if requested.
	void go_on(Session&, const std::function<void(uint32_t row, std::span<const float> log_prob)>&,
	           std::vector<LayerQueries>* queries = nullptr);

	Engine& e_;
	const std::function<bool()> goes_on_;
	SessionOptions options_;
	std::vector<uint32_t> behind_;
	std::unique_ptr<Session> prompt_, all_; // f16: the prompt alone; all tokens
	std::vector<LayerQueries> queries_;     // per layer of the model; empty if the policy does not apply to its cache
	std::vector<std::vector<float>> exact_; // attention's output with f16
	std::vector<float> log_prob_;           // (scored, vocab) with f16
};

struct Budget { // the policy of --kv tuned:BITS
	double bits;
	std::string policy;                // empty: none
	std::string why;                   // reason for none
	double expected = 0, measured = 0; // KL divergence
};
struct Screened {
	Tuning tuning;
	std::vector<Budget> budgets;
	uint32_t chunks = 0, scored = 0; // scored tokens per chunk
	uint32_t end_to_end = 0;         // policies measured through the whole model, per chunk
};
struct ScreenOptions {
	uint32_t scored = 128;
	std::vector<double> budgets = {2, 2.5, 3, 4};
};
// Errors of attention are measured for every format, on either side of all layers at once. The KL divergence per error
// is measured per layer and side: one format there, 8 bits elsewhere. A cost is the product of both. The policies
// chosen for the budgets are measured too, and all costs are multiplied by the ratio of measured to expected. Throws
// Error{Invalid} if nothing is packed. The result is empty if a hook stopped it.
Screened screen_formats(Engine&, const SessionOptions& session, std::span<const std::vector<uint32_t>> chunks,
                        const ScreenOptions&, const EvalHooks& = {});

} // namespace kvrun
