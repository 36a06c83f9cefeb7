// attend, attend_prompt: pages of any format decoded one at a time, a softmax state per row and query head;
// unpack_latents.
#include "backends/cpu/cpu_backend.h"
#include "engine/core/block_quant.h"
#include "engine/core/f16.h"
#include "engine/kv_host/quant.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace kvrun {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// ---- attention states: D channels of unnormalised output, then the maximum of the scores and the sum of the weights,
// as in KvRead::parts. A state of no tokens is all zero with maximum -inf.

void clear_state(float* s, uint32_t D) {
	std::fill(s, s + D + 2, 0.f);
	s[D] = kMinusInf;
}

void rescale(float* s, uint32_t D, float max) {
	const float f = s[D] == kMinusInf ? 0.f : std::exp(s[D] - max);
	for (uint32_t c = 0; c < D; ++c) s[c] *= f;
	s[D + 1] *= f;
	s[D] = max;
}

// Adds n tokens with the given scores; values of the i-th are v[token[i]], or v[i] without a token list.
void add_tokens(float* s, uint32_t D, const float* score, const uint32_t* token, uint32_t n, const float* v) {
	if (n == 0) return;
	float max = s[D];
	for (uint32_t i = 0; i < n; ++i) max = std::max(max, score[i]);
	rescale(s, D, max);
	double sum = 0;
	for (uint32_t i = 0; i < n; ++i) {
		const float p = std::exp(score[i] - max);
		const float* row = v + size_t(token ? token[i] : i) * D;
		sum += double(p);
		for (uint32_t c = 0; c < D; ++c) s[c] += p * row[c];
	}
	s[D + 1] += float(sum);
}

void merge_state(float* s, uint32_t D, const float* other) {
	if (other[D] == kMinusInf && other[D + 1] == 0) return; // where all scores are NaN, the sum is
	const float max = std::max(s[D], other[D]), f = std::exp(other[D] - max);
	rescale(s, D, max);
	for (uint32_t c = 0; c < D; ++c) s[c] += f * other[c];
	s[D + 1] += f * other[D + 1];
}

// Merges the parts of one row, except its last `skip`, in order; row_parts is its (first part, number of parts).
void merge_parts(float* s, uint32_t D, const float* parts, uint32_t n_parts, const uint32_t* row_parts, uint32_t skip,
                 uint32_t n_heads, uint32_t head) {
	const uint32_t first = row_parts[0], n = row_parts[1];
	KV_ASSERT(n >= skip && uint64_t(first) + n <= n_parts);
	for (uint32_t p = first; p < first + n - skip; ++p)
		merge_state(s, D, parts + (size_t(p) * n_heads + head) * (D + 2));
}

// Adds one more score, without a value.
void add_sink(float* s, uint32_t D, float sink) {
	rescale(s, D, std::max(s[D], sink));
	s[D + 1] += std::exp(sink - s[D]);
}

// Attention over nothing is zero.
void finish_state(float* out, const float* s, uint32_t D) {
	const float inv = s[D + 1] > 0 ? 1 / s[D + 1] : 0.f;
	for (uint32_t c = 0; c < D; ++c) out[c] = s[c] * inv;
}

// ---- pages -> floats

// Parameters that decode the codes of one head of a token: x = code * scale[c] + zero[c]  (engine/kv_host/quant.h).
struct Meanings {
	std::vector<float> scale, zero; // (head_dim)
	explicit Meanings(uint32_t D) : scale(D), zero(D) {}
	void set(const ParamPage& p, uint32_t head, uint32_t t) {
		for (uint32_t c = 0, last = UINT32_MAX; c < p.head_dim; ++c) {
			const uint32_t i = p.param_of(head, c, t);
			const Meaning m = i == last ? Meaning{scale[c - 1], zero[c - 1]} : p.meaning(head, c, t);
			scale[c] = m.scale, zero[c] = m.zero;
			last = i;
		}
	}
	// A token and head of a page with norms.
	void set_prescale(const NormPage& p, uint32_t head, uint32_t t) {
		std::fill(scale.begin(), scale.end(), p.norm(head, t));
		for (uint32_t c = 0; c < zero.size(); ++c) zero[c] = p.mean(head, c);
	}
	void codebook_values(const uint32_t* words, uint32_t stride, uint32_t bits, float* x) const {
		float value[16];
		for (uint32_t i = 0; i < 1u << bits; ++i) value[i] = codebook_value(i, bits);
		const uint32_t D = uint32_t(scale.size());
		for (uint32_t c = 0; c < D; ++c) x[c] = value[token_code(words, stride, D, bits, c)] * scale[c] + zero[c];
	}
	// One token: its words are `stride` apart.
	void values(const uint32_t* words, uint32_t stride, uint32_t bits, float* x) const {
		switch (bits) {
		case 1: return values_of<1>(words, stride, x);
		case 2: return values_of<2>(words, stride, x);
		case 3:
			for (uint32_t c = 0; c < scale.size(); ++c)
				x[c] = float(token_code(words, stride, uint32_t(scale.size()), 3, c)) * scale[c] + zero[c];
			return;
		case 4: return values_of<4>(words, stride, x);
		case 8: return values_of<8>(words, stride, x);
		}
		fail(Code::Unsupported, "codes of {} bits in the cpu backend; 1, 2, 3, 4 and 8 can be read", bits);
	}

 private:
	template <uint32_t Bits> void values_of(const uint32_t* words, uint32_t stride, float* x) const {
		constexpr uint32_t kPerWord = 32 / Bits, kMask = (1u << Bits) - 1;
		const uint32_t D = uint32_t(scale.size());
		for (uint32_t c = 0; c < D; c += kPerWord, words += stride)
			for (uint32_t i = 0; i < std::min(kPerWord, D - c); ++i)
				x[c + i] = float(int(*words >> i * Bits & kMask)) * scale[c + i] + zero[c + i];
	}
};

// log of the sum of exp(score) of a state
float log_sum(const float* s, uint32_t D) { return s[D + 1] > 0 ? s[D] + std::log(s[D + 1]) : kMinusInf; }

} // namespace

void CpuBackend::load_k(const PageShape& s, const AttendGroup& g, const uint32_t* entry, uint32_t head,
                        float* tile) const {
	const Quant& q = g.format.k;
	const uint32_t D = s.head_dim;
	const uint32_t* codes =
	    page_words(data<uint32_t>(g.k_codes), g.k_codes, entry[0], kv_code_words(s.n_kv_heads, D, q.bits, g.page));
	if (q.bits == 16) {
		float pair[2 * 128]; // channels 2w, 2w + 1 of every token of the page
		for (uint32_t w = 0; w < D / 2; ++w) {
			dequantise_row(DType::F16, reinterpret_cast<const std::byte*>(codes + kv_k_word(head, w, 0, D, 16, g.page)),
			               pair, 2 * g.page);
			for (uint32_t t = 0; t < g.page; ++t) {
				tile[size_t(t) * D + 2 * w] = pair[2 * t];
				tile[size_t(t) * D + 2 * w + 1] = pair[2 * t + 1];
			}
		}
		return;
	}
	const bool per_channel = q.scale == Scale::PerChannel;
	const uint32_t* params =
	    page_words(data<uint32_t>(g.k_params), g.k_params, entry[2], page_param_words(q, s.n_kv_heads, D, g.page));
	const ParamPage of{q, params, s.n_kv_heads, D, g.page};
	Meanings m(D);
	if (per_channel) m.set(of, head, 0);
	for (uint32_t t = 0; t < g.page; ++t) {
		const uint32_t* words = codes + kv_k_word(head, 0, t, D, q.bits, g.page);
		if (q.scale == Scale::Codebook) {
			m.set_prescale({q, params, s.n_kv_heads, D, g.page}, head, t);
			m.codebook_values(words, /*stride=*/g.page, q.bits, tile + size_t(t) * D);
			continue;
		}
		if (!per_channel) m.set(of, head, t);
		m.values(words, /*stride=*/g.page, q.bits, tile + size_t(t) * D);
	}
}

void CpuBackend::load_v(const PageShape& s, const AttendGroup& g, const uint32_t* entry, uint32_t factors_at,
                        uint32_t head, float* tile) const {
	const Quant& q = g.format.v;
	const uint32_t D = s.head_dim;
	const uint32_t* codes =
	    page_words(data<uint32_t>(g.v_codes), g.v_codes, entry[1], kv_code_words(s.n_kv_heads, D, q.bits, g.page));
	if (q.bits == 16) {
		dequantise_row(DType::F16, reinterpret_cast<const std::byte*>(codes + kv_v_word(head, 0, 0, D, 16, g.page)),
		               tile, size_t(g.page) * D);
		return;
	}
	const uint32_t* params =
	    page_words(data<uint32_t>(g.v_params), g.v_params, entry[3], page_param_words(q, s.n_kv_heads, D, g.page));
	std::vector<float> factor(D, 1.f); // multiplies a channel
	if (q.prescale == Prescale::SqrtMax) {
		const uint32_t* factors =
		    page_words(data<uint32_t>(g.v_factors), g.v_factors, factors_at, kv_factor_words(s.n_kv_heads, D));
		for (uint32_t c = 0; c < D; ++c)
			factor[c] = f16_to_f32(uint16_t(factors[kv_factor_word(head, c, D)] >> 16 * kv_factor_half(head, c, D)));
	}
	const ParamPage of{q, params, s.n_kv_heads, D, g.page};
	Meanings m(D);
	for (uint32_t t = 0; t < g.page; ++t) {
		const uint32_t* words = codes + kv_v_word(head, t, 0, D, q.bits, g.page);
		float* x = tile + size_t(t) * D;
		if (q.scale == Scale::Codebook) {
			m.set_prescale({q, params, s.n_kv_heads, D, g.page}, head, t);
			m.codebook_values(words, /*stride=*/1, q.bits, x);
			continue;
		}
		m.set(of, head, t);
		m.values(words, /*stride=*/1, q.bits, x);
		for (uint32_t c = 0; c < D; ++c) x[c] *= factor[c];
	}
}

// The partial states of one work item, all heads: softmax weights of the live tokens of its pages, not yet
// normalised. Pages are decoded once for all rows of the item.
void CpuBackend::attend_work(const View& q, const KvRead& kv, const AttendGroup& g, const AttendWork& w) {
	const uint32_t n_heads = q.shape[1], D = q.shape[2], share = n_heads / kv.n_kv_heads;
	KV_ASSERT(w.row < q.shape[0]);
	const uint32_t n_rows = std::min(kv.item_rows, q.shape[0] - w.row);
	KV_ASSERT(w.part + uint64_t(n_rows - 1) * kv.part_step < kv.parts.shape[0]);
	const size_t row_size = size_t(n_heads) * D, state_size = size_t(n_heads) * (D + 2);
	const float* first = data<float>(q) + w.row * row_size;
	std::vector<float> qs(first, first + n_rows * row_size);
	if (g.format.k.prescale == Prescale::Balance) { // keys were multiplied by the balancer before quantisation
		const uint16_t* b = halves(kv.balance, w.balance, kv.n_kv_heads * D);
		for (size_t i = 0; i < qs.size(); ++i) qs[i] /= f16_to_f32(b[i % row_size / D / share * D + i % D]);
	}
	if (g.format.k.bits < 16 && g.format.k.rotate) // as the keys are
		for (size_t i = 0; i < qs.size(); i += D) rotate(std::span(qs).subspan(i, D));
	const auto state = [&](uint32_t row, uint32_t head) {
		return data<float>(kv.parts) + (w.part + size_t(row) * kv.part_step) * state_size + size_t(head) * (D + 2);
	};
	const uint32_t* tables = data<uint32_t>(kv.tables);
	const uint32_t* entries = page_words(tables, kv.tables, w.pages, w.n_pages * 4);
	const uint32_t* factors =
	    g.format.v.prescale == Prescale::SqrtMax ? page_words(tables, kv.tables, w.factors, w.n_pages) : nullptr;
	const ScoreOf score_of{1 / std::sqrt(float(D)), kv.softmax.softcap};
	const View& q_rope = kv.softmax.q_rope;
	const bool latent = bool(q_rope);
	const uint32_t v_dim = latent ? q_rope.shape[2] : D;
	const float* qr = latent ? data<float>(q_rope) + size_t(w.row) * n_heads * v_dim : nullptr;
	std::vector<float> k_tile(size_t(g.page) * D), v_tile(size_t(g.page) * v_dim), score(g.page);
	std::vector<uint32_t> tokens;
	for (uint32_t row = 0; row < n_rows; ++row)
		for (uint32_t h = 0; h < n_heads; ++h) clear_state(state(row, h), D);
	for (uint32_t p = 0; p < w.n_pages; ++p)
		for (uint32_t h = 0; h < kv.n_kv_heads; ++h) {
			const uint32_t* bits = page_words(tables, kv.tables, w.live + h * w.live_stride + p * 4, 4);
			tokens.clear();
			for (uint32_t t = 0; t < g.page; ++t)
				if (bits[t / 32] >> t % 32 & 1) tokens.push_back(t);
			if (tokens.empty()) continue;
			load_k({kv.n_kv_heads, D}, g, entries + p * 4, h, k_tile.data());
			load_v({kv.n_kv_heads, v_dim}, g, entries + p * 4, factors ? factors[p] : 0, h, v_tile.data());
			for (uint32_t row = 0; row < n_rows; ++row)
				for (uint32_t head = h * share; head < (h + 1) * share; ++head) {
					const float* x = &qs[row * row_size + size_t(head) * D];
					const float* r = latent ? qr + (size_t(row) * n_heads + head) * v_dim : nullptr;
					for (size_t i = 0; i < tokens.size(); ++i) {
						const size_t t = tokens[i];
						score[i] =
						    score_of(dot(x, &k_tile[t * D], D) + (latent ? dot(r, &v_tile[t * v_dim], v_dim) : 0));
					}
					add_tokens(state(row, head), D, score.data(), tokens.data(), uint32_t(tokens.size()),
					           latent ? k_tile.data() : v_tile.data());
				}
		}
	const Quant& values = latent ? g.format.k : g.format.v;
	if (values.bits < 16 && values.rotate)
		for (uint32_t row = 0; row < n_rows; ++row)
			for (uint32_t h = 0; h < n_heads; ++h) rotate_back(std::span(state(row, h), D));
}

void CpuBackend::compute(const op::UnpackLatents& o) {
	const auto& [dst, groups, work, tables_view] = o;
	const uint32_t k_dim = dst.k.shape[2], v_dim = dst.v.shape[2];
	const uint32_t* tables = data<uint32_t>(tables_view);
	const auto put = [](uint16_t* to, std::span<const float> x) { // values beyond the largest half become that one
		for (const float v : x) *to++ = f32_to_f16(std::clamp(v, -65504.f, 65504.f));
	};
	for (const AttendGroup& g : groups) {
		std::vector<float> k(size_t(g.page) * k_dim), v(size_t(g.page) * v_dim);
		for (uint32_t i = g.first_work; i < g.first_work + g.n_work; ++i) {
			const AttendWork w = work_item<AttendWork>(data<uint32_t>(work), i);
			size_t row = size_t(dst.first) + w.row;
			for (uint32_t p = 0; p < w.n_pages; ++p) {
				const uint32_t* bits = page_words(tables, tables_view, w.live + p * 4, 4);
				const uint32_t* entry = page_words(tables, tables_view, w.pages + p * 4, 4);
				load_k({1, k_dim}, g, entry, 0, k.data());
				load_v({1, v_dim}, g, entry, 0, 0, v.data());
				for (uint32_t t = 0; t < g.page; ++t) {
					if (!(bits[t / 32] >> t % 32 & 1)) continue;
					KV_ASSERT(row < dst.k.shape[1]);
					const std::span<float> latent(&k[size_t(t) * k_dim], k_dim);
					if (g.format.k.bits < 16 && g.format.k.rotate) rotate_back(latent);
					put(data<uint16_t>(dst.k) + row * k_dim, latent);
					put(data<uint16_t>(dst.v) + row * v_dim, {&v[size_t(t) * v_dim], v_dim});
					++row;
				}
			}
		}
	}
}

void CpuBackend::attend_pages(const View& q, const KvRead& kv) {
	const uint32_t* work = data<uint32_t>(kv.work);
	for (const AttendGroup& g : kv.groups)
		for (uint32_t i = g.first_work; i < g.first_work + g.n_work; ++i)
			attend_work(q, kv, g, work_item<AttendWork>(work, i));
}

void CpuBackend::compute(const op::Attend& o) {
	const auto& [out, lse_out, q, kv] = o;
	const uint32_t T = q.shape[0], n_heads = q.shape[1], D = q.shape[2];
	attend_pages(q, kv);
	const float* parts = data<float>(kv.parts);
	const uint32_t* row_parts = data<uint32_t>(kv.row_parts);
	const float* sinks = kv.softmax.sinks ? data<float>(kv.softmax.sinks) : nullptr;
	float *y = data<float>(out), *lse = lse_out ? data<float>(lse_out) : nullptr;
	std::vector<float> state(D + 2);
	for (uint32_t t = 0; t < T; ++t)
		for (uint32_t h = 0; h < n_heads; ++h) {
			clear_state(state.data(), D);
			merge_parts(state.data(), D, parts, kv.parts.shape[0], row_parts + t * 2, 0, n_heads, h);
			if (sinks) add_sink(state.data(), D, sinks[h]);
			if (lse) lse[size_t(t) * n_heads + h] = log_sum(state.data(), D);
			finish_state(y + (size_t(t) * n_heads + h) * D, state.data(), D);
		}
}

// The state over the prompt's own tokens is merged last, after the parts over older tokens.
void CpuBackend::compute(const op::AttendPrompt& o) {
	const auto& [out, lse_out, q, own, older] = o;
	const uint32_t T = q.shape[0], n_heads = q.shape[1], D = q.shape[2];
	const uint32_t n_kv_heads = own.k.shape[0], T_cap = own.k.shape[1], n = own.first + T, share = n_heads / n_kv_heads;
	if (older) attend_pages(q, *older);
	const float* parts = older ? data<float>(older->parts) : nullptr;
	const uint32_t* row_parts = older ? data<uint32_t>(older->row_parts) : nullptr;
	const float* qs = data<float>(q);
	float *y = data<float>(out), *lse = lse_out ? data<float>(lse_out) : nullptr;
	const ScoreOf score_of{1 / std::sqrt(float(D)), own.softmax.softcap};
	const float* sinks = own.softmax.sinks ? data<float>(own.softmax.sinks) : nullptr;
	const View& q_rope = own.softmax.q_rope;
	const float* qr = q_rope ? data<float>(q_rope) : nullptr;
	const float* slopes = own.slopes ? data<float>(own.slopes) : nullptr;
	const uint32_t v_dim = own.v.shape[2];
	const uint32_t *seen_bits = own.seen ? data<uint32_t>(own.seen) : nullptr, seen_words = own.seen.shape[1],
	               seen_sets = own.seen_sets(T);
	std::vector<float> k(size_t(n) * D), v(size_t(n) * v_dim), score(n), state(D + 2);
	std::vector<uint32_t> tokens;
	const std::vector<float>& values = qr ? k : v;
	for (uint32_t h = 0; h < n_kv_heads; ++h) {
		const size_t first = size_t(h) * T_cap;
		dequantise_row(DType::F16, reinterpret_cast<const std::byte*>(data<uint16_t>(own.k) + first * D), k.data(),
		               k.size());
		dequantise_row(DType::F16, reinterpret_cast<const std::byte*>(data<uint16_t>(own.v) + first * v_dim), v.data(),
		               v.size());
		for (uint32_t t = 0; t < T; ++t)
			for (uint32_t head = h * share; head < (h + 1) * share; ++head) {
				const size_t row = (size_t(t) * n_heads + head) * D;
				uint32_t seen = own.first + t + 1, lost = own.window.first_seen(own.first + t);
				seen += std::min(own.ahead, T - t - 1);
				if (own.ahead >= T) lost = std::min(lost, own.first);
				const float* r = qr ? qr + (size_t(t) * n_heads + head) * v_dim : nullptr;
				for (uint32_t i = lost; i < seen; ++i)
					score[i] = score_of(dot(qs + row, k.data() + size_t(i) * D, D) +
					                    (r ? dot(r, v.data() + size_t(i) * v_dim, v_dim) : 0));
				if (slopes)
					for (uint32_t i = lost; i < seen; ++i)
						score[i] -= slopes[head] * std::abs(float(i) - float(own.first + t));
				clear_state(state.data(), D);
				if (older)
					merge_parts(state.data(), D, parts, older->parts.shape[0], row_parts + t * 2, 1, n_heads, head);
				if (seen_bits) {
					tokens.clear();
					const uint32_t* const bits = seen_bits + size_t(t * seen_sets + h % seen_sets) * seen_words;
					for (uint32_t i = 0; i < seen; ++i)
						if (const uint32_t at = own.seen_at + i; bits[at / 32] >> at % 32 & 1)
							score[tokens.size()] = score[i], tokens.push_back(i);
				}
				add_tokens(state.data(), D, score.data() + lost, seen_bits ? tokens.data() : nullptr,
				           seen_bits ? uint32_t(tokens.size()) : seen - lost, values.data() + size_t(lost) * D);
				if (sinks) add_sink(state.data(), D, sinks[head]);
				if (lse) lse[size_t(t) * n_heads + head] = log_sum(state.data(), D);
				finish_state(y + row, state.data(), D);
			}
	}
}

} // namespace kvrun
