// Quality loss of a KV-cache policy: perplexity and KL divergence on text, exact answers on look-up tasks.
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
	std::function<bool(double done)> progress = {}; // 0 .. 1; false stops: the result then has what is complete
	// Asked between the pieces of a prompt and the tokens of a question, where `done` does not grow; false stops, too.
	std::function<bool()> goes_on = {};
};
struct EvalCost {           // of all sequences of one policy
	double stored_bits = 0; // per element of the cache, overhead included, mean over sequences
	double f16_share = 0;   // of the tokens at a sequence's end, those that were still in f16; mean over sequences
	double prefill_s = 0, decode_s = 0;
	uint64_t prefill_tokens = 0, decode_tokens = 0;
	// Of these, what belongs to a first sequence with others behind it: it compiles pipelines.
	double first_prefill_s = 0, first_decode_s = 0;
	uint64_t first_prefill_tokens = 0, first_decode_tokens = 0;
	EvalCost timed() const { // without those: for speeds
		EvalCost c = *this;
		c.prefill_s -= first_prefill_s, c.decode_s -= first_decode_s;
		c.prefill_tokens -= first_prefill_tokens, c.decode_tokens -= first_decode_tokens;
		return c;
	}
	double ratio() const { return stored_bits > 0 ? 16 / stored_bits : 0; } // compression relative to f16
	void add(const EvalCost& other, uint32_t sequences,
	         uint32_t other_sequences) { // numbers of sequences weigh the bits
		const auto mean = [&](double& own, double x) {
			if (other_sequences) own = (own * sequences + x * other_sequences) / (sequences + other_sequences);
		};
		mean(stored_bits, other.stored_bits), mean(f16_share, other.f16_share);
		prefill_s += other.prefill_s, decode_s += other.decode_s;
		prefill_tokens += other.prefill_tokens, decode_tokens += other.decode_tokens;
		first_prefill_s += other.first_prefill_s, first_decode_s += other.first_decode_s;
		first_prefill_tokens += other.first_prefill_tokens, first_decode_tokens += other.first_decode_tokens;
	}
};

// ---- text. A prompt's own attention is exact under every policy, so a prompt alone shows no loss. Therefore the first
// tokens of a chunk are a prompt, and its last tokens are scored by decode steps, which read the stored cache. KL
// divergence and agreement are relative to the same steps with an f16 cache.

// Part `index` of `of` parts of equal size, in order: the share of one of several machines.
struct Shard {
	uint32_t index = 0, of = 1;
	size_t begin(size_t n) const { return n * index / of; }
	size_t end(size_t n) const { return n * (size_t(index) + 1) / of; }
};

struct TextEvalOptions {
	uint32_t chunk = 512;  // tokens of a chunk, BOS included
	uint32_t scored = 256; // last tokens of a chunk that are scored
	uint32_t chunks = 0;   // most chunks; 0: as many as the text has
	// Number of policies that decode in one step if memory suffices, at most Engine::max_rows(). Results are the same,
	// but speed is not measured (EvalCost::decode_s stays 0), and the model reads a prompt once for all policies that
	// do not rank (store_as).
	uint32_t together = 1;
	Shard shard = {}; // of the chunks
};
struct TextScore {
	std::string policy;
	std::vector<float> nll, kld; // (tokens scored) -ln p(token) and KL(f16 || policy) in nats, in the order of the text
	std::vector<uint8_t> agreed; // (tokens scored) 1: the most likely next token is the same as with f16
	double ppl = 0, ppl_error = 0;      // perplexity, its standard error
	double kld_mean = 0, kld_error = 0; // standard error of the mean if tokens were independent
	double kld_low = 0, kld_high = 0;   // 95 % interval of the mean (block_bootstrap)
	double kld_median = 0, kld_p99 = 0, kld_p999 = 0, kld_worst = 0;
	double top1 = 0; // share of `agreed`
	EvalCost cost;
};
struct TextResult {
	uint32_t chunks = 0, scored = 0; // chunks measured under every policy; scored tokens per chunk
	std::vector<TextScore> scores;   // fp16 first, then the policies in order
};
// Combines results of several texts under the same policies and options.
TextResult pooled(std::span<const TextResult>);

// Difference of KL divergence between two policies on the same tokens: mean and its 95 % interval.
struct KldDifference {
	double mean = 0, low = 0, high = 0;
};
KldDifference kld_difference(const TextScore&, const TextScore& base, uint32_t scored);

struct TextChunks {
	uint32_t first = 0, n = 0; // of the text; how many
};
// What eval_text() measures of a text of so many tokens. Throws Error{Invalid} if they are too few for one chunk, or
// for one of this shard, OutOfMemory if the host has no room for the predictions of all scored tokens of a chunk.
TextChunks chunks_of_text(const Engine&, size_t n_tokens, const TextEvalOptions&);

// tokens: without BOS. session: options of every sequence, except the policy. Throws as chunks_of_text(), and
// Error{Context} if a chunk is too long.
TextResult eval_text(Engine&, const SessionOptions& session, std::span<const uint32_t> tokens,
                     std::span<const KvPolicy>, const TextEvalOptions&, const EvalHooks& = {});

// ---- tasks: questions with one right answer, greedy

struct Question {
	std::string record;                          // text to remember
	std::string query;                           // ends where the answer begins
	std::string answer;                          // the answer whose loss is measured
	std::vector<std::string> other_answers = {}; // also right
	double depth = 0;                            // position of the answer in the record, 0 .. 1
};
// A record of `lines` named lines and a question about one of them, in the form that the bundled model was trained on.
// The same seed and index give the same question on every platform; each index has different lines. asked: the queried
// line, else a random one. turns: number of questions about other lines, with right answers, at the start of the query.
Question recall_question(uint32_t lines, uint64_t seed, uint32_t index, std::optional<uint32_t> asked = {},
                         uint32_t turns = 0);
constexpr uint32_t kMostRecallLines = 10000;
// `n` records with questions about all their lines and right answers: text on which a lossy cache fails early. The seed
// is one that no option can give, so that no evaluation repeats what kvrun tune measured.
std::string tuning_records(uint32_t n);
// One such line among `sentences` sentences of filler; its position moves from start to end as index goes from 0 to n.
Question needle_question(uint32_t sentences, uint64_t seed, uint32_t index, uint32_t n);

enum class Ask : uint8_t {
	Prompt, // the question is part of the prompt, as in the papers; its last token is decoded
	Later,  // only the record is the prompt; the question is decoded
};
struct TaskScore {
	std::string policy;
	std::vector<uint8_t> right; // (questions asked) 0 or 1
	uint32_t n_right = 0;
	double low = 0, high = 0; // 95 % interval of the share of right answers (Wilson)
	std::vector<float> loss;  // (questions asked) mean -ln p of the right answer's tokens: finer than `right`
	double loss_mean = 0, loss_error = 0; // of `loss`; standard error of the mean
	uint32_t longest = 0;                 // tokens of the longest sequence
	EvalCost cost;
};
// Asks all questions under each policy. together: number of questions in a row about one record (Ask::Later) that are
// decoded in one step, at most Engine::max_rows(). With more than one, answers and losses are the same, but speed is
// not measured, and the model reads a record once for all policies that do not rank (store_as). Throws Error{Context}
// if a question does not fit.
std::vector<TaskScore> eval_task(Engine&, const SessionOptions& session, std::span<const Question>,
                                 std::span<const KvPolicy>, Ask, uint32_t together = 1, const EvalHooks& = {});

} // namespace kvrun
