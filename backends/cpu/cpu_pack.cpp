// kv_pack, kv_block: f16 tokens -> packed pages and parameter blocks, by the rules of engine/kv_host/quant.h.
#include "backends/cpu/cpu_backend.h"
#include "engine/core/f16.h"
#include "engine/kv_host/quant.h"
#include "shared/kv_page.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

struct Heads { // heads of a work item
	uint32_t first, end;
};
Heads heads_of(uint32_t head, uint32_t n_kv_heads) {
	KV_ASSERT(head == UINT32_MAX || head < n_kv_heads);
	return head == UINT32_MAX ? Heads{0, n_kv_heads} : Heads{head, head + 1};
}

// Words [at, at + n) of pool memory; null for kSkip.
uint32_t* place(uint32_t* pool, const View& v, uint32_t at, uint32_t n) {
	if (at == kSkip) return nullptr;
	KV_ASSERT(pool && at <= v.elements() && n <= v.elements() - at);
	return pool + at;
}

// The code of x under existing parameters.
uint8_t code_of(float x, Params p, uint32_t bits) {
	const float scale = f16_to_f32(p.scale), zero = f16_to_f32(p.zero);
	return nearest_code(scale > 0 ? (x - zero) / scale : 0.f, float((1u << bits) - 1));
}

// One side (K or V) of the tokens of a work item, all its heads.
struct Tokens {
	uint32_t n, D; // tokens, channels of a head
	Heads heads;
	std::vector<float> x;      // (heads, n, D)
	std::vector<uint8_t> code; // (heads, n, D)
	float& at(uint32_t h, uint32_t t, uint32_t c) { return x[(size_t(h - heads.first) * n + t) * D + c]; }
	uint8_t& code_at(uint32_t h, uint32_t t, uint32_t c) { return code[(size_t(h - heads.first) * n + t) * D + c]; }
};

// Tokens sources[0 .. n) of K or V memory (n_kv_heads, T_cap, D) f16.
Tokens gather(const uint16_t* kv, const View& v, const uint32_t* sources, uint32_t n, Heads heads) {
	const uint32_t T_cap = v.shape[1], D = v.shape[2];
	Tokens r{n, D, heads, {}, {}};
	r.x.resize(size_t(heads.end - heads.first) * n * D);
	r.code.resize(r.x.size());
	for (uint32_t h = heads.first; h < heads.end; ++h)
		for (uint32_t t = 0; t < n; ++t) {
			KV_ASSERT(sources[t] < T_cap);
			for (uint32_t c = 0; c < D; ++c) r.at(h, t, c) = f16_to_f32(kv[(size_t(h) * T_cap + sources[t]) * D + c]);
		}
	return r;
}

void balance_keys(Tokens& k, const uint16_t* balance) {
	for (uint32_t h = k.heads.first; h < k.heads.end; ++h)
		for (uint32_t t = 0; t < k.n; ++t)
			for (uint32_t c = 0; c < k.D; ++c) k.at(h, t, c) *= f16_to_f32(balance[h * k.D + c]);
}

// Quantises per channel over the tokens of the page; the parameters are the page's own.
void quantise_channels(Tokens& k, const Quant& q, uint32_t* params) {
	std::vector<float> x(k.n);
	std::vector<uint8_t> codes(k.n);
	for (uint32_t h = k.heads.first; h < k.heads.end; ++h)
		for (uint32_t c = 0; c < k.D; ++c) {
			for (uint32_t t = 0; t < k.n; ++t) x[t] = k.at(h, t, c);
			params[kv_channel_param(h, c, k.D)] = quantise(x, q.bits, Eta(q.eta), codes).word();
			for (uint32_t t = 0; t < k.n; ++t) k.code_at(h, t, c) = codes[t];
		}
}

// Encodes per channel with the parameters of a block.
void encode_channels(Tokens& k, const Quant& q, const uint32_t* params) {
	for (uint32_t h = k.heads.first; h < k.heads.end; ++h)
		for (uint32_t c = 0; c < k.D; ++c)
			for (uint32_t t = 0; t < k.n; ++t)
				k.code_at(h, t, c) =
				    code_of(k.at(h, t, c), params_of_word(params[kv_channel_param(h, c, k.D)]), q.bits);
}

// Quantises per token and run of q.group channels; a run may span heads.
void quantise_tokens(Tokens& k, const Quant& q, uint32_t slot, uint32_t page, uint32_t* params) {
	const uint32_t first = k.heads.first * k.D, end = k.heads.end * k.D; // channels over all heads
	KV_ASSERT(q.group > 0 && first % q.group == 0 && end % q.group == 0);
	std::vector<float> x(q.group);
	std::vector<uint8_t> codes(q.group);
	for (uint32_t t = 0; t < k.n; ++t)
		for (uint32_t run = first; run < end; run += q.group) {
			for (uint32_t i = 0; i < q.group; ++i) x[i] = k.at((run + i) / k.D, t, (run + i) % k.D);
			params[kv_token_param(run / k.D, run % k.D, slot + t, k.D, q.group, page)] =
			    quantise(x, q.bits, Eta(q.eta), codes).word();
			for (uint32_t i = 0; i < q.group; ++i) k.code_at((run + i) / k.D, t, (run + i) % k.D) = codes[i];
		}
}

struct Run { // channels and tokens of a kv head that share a (scale, zero)
	uint32_t c, n_c, t, n_t;
};
std::vector<Run> runs_of(const Tokens& k, const Quant& q) {
	std::vector<Run> runs;
	if (q.scale == Scale::PerChannel)
		for (uint32_t c = 0; c < k.D; ++c) runs.push_back({c, 1, 0, k.n});
	else
		for (uint32_t c = 0; c < k.D; c += q.group)
			for (uint32_t t = 0; t < k.n; ++t) runs.push_back({c, q.group, t, 1});
	return runs;
}
// Quantises a whole page, with parameters in bytes.
void quantise_with_bytes(Tokens& k, const Quant& q, uint32_t n_kv_heads, uint32_t* words) {
	const ParamPage page{q, words, n_kv_heads, k.D, k.n};
	const Eta eta(q.eta);
	const std::vector<Run> runs = runs_of(k, q);
	std::vector<Params> params(runs.size());
	std::vector<float> x;
	std::vector<uint8_t> codes;
	for (uint32_t h = k.heads.first; h < k.heads.end; ++h) {
		const auto each = [&](const Run& r, auto f) {
			for (uint32_t t = r.t; t < r.t + r.n_t; ++t)
				for (uint32_t c = r.c; c < r.c + r.n_c; ++c) f(t, c);
		};
		const auto gather_run = [&](const Run& r) {
			x.clear();
			each(r, [&](uint32_t t, uint32_t c) { x.push_back(k.at(h, t, c)); });
		};
		for (size_t i = 0; i < runs.size(); ++i) {
			gather_run(runs[i]);
			params[i] = group_params(x, q.bits, eta);
		}
		const Params largest = largest_of(params);
		words[kv_byte_largest_word(page.n_params(), h)] = largest.word();
		for (size_t i = 0; i < runs.size(); ++i) {
			const uint16_t bytes = param_bytes(params[i], largest);
			const uint32_t at = page.param_of(h, runs[i].c, runs[i].t);
			pack(std::span(words + kv_byte_param_word(at), 1), 16, at % 2, bytes);
			gather_run(runs[i]);
			codes.resize(x.size());
			quantise_by(meaning_of(bytes, largest), x, q.bits, eta, codes);
			size_t n = 0;
			each(runs[i], [&](uint32_t t, uint32_t c) { k.code_at(h, t, c) = codes[n++]; });
		}
	}
}

void rotate_tokens(Tokens& k) {
	for (size_t at = 0; at < k.x.size(); at += k.D) rotate(std::span(k.x).subspan(at, k.D));
}

// Means of the keys of a page before rotation; they are subtracted after rotation.
std::vector<float> page_mean(Tokens& k, uint32_t h, bool rotated) {
	std::vector<float> mean(k.D, 0.f);
	for (uint32_t t = 0; t < k.n; ++t)
		for (uint32_t c = 0; c < k.D; ++c) mean[c] += k.at(h, t, c);
	for (float& m : mean) m /= float(k.n);
	if (rotated) rotate(mean);
	for (float& m : mean) m = round_f16(m);
	return mean;
}

// Quantises a whole page to codes of a codebook and a norm per token and head.
void quantise_page(Tokens& k, const Quant& q, uint32_t n_kv_heads, uint32_t* params) {
	std::vector<std::vector<float>> means;
	for (uint32_t h = k.heads.first; h < k.heads.end && q.mean; ++h) means.push_back(page_mean(k, h, q.rotate));
	if (q.rotate) rotate_tokens(k);
	std::vector<float> norms(k.n);
	std::vector<uint8_t> bytes(k.n);
	for (uint32_t h = k.heads.first; h < k.heads.end; ++h) {
		for (uint32_t t = 0; t < k.n; ++t) {
			if (q.mean)
				for (uint32_t c = 0; c < k.D; ++c) k.at(h, t, c) -= means[h - k.heads.first][c];
			norms[t] = quantise_norm(std::span(&k.at(h, t, 0), k.D), q.bits, std::span(&k.code_at(h, t, 0), k.D));
		}
		const std::span<uint32_t> words(params + kv_norm_word(h, 0, k.n, q.param_bits), k.n * q.param_bits / 32);
		if (q.param_bits == 8) params[kv_norm_scale_word(n_kv_heads, h, k.n)] = quantise_norms(norms, bytes);
		for (uint32_t t = 0; t < k.n; ++t)
			pack(words, q.param_bits, t, q.param_bits == 8 ? bytes[t] : f32_to_f16(norms[t]));
		for (uint32_t c = 0; c < k.D && q.mean; c += 2) {
			const float* m = &means[h - k.heads.first][c];
			params[kv_mean_word(n_kv_heads, h, c, k.D, k.n, q.param_bits)] =
			    f32_to_f16(m[0]) | uint32_t(f32_to_f16(m[1])) << 16;
		}
	}
}

// Packs the codes of every token and head: word w goes to words[index(head, token, w)].
template <class F> void pack_codes(Tokens& k, uint32_t bits, uint32_t* words, F index) {
	if (!words) return; // another layer stores them
	std::vector<uint32_t> packed(kv_token_words(k.D, bits));
	for (uint32_t h = k.heads.first; h < k.heads.end; ++h)
		for (uint32_t t = 0; t < k.n; ++t) {
			std::fill(packed.begin(), packed.end(), 0u);
			for (uint32_t c = 0; c < k.D; ++c) set_token_code(packed, k.D, bits, c, k.code_at(h, t, c));
			for (uint32_t w = 0; w < packed.size(); ++w) words[index(h, t, w)] = packed[w];
		}
}

} // namespace

void CpuBackend::pack_keys(const KvRows& src, const PackArgs& a, const PackWork& w, const uint32_t* sources) {
	const Quant& q = a.format.k;
	const uint32_t n_kv_heads = src.k.shape[0], D = src.k.shape[2], page = a.page;
	uint32_t* codes = place(a.k_codes ? data<uint32_t>(a.k_codes) : nullptr, a.k_codes, w.k_codes,
	                        kv_code_words(n_kv_heads, D, q.bits, page));
	const bool per_channel = q.scale == Scale::PerChannel;
	uint32_t* params =
	    place(data<uint32_t>(a.k_params), a.k_params, w.k_params, page_param_words(q, n_kv_heads, D, page));
	KV_ASSERT(params);
	Tokens k = gather(data<uint16_t>(src.k), src.k, sources, w.n, heads_of(w.head, n_kv_heads));
	if (q.prescale == Prescale::Balance) balance_keys(k, halves(a.balance, w.balance, n_kv_heads * D));
	if (q.scale == Scale::Codebook) {
		KV_ASSERT(w.slot == 0 && w.n == page);
		quantise_page(k, q, n_kv_heads, params);
	} else if (q.param_bits == 8) {
		KV_ASSERT(w.slot == 0 && w.n == page);
		quantise_with_bytes(k, q, n_kv_heads, params);
	} else if (per_channel && a.k_block)
		encode_channels(k, q, params);
	else if (per_channel) {
		KV_ASSERT(w.slot == 0 && w.n == page);
		quantise_channels(k, q, params);
	} else
		quantise_tokens(k, q, w.slot, page, params);
	pack_codes(k, q.bits, codes,
	           [&](uint32_t h, uint32_t t, uint32_t word) { return kv_k_word(h, word, w.slot + t, D, q.bits, page); });
}

void CpuBackend::pack_values(const KvRows& src, const PackArgs& a, const PackWork& w, const uint32_t* sources) {
	const Quant& q = a.format.v;
	const uint32_t n_kv_heads = src.v.shape[0], D = src.v.shape[2], page = a.page;
	uint32_t* codes = place(a.v_codes ? data<uint32_t>(a.v_codes) : nullptr, a.v_codes, w.v_codes,
	                        kv_code_words(n_kv_heads, D, q.bits, page));
	uint32_t* params =
	    place(data<uint32_t>(a.v_params), a.v_params, w.v_params, page_param_words(q, n_kv_heads, D, page));
	KV_ASSERT(params);
	Tokens v = gather(data<uint16_t>(src.v), src.v, sources, w.n, heads_of(w.head, n_kv_heads));
	if (q.prescale == Prescale::SqrtMax) {
		const uint32_t* factors =
		    place(data<uint32_t>(a.v_factors), a.v_factors, w.v_factors, kv_factor_words(n_kv_heads, D));
		for (uint32_t h = v.heads.first; h < v.heads.end; ++h)
			for (uint32_t c = 0; c < D; ++c) {
				const float f = f16_to_f32(uint16_t(factors[kv_factor_word(h, c, D)] >> 16 * kv_factor_half(h, c, D)));
				for (uint32_t t = 0; t < v.n; ++t) v.at(h, t, c) /= f;
			}
	}
	if (q.scale == Scale::Codebook) {
		KV_ASSERT(w.slot == 0 && w.n == page);
		quantise_page(v, q, n_kv_heads, params);
	} else if (q.param_bits == 8) {
		KV_ASSERT(w.slot == 0 && w.n == page);
		quantise_with_bytes(v, q, n_kv_heads, params);
	} else
		quantise_tokens(v, q, w.slot, page, params);
	pack_codes(v, q.bits, codes,
	           [&](uint32_t h, uint32_t t, uint32_t word) { return kv_v_word(h, w.slot + t, word, D, q.bits, page); });
}

void CpuBackend::compute(const op::KvPack& o) {
	const auto& [src, a] = o;
	const uint32_t *sources = data<uint32_t>(a.sources), *work = data<uint32_t>(a.work);
	const uint32_t bits_k = a.format.k.bits, bits_v = a.format.v.bits;
	for (uint32_t i = 0; i < a.work.shape[0]; ++i) {
		const PackWork w = work_item<PackWork>(work, i);
		KV_ASSERT(uint64_t(w.src) + w.n <= a.sources.elements() && uint64_t(w.slot) + w.n <= a.page);
		if (bits_k) pack_keys(src, a, w, sources + w.src);
		if (bits_v) pack_values(src, a, w, sources + w.src);
	}
}

void CpuBackend::compute(const op::KvBlock& o) {
	const auto& [src, a] = o;
	const uint32_t n_kv_heads = src.k.shape[0], D = src.k.shape[2], V = src.v.shape[2];
	const uint32_t *sources = data<uint32_t>(a.sources), *work = data<uint32_t>(a.work);
	uint32_t* words = data<uint32_t>(a.words);
	for (uint32_t i = 0; i < a.work.shape[0]; ++i) {
		const BlockWork w = work_item<BlockWork>(work, i);
		const Heads heads = heads_of(w.head, n_kv_heads);
		KV_ASSERT(uint64_t(w.src) + w.n <= a.sources.elements() && w.n > 0);
		std::vector<float> x(w.n);
		std::vector<uint8_t> codes(w.n);
		if (uint32_t* params = place(words, a.words, w.k_params, kv_channel_param_words(n_kv_heads, D))) {
			Tokens k = gather(data<uint16_t>(src.k), src.k, sources + w.src, w.n, heads);
			if (a.format.k.prescale == Prescale::Balance) balance_keys(k, halves(a.balance, w.balance, n_kv_heads * D));
			for (uint32_t h = heads.first; h < heads.end; ++h)
				for (uint32_t c = 0; c < D; ++c) {
					for (uint32_t t = 0; t < w.n; ++t) x[t] = k.at(h, t, c);
					params[kv_channel_param(h, c, D)] = quantise(x, a.format.k.bits, Eta(), codes).word();
				}
		}
		if (uint32_t* factors = place(words, a.words, w.v_factors, kv_factor_words(n_kv_heads, V))) {
			Tokens v = gather(data<uint16_t>(src.v), src.v, sources + w.src, w.n, heads);
			for (uint32_t h = heads.first; h < heads.end; ++h)
				for (uint32_t c = 0; c < V; ++c) {
					for (uint32_t t = 0; t < w.n; ++t) x[t] = v.at(h, t, c);
					uint32_t& word = factors[kv_factor_word(h, c, V)];
					const uint32_t shift = 16 * kv_factor_half(h, c, V);
					word = (word & ~(0xffffu << shift)) | uint32_t(channel_factor(x)) << shift;
				}
		}
	}
}

} // namespace kvrun
