// rope_store, kv_store, kv_load, join_heads: move keys and values into and out of pages.
#include "backends/cpu/cpu_backend.h"
#include "engine/core/f16.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

void divide_by_rms(float* x, uint32_t head_dim, float eps) {
	double sum = 0;
	for (uint32_t c = 0; c < head_dim; ++c) sum += double(x[c]) * double(x[c]);
	const float scale = float(1 / std::sqrt(sum / head_dim + double(eps)));
	for (uint32_t c = 0; c < head_dim; ++c) x[c] *= scale;
}
void multiply(float* x, const float* w, uint32_t head_dim) {
	for (uint32_t c = 0; c < head_dim; ++c) x[c] *= w[c];
}

// Rotates the pairs of one head by the angles in cs, (rotary_dim / 2, 2) cos, sin.
void rotate_head(float* x, const float* cs, const RopeArgs& rope) {
	const uint32_t half = rope.rotary_dim / 2;
	x += rope.first;
	for (uint32_t i = 0; i < half; ++i) {
		float& a = x[rope.neox ? i : 2 * i];
		float& b = x[rope.neox ? i + half : 2 * i + 1];
		const float c = cs[2 * i], s = rope.back ? -cs[2 * i + 1] : cs[2 * i + 1], a0 = a, b0 = b;
		a = a0 * c - b0 * s;
		b = a0 * s + b0 * c;
	}
}

// One head: norm with weights w, if any, and rotation.
void prepare_head(float* x, const float* w, const float* cs, uint32_t head_dim, const HeadNorm& norm,
                  const RopeArgs& rope) {
	if (w) divide_by_rms(x, head_dim, norm.eps);
	if (w && !norm.weigh_last) multiply(x, w, head_dim);
	rotate_head(x, cs, rope);
	if (w && norm.weigh_last) multiply(x, w, head_dim);
}

uint32_t half_pair(float low, float high) { return f32_to_f16(low) | uint32_t(f32_to_f16(high)) << 16; }

// Where one head of one row is stored; null for K or V that is not stored.
struct Slot {
	uint32_t *k, *v;
};
Slot slot(const KvDst& dst, uint32_t* k, uint32_t* v, const uint32_t* at, uint32_t k_dim, uint32_t v_dim) {
	const size_t k_last = at[0] + size_t(k_dim / 2 - 1) * dst.k_word_stride, v_last = at[1] + size_t(v_dim / 2 - 1);
	KV_ASSERT(at[0] == kSkip || k_last < dst.k.elements());
	KV_ASSERT(at[1] == kSkip || v_last < dst.v.elements());
	return {at[0] == kSkip ? nullptr : k + at[0], at[1] == kSkip ? nullptr : v + at[1]};
}

} // namespace

void CpuBackend::compute(const op::RopeStore& o) {
	const auto& [q, k, v, rope, norm, dst] = o;
	const uint32_t T = q.shape[0], n_heads = q.shape[1], n_kv_heads = k.shape[1], D = q.shape[2];
	float* qs = data<float>(q);
	const float *ks = data<float>(k), *vs = data<float>(v), *table = data<float>(rope.table);
	const float* q_norm = norm.q ? data<float>(norm.q) : nullptr;
	const float* k_norm = norm.k ? data<float>(norm.k) : nullptr;
	uint32_t *k_words = data<uint32_t>(dst.k), *v_words = data<uint32_t>(dst.v);
	const uint32_t* at = data<uint32_t>(dst.at);
	const uint32_t k_dim = k.shape[2];
	std::vector<float> head(std::max(k_dim, D)), values(D);
	for (uint32_t t = 0; t < T; ++t) {
		const float* cs = table + size_t(t) * rope.rotary_dim;
		for (uint32_t h = 0; h < n_heads; ++h)
			prepare_head(qs + (size_t(t) * n_heads + h) * D, q_norm, cs, D, norm, rope);
		for (uint32_t h = 0; h < n_kv_heads; ++h) {
			const size_t row = size_t(t) * n_kv_heads + h;
			const Slot to = slot(dst, k_words, v_words, at + row * 2, k_dim, D);
			std::copy_n(ks + row * k_dim, k_dim, head.data());
			std::copy_n(vs + row * D, D, values.data());
			if (rope.of_values)
				rotate_head(values.data(), cs, rope);
			else
				prepare_head(head.data(), k_norm, cs, D, norm, rope);
			for (uint32_t w = 0; to.k && w < k_dim / 2; ++w)
				to.k[size_t(w) * dst.k_word_stride] = half_pair(head[2 * w], head[2 * w + 1]);
			for (uint32_t w = 0; to.v && w < D / 2; ++w) to.v[w] = half_pair(values[2 * w], values[2 * w + 1]);
		}
	}
}

// f(k, v, slot) for each head of rows [kv.first, kv.first + n) and its slot.
template <class F> void CpuBackend::each_slot(const KvRows& kv, uint32_t n, const KvDst& pages, F f) {
	const uint32_t n_kv_heads = kv.k.shape[0], T_cap = kv.k.shape[1], k_dim = kv.k.shape[2], v_dim = kv.v.shape[2];
	uint16_t *ks = data<uint16_t>(kv.k), *vs = data<uint16_t>(kv.v);
	uint32_t *k_words = data<uint32_t>(pages.k), *v_words = data<uint32_t>(pages.v);
	const uint32_t* at = data<uint32_t>(pages.at);
	for (uint32_t t = 0; t < n; ++t)
		for (uint32_t h = 0; h < n_kv_heads; ++h) {
			const size_t row = size_t(h) * T_cap + kv.first + t;
			f(ks + row * k_dim, vs + row * v_dim,
			  slot(pages, k_words, v_words, at + (size_t(t) * n_kv_heads + h) * 2, k_dim, v_dim));
		}
}

void CpuBackend::compute(const op::KvStore& o) {
	const auto& [src, n, dst] = o;
	const uint32_t k_words = src.k.shape[2] / 2, v_words = src.v.shape[2] / 2, stride = dst.k_word_stride;
	each_slot(src, n, dst, [&](const uint16_t* k, const uint16_t* v, const Slot& to) {
		for (uint32_t w = 0; to.k && w < k_words; ++w)
			to.k[size_t(w) * stride] = k[2 * w] | uint32_t(k[2 * w + 1]) << 16;
		for (uint32_t w = 0; to.v && w < v_words; ++w) to.v[w] = v[2 * w] | uint32_t(v[2 * w + 1]) << 16;
	});
}

// A head that is kSkip in `at` keeps what dst holds.
void CpuBackend::compute(const op::KvLoad& o) {
	const auto& [dst, n, src] = o;
	const uint32_t k_words = dst.k.shape[2] / 2, v_words = dst.v.shape[2] / 2, stride = src.k_word_stride;
	const auto put = [](uint16_t* to, uint32_t word) { to[0] = uint16_t(word), to[1] = uint16_t(word >> 16); };
	each_slot(dst, n, src, [&](uint16_t* k, uint16_t* v, const Slot& from) {
		for (uint32_t w = 0; from.k && w < k_words; ++w) put(k + 2 * w, from.k[size_t(w) * stride]);
		for (uint32_t w = 0; from.v && w < v_words; ++w) put(v + 2 * w, from.v[w]);
	});
}

void CpuBackend::compute(const op::JoinHeads& o) {
	const auto& [out, a, b, n] = o;
	const auto value = [this](const HeadRows& x, uint32_t t, uint32_t h, uint32_t c) {
		const size_t at = x.start() + size_t(t) * x.token_stride() + size_t(h) * x.head_stride() + c;
		return x.halves() ? f16_to_f32(data<uint16_t>(x.v)[at]) : data<float>(x.v)[at];
	};
	const uint32_t wide = out.channels(), from_a = a.channels(), joined = from_a + b.channels();
	for (uint32_t t = 0; t < n; ++t)
		for (uint32_t h = 0; h < out.n_heads(); ++h)
			for (uint32_t c = 0; c < wide; ++c) {
				float x = 0;
				if (c < from_a)
					x = value(a, t, h, c);
				else if (c < joined)
					x = value(b, t, b.n_heads() == 1 ? 0 : h, c - from_a);
				const size_t at = out.start() + size_t(t) * out.token_stride() + size_t(h) * out.head_stride() + c;
				if (out.halves())
					data<uint16_t>(out.v)[at] = f32_to_f16(x);
				else
					data<float>(out.v)[at] = x;
			}
}

} // namespace kvrun
