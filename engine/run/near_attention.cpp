// Attention on the host, of rows that see few others.
#include "engine/run/near_attention.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

void to_shares(std::span<float> scores) {
	const float most = *std::ranges::max_element(scores);
	float sum = 0;
	for (float& s : scores) sum += s = std::exp(s - most);
	for (float& s : scores) s /= sum;
}

std::vector<float> attend_before(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                 const std::vector<float>& places, uint32_t n, uint32_t heads, uint32_t head_dim) {
	constexpr float kCap = 50; // of scores
	const size_t dim = size_t(heads) * head_dim;
	std::vector<float> out(n * dim);
	float weights[kRowsBefore];
	for (size_t t = 0; t < n; ++t)
		for (size_t h = 0; h < heads; ++h) {
			const uint32_t seen = uint32_t(std::min<size_t>(t + 1, kRowsBefore));
			const float* query = &q[t * dim + h * head_dim];
			for (uint32_t d = 0; d < seen; ++d) {
				const float *key = &k[(t - d) * dim + h * head_dim], *place = &places[d * dim + h * head_dim];
				float score = 0;
				for (uint32_t i = 0; i < head_dim; ++i) score += query[i] * (key[i] + place[i]);
				weights[d] = kCap * std::tanh(score / kCap);
			}
			to_shares({weights, seen});
			for (uint32_t d = 0; d < seen; ++d) {
				const float* value = &v[(t - d) * dim + h * head_dim];
				for (uint32_t i = 0; i < head_dim; ++i) out[t * dim + h * head_dim + i] += weights[d] * value[i];
			}
		}
	return out;
}

std::vector<float> attend_blocks(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                 const std::vector<float>& places, uint32_t n, uint32_t block, uint32_t heads,
                                 uint32_t head_dim) {
	const size_t dim = size_t(heads) * head_dim, distances = 2 * size_t(block) - 1;
	const float scale = 1 / std::sqrt(float(head_dim));
	std::vector<float> out(n * dim), keys(size_t(head_dim) * block), scores(block);
	for (size_t first = 0; first < n; first += block)
		for (size_t h = 0; h < heads; ++h) {
			const size_t m = std::min<size_t>(block, n - first);
			for (size_t r = 0; r < m; ++r) // channel by channel, so that the compiler takes several keys at once
				for (size_t i = 0; i < head_dim; ++i) keys[i * block + r] = k[(first + r) * dim + h * head_dim + i];
			for (size_t c = 0; c < m; ++c) {
				const size_t at = (first + c) * dim + h * head_dim;
				std::fill_n(scores.begin(), m, 0.f);
				for (size_t i = 0; i < head_dim; ++i) {
					const float query = q[at + i] * scale;
					const float *key = &keys[i * block], *place = &places[i * distances + block - 1 - c];
					for (size_t r = 0; r < m; ++r) scores[r] += query * (key[r] + place[r]);
				}
				to_shares(std::span(scores).first(m));
				for (size_t r = 0; r < m; ++r) {
					const float* value = &v[(first + r) * dim + h * head_dim];
					for (size_t i = 0; i < head_dim; ++i) out[at + i] += scores[r] * value[i];
				}
			}
		}
	return out;
}

std::vector<float> attend_groups(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                                 uint32_t asking, uint32_t asked, uint32_t heads, uint32_t head_dim) {
	const size_t dim = size_t(heads) * head_dim;
	const float scale = 1 / std::sqrt(float(head_dim));
	std::vector<float> out(q.size()), scores(asked);
	for (size_t t = 0; t < q.size() / dim; ++t)
		for (size_t h = 0; h < heads; ++h) {
			const size_t at = t * dim + h * head_dim, first = t / asking * asked * dim + h * head_dim;
			for (size_t r = 0; r < asked; ++r) {
				scores[r] = 0;
				for (size_t i = 0; i < head_dim; ++i) scores[r] += scale * q[at + i] * k[first + r * dim + i];
			}
			to_shares(scores);
			for (size_t r = 0; r < asked; ++r)
				for (size_t i = 0; i < head_dim; ++i) out[at + i] += scores[r] * v[first + r * dim + i];
		}
	return out;
}

} // namespace kvrun
