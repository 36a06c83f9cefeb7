// What a KV-cache policy costs in quality: perplexity and KL divergence on text, exact answers on look-up tasks.
#pragma once
#include "engine/run/session.h"
#include "tools/eval/statistics.h"
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvrun {

struct EvalHooks {
	std::function<bool(double done)> progress = {}; // 0 .. 1; false stops: what is complete so far is the result
};
struct EvalCost {           // of all sequences of one policy
	double stored_bits = 0; // per element of the cache, everything counted, mean over sequences
	double prefill_s = 0, decode_s = 0;
	uint64_t prefill_tokens = 0, decode_tokens = 0;
	double ratio() const { return stored_bits > 0 ? 16 / stored_bits : 0; } // against f16
	void add(const EvalCost& other, uint32_t sequences,
	         uint32_t other_sequences) { // numbers of sequences weigh the bits
		if (other_sequences)
			stored_bits =
			    (stored_bits * sequences + other.stored_bits * other_sequences) / (sequences + other_sequences);
		prefill_s += other.prefill_s, decode_s += other.decode_s;
		prefill_tokens += other.prefill_tokens, decode_tokens += other.decode_tokens;
	}
};

// ---- text. A prompt's own attention is exact under every policy, so a prompt alone measures nothing: each chunk of
// text is a prompt but for its last tokens, and those are scored one by one by decode steps, which read the cache as it
// is stored. KL divergence and agreement are against the same steps with an f16 cache.

// Part `index` of `of` parts of equal size, in order: what one of several machines measures.
struct Shard {
	uint32_t index = 0, of = 1;
	size_t begin(size_t n) const { return n * index / of; }
	size_t end(size_t n) const { return n * (size_t(index) + 1) / of; }
};

struct TextEvalOptions {
	uint32_t chunk = 512;  // tokens of a chunk, BOS included
	uint32_t scored = 256; // last tokens of a chunk that are scored
	uint32_t chunks = 0;   // most chunks; 0: as many as the text has
	// Policies that decode in one step where memory suffices, at most Engine::max_rows(). The results are the same, but
	// their speed is not measured (EvalCost::decode_s stays 0), and the model reads a prompt once for all policies that
	// do not rank (store_as).
	uint32_t together = 1;
	Shard shard = {}; // of the chunks
};
struct TextScore {
	std::string policy;
	std::vector<float> nll, kld; // (tokens scored) -ln p(token) and KL(f16 || policy) in nats, in the order of the text
	std::vector<uint8_t> agreed; // (tokens scored) 1: the most likely next token is the same as with f16
	double ppl = 0, ppl_error = 0;      // perplexity, its standard error
	double kld_mean = 0, kld_error = 0; // standard error of the mean, were tokens independent
	double kld_low = 0, kld_high = 0;   // 95 % interval of the mean (block_bootstrap)
	double kld_median = 0, kld_p99 = 0, kld_p999 = 0, kld_worst = 0;
	double top1 = 0; // share of `agreed`
	EvalCost cost;
};
struct TextResult {
	uint32_t chunks = 0, scored = 0; // measured under every policy; tokens scored of each chunk
	std::vector<TextScore> scores;   // fp16 first, then the policies in order
};
// Several texts under the same policies and options, as one.
TextResult pooled(std::span<const TextResult>);

// How much more KL divergence a policy has than another on the same tokens: mean and its 95 % interval.
struct KldDifference {
	double mean = 0, low = 0, high = 0;
};
KldDifference kld_difference(const TextScore&, const TextScore& base, uint32_t scored);

// tokens: without BOS. session: of every sequence, but for the policy. Throws Error{Invalid} when the tokens are too
// few for one chunk, Context when a chunk is too long.
TextResult eval_text(Engine&, const SessionOptions& session, std::span<const uint32_t> tokens,
                     std::span<const KvPolicy>, const TextEvalOptions&, const EvalHooks& = {});

// ---- tasks: questions with one right answer, greedy

struct Question {
	std::string record;                          // what is to be remembered
	std::string query;                           // ends where the answer begins
	std::string answer;                          // `loss` is of this one
	std::vector<std::string> other_answers = {}; // as right as `answer`
	double depth = 0;                            // place of the answer in the record, 0 .. 1
};
// `lines` named lines and a question about one of them, as the bundled model was trained to read. The same seed and
// index make the same question on every platform; the record's lines differ from index to index. asked: the line, else
// a random one. turns: questions about other lines with their right answers, which the query begins with.
Question recall_question(uint32_t lines, uint64_t seed, uint32_t index, std::optional<uint32_t> asked = {},
                         uint32_t turns = 0);
constexpr uint32_t kMostRecallLines = 10000;
// `n` records and questions about all their lines with the right answers, which a cache that loses detail answers
// wrongly first. Of a seed that no option can give, so that no evaluation asks what kvrun tune measured.
std::string tuning_records(uint32_t n);
// One such line among `sentences` sentences of filler, at a place that moves from start to end with index of n.
Question needle_question(uint32_t sentences, uint64_t seed, uint32_t index, uint32_t n);

enum class Ask : uint8_t {
	Prompt, // the question is part of the prompt, as in the papers; its last token is a decode step
	Later,  // the record alone is the prompt; decode steps ask
};
struct TaskScore {
	std::string policy;
	std::vector<uint8_t> right; // (questions asked) 0 or 1
	uint32_t n_right = 0;
	double low = 0, high = 0; // 95 % interval of the share of right answers (Wilson)
	std::vector<float> loss;  // (questions asked) mean -ln p of the right answer's tokens: tells more than `right`
	double loss_mean = 0, loss_error = 0; // of `loss`; standard error of the mean
	uint32_t longest = 0;                 // tokens of the longest sequence
	EvalCost cost;
};
// All questions under each policy in turn. Throws Error{Context} when one does not fit.
std::vector<TaskScore> eval_task(Engine&, const SessionOptions& session, std::span<const Question>,
                                 std::span<const KvPolicy>, Ask, const EvalHooks& = {});

} // namespace kvrun
