// score_prompt, score_slots: attention received. A thread owns a token and adds the rows in order, as the cpu backend
// does; products are added in the same 16 lanes as there.
#include "backends/cuda/kernels.h"
#include "backends/cuda/page.cuh"

namespace kvrun::cuda::KV_CUDA_BUILD {

// Causal: row r sees tokens 0 .. first + r, or those of them whose bits are set. Grid: tokens in x, kv heads in y.
__global__ void score_prompt_kernel(ScorePromptArgs a) {
	const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y, D = a.head_dim;
	if (t >= a.n_tokens) return;
	const uint32_t share = a.n_heads / a.n_kv_heads;
	const Rows keys = {a.k + uint64_t(h) * a.t_cap * (D / 2), 0, D, a.n_tokens - 1};
	float& score = a.score[uint64_t(h) * a.stride + t];
	float sum = score;
	for (uint32_t i = 0; i < a.n_rows; ++i) {
		const uint32_t row = a.rows[i];
		if (t > a.first + row || !is_seen(a.seen, row, h, t)) continue;
		const uint64_t head = uint64_t(row) * a.n_heads + h * share;
		if (a.q_rope) {
			const uint32_t* v = a.v + uint64_t(h) * a.t_cap * (a.rope_dim / 2);
			const RopePart<Rows> rope = {a.q_rope + head * a.rope_dim, {v, 0, a.rope_dim, a.n_tokens - 1}, a.rope_dim};
			sum += received(a.q + head * D, a.lse + head, share, D, a.scores, keys, t, rope);
		} else {
			sum += salient(a.by, a.q + head * D, a.lse + head, share, D, a.scores, keys, t);
		}
	}
	score = sum;
}

// Live tokens of f16 pages. Grid: work items in x, kv heads in y; a thread per slot of a page.
__global__ void score_slots_kernel(ScoreSlotsArgs a) {
	const uint32_t* words = a.work + uint64_t(a.first_work + blockIdx.x) * SCORE_WORDS;
	const ScoreWork w = {words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
	const uint32_t t = threadIdx.x, h = blockIdx.y, D = a.head_dim, share = a.n_heads / a.n_kv_heads;
	if (t >= a.page) return;
	for (uint32_t p = 0; p < w.n_pages; ++p) {
		if (!is_live(a.tables + w.live + h * w.live_stride + p * 4, t)) continue;
		const PageKeys keys = {a.k_codes + a.tables[w.pages + p * 4], nullptr, kHalves, h, D, a.page, a.n_kv_heads};
		float& score = a.score[w.score + uint64_t(h) * w.score_stride + p * a.page + t];
		float sum = score;
		for (uint32_t r = w.first; r < w.first + w.n; ++r) {
			const uint64_t head = uint64_t(a.rows[r]) * a.n_heads + h * share;
			if (a.q_rope) {
				const PageValues values = {
				    {a.v_codes + a.tables[w.pages + p * 4 + 1], nullptr, kHalves, h, a.rope_dim, a.page, a.n_kv_heads},
				    nullptr};
				const RopePart<PageValues> rope = {a.q_rope + head * a.rope_dim, values, a.rope_dim};
				sum += received(a.q + head * D, a.lse + head, share, D, a.scores, keys, t, rope);
			} else {
				sum += salient(a.by, a.q + head * D, a.lse + head, share, D, a.scores, keys, t);
			}
		}
		score = sum;
	}
}

void add_score(Kernels& k) {
	k.score_prompt = {{KV_KERNEL(score_prompt, ScorePromptArgs)}};
	k.score_slots = {{KV_KERNEL(score_slots, ScoreSlotsArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
