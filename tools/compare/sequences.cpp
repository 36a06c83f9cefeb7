// Token sequences of stages, and greedy decoding with the data that a comparison needs of each step.
#include "tools/compare/sequences.h"
#include "engine/core/splitmix64.h"
#include "tools/compare/compare.h"
#include "tools/eval/evaluate.h"
#include <algorithm>
#include <bit>
#include <cmath>

namespace kvrun::comparison {

std::string made_up_text(size_t bytes) {
	std::string text;
	for (uint32_t i = 0; text.size() < bytes; ++i) {
		const Question q = i % 2 ? needle_question(6, 1, i, i + 1) : recall_question(8, 1, i);
		text += q.record + q.query + q.answer + "\n";
	}
	text.resize(bytes);
	return text;
}

std::vector<uint32_t> some_tokens(const Engine& e, size_t n) {
	std::vector<uint32_t> out(n);
	for (size_t i = 0; i < n; ++i) out[i] = uint32_t(splitmix64(1 + i * kSplitmixStep) % e.config().vocab);
	return out;
}

std::vector<uint32_t> text_tokens(const Engine& e, size_t n) {
	std::vector<uint32_t> t = e.tokenizer().encode(made_up_text(n * 8));
	t.resize(std::min(t.size(), n));
	return t;
}

static Step look(std::span<const float> logits, uint64_t& hash) {
	size_t best = 0;
	double sum = 0, squares = 0;
	for (size_t i = 0; i < logits.size(); ++i) {
		hash = splitmix64(hash ^ std::bit_cast<uint32_t>(logits[i]));
		if (logits[i] > logits[best]) best = i;
		sum += double(logits[i]), squares += double(logits[i]) * double(logits[i]);
	}
	float second = -INFINITY;
	for (size_t i = 0; i < logits.size(); ++i)
		if (i != best) second = std::max(second, logits[i]);
	const double n = double(logits.size()), mean = sum / n;
	return {uint32_t(best), logits[best], logits[best] - second,
	        float(std::sqrt(std::max(0.0, squares / n - mean * mean)))};
}

std::vector<Step> greedy(Session& s, std::span<const uint32_t> prompt, uint32_t n, uint64_t& hash) {
	std::vector<Step> out;
	out.push_back(look(s.prefill(prompt), hash));
	while (out.size() < n) out.push_back(look(s.decode(out.back().token), hash));
	return out;
}

} // namespace kvrun::comparison
