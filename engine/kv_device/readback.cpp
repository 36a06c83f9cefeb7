// Reads the pages of a cache back from a device and dequantises them on the host.
#include "engine/kv_device/readback.h"
#include "engine/core/f16.h"
#include "engine/kv_host/quant.h"
#include "shaders/shared/kv_page.h"
#include <cmath>
#include <limits>
#include <map>

namespace kvrun {
namespace {

using Words = std::vector<uint32_t>;

float half_of(uint32_t word, uint32_t half) { return f16_to_f32(uint16_t(word >> (16 * half))); }

class Reader {
 public:
	Reader(Backend& be, const KvSequence& state)
	    : state_(state), plan_(state.plan()), dim_(plan_.shape.head_dim), v_dim_(plan_.shape.v_dim()) {
		const KvCache& cache = state.cache();
		const auto want = [&](uint32_t id) {
			const uint32_t c = state.pool().addr(id).chunk;
			const View v = state.pool().chunk(c);
			if (const auto [at, fresh] = chunks_.try_emplace(c, v.elements()); fresh)
				be.read(*v.buf, v.at, std::as_writable_bytes(std::span(at->second)));
		};
		balance_.resize(plan_.shape.n_layers);
		for (uint32_t l = 0; l < plan_.shape.n_layers; ++l) {
			for (const Tier t : kAllTiers) {
				for (const uint32_t id : cache.pages(l, t)) want(id);
				for (const uint32_t id : cache.blocks(l, t)) want(id);
			}
			const View b = state.balance(l);
			if (!b) continue;
			balance_[l].resize(b.elements());
			be.read(*b.buf, b.at, std::as_writable_bytes(std::span(balance_[l])));
		}
		be.submit();
		be.wait();
	}

	LayerValues layer(uint32_t l) const {
		const uint32_t n_kv = plan_.shape.n_kv_heads;
		LayerValues out;
		out.k.assign(size_t(state_.n_tokens()) * n_kv * dim_, std::numeric_limits<float>::quiet_NaN());
		out.v.assign(size_t(state_.n_tokens()) * n_kv * v_dim_, std::numeric_limits<float>::quiet_NaN());
		for (const Tier t : kAllTiers)
			for (uint32_t h = 0; h < n_kv; ++h) {
				const std::vector<uint32_t> at = state_.cache().positions(l, t, h);
				const std::span<const uint32_t> live = state_.cache().live(l, t, h);
				const uint32_t page = plan_.page[int(t)];
				for (uint32_t slot = 0; slot < at.size(); ++slot) {
					const uint32_t p = slot / page, i = slot % page;
					if (at[slot] == kNone || !(live[p * 4 + i / 32] >> i % 32 & 1)) continue;
					const size_t to = size_t(at[slot]) * n_kv + h;
					token(l, t, h, p, i, std::span(out.k).subspan(to * dim_, dim_),
					      std::span(out.v).subspan(to * v_dim_, v_dim_));
				}
			}
		return out;
	}

 private:
	struct Place { // a page or block, and where it starts
		const PageFormat* format;
		const uint32_t* words;
	};
	Place place(uint32_t id, const PageFormat& format) const {
		const KvPool::Addr a = state_.pool().addr(id);
		return {&format, chunks_.at(a.chunk).data() + a.at};
	}

	// Token i of logical page p of a tier, one kv head.
	void token(uint32_t l, Tier t, uint32_t h, uint32_t p, uint32_t i, std::span<float> k, std::span<float> v) const {
		const KvCache& cache = state_.cache();
		const LayerPlan& L = plan_.layers[l];
		const bool shares = t == Tier::Regular; // the only tier whose codes may lie in another layer's pages
		const Format& f = L.tier[int(t)].fmt;
		const uint32_t page = plan_.page[int(t)];
		const uint32_t k_layer = shares ? L.k_codes_of : l, v_layer = shares ? L.v_codes_of : l;
		const Place own = place(cache.pages(l, t)[p], plan_.page_format(l, t));
		const Place k_page = place(cache.pages(k_layer, t)[p], plan_.page_format(k_layer, t));
		const Place v_page = place(cache.pages(v_layer, t)[p], plan_.page_format(v_layer, t));
		const Place block = cache.blocks(l, t).empty() ? own : place(cache.blocks(l, t)[p], plan_.block_format(l, t));
		const Place k_params = block.format->k_params ? block : own;
		const auto value = [&](const Quant& q, uint32_t code, const uint32_t* params, uint32_t dim, uint32_t c) {
			if (q.bits == 16) return f16_to_f32(uint16_t(code));
			if (q.scale == Scale::Codebook) {
				const NormPage n{q, params, plan_.shape.n_kv_heads, dim, page};
				return codebook_value(code, q.bits) * n.norm(h, i) + n.mean(h, c);
			}
			const Meaning m = ParamPage{q, params, plan_.shape.n_kv_heads, dim, page}.meaning(h, c, i);
			return float(code) * m.scale + m.zero;
		};
		const uint32_t* k_codes = k_page.words + k_page.format->k_codes_at + kv_k_word(h, 0, i, dim_, f.k.bits, page);
		const uint32_t* v_codes = v_page.words + v_page.format->v_codes_at + kv_v_word(h, i, 0, v_dim_, f.v.bits, page);
		for (uint32_t c = 0; c < dim_; ++c) {
			k[c] = value(f.k, token_code(k_codes, page, dim_, f.k.bits, c),
			             k_params.words + k_params.format->k_params_at, dim_, c);
			if (f.k.bits < 16 && f.k.prescale == Prescale::Balance) k[c] /= f16_to_f32(balance_[l][h * dim_ + c]);
		}
		for (uint32_t c = 0; c < v_dim_; ++c) {
			v[c] =
			    value(f.v, token_code(v_codes, 1, v_dim_, f.v.bits, c), own.words + own.format->v_params_at, v_dim_, c);
			if (f.v.bits < 16 && f.v.prescale == Prescale::SqrtMax)
				v[c] *= half_of(block.words[block.format->v_params_at + kv_factor_word(h, c, v_dim_)],
				                kv_factor_half(h, c, v_dim_));
		}
		if (f.k.bits < 16 && f.k.rotate) rotate_back(k);
		if (f.v.bits < 16 && f.v.rotate) rotate_back(v);
	}

	const KvSequence& state_;
	const KvPlan& plan_;
	uint32_t dim_, v_dim_;
	std::map<uint32_t, Words> chunks_;           // of the pool, by number
	std::vector<std::vector<uint16_t>> balance_; // (layers) (n_kv_heads, head_dim) f16; empty without a balancer
};

} // namespace

std::vector<LayerValues> read_back(Backend& be, const KvSequence& state) {
	const Reader reader(be, state);
	std::vector<LayerValues> out;
	for (uint32_t l = 0; l < state.plan().shape.n_layers; ++l) out.push_back(reader.layer(l));
	return out;
}

} // namespace kvrun
