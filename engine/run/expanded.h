// The expanded form of latent attention for the rows of a prompt: keys and values of every head, made of the latents of
// the prompt's own tokens and of older ones.
//
// For T new rows behind o older tokens a head multiplies T (o + T / 2) pairs by 2 rank + rope_dim channels in the
// absorbed form, and by 2 (nope_dim + rope_dim) in this one, because values are padded with zeros to the width of keys.
// In addition it makes keys and values of o tokens, and turns attn_k_b's rows into columns. Keys and values of the new
// tokens cost as much as the projections of the absorbed form, which fall away; where a policy ranks tokens, scores
// need the queries of that form, too.
#pragma once
#include "engine/kv_device/prefill.h"
#include "engine/run/arena.h"
#include "models/config.h"
#include <algorithm>

namespace kvrun {

// Of prompts. Auto: for each block the form that takes fewer multiplications.
enum class LatentForm : uint8_t { Auto, Absorbed, Expanded };

constexpr uint32_t expanded_width(const Latent& t) { return t.nope_dim + t.rope_dim; }

// Whether a layer can have this form: heads are no wider than what the absorbed form has memory for.
inline bool can_expand(const Latent& t) {
	return t.rank && expanded_width(t) <= t.rank && t.v_dim <= expanded_width(t) && t.nope_dim % 8 == 0 &&
	       t.rope_dim % 8 == 0 && t.rank % 8 == 0 && t.v_dim % 2 == 0;
}

// Whether it takes fewer multiplications.
inline bool expanding_pays(const Latent& t, double n_new, double n_older, bool ranked) {
	const double pairs = n_new * (n_older + n_new / 2), absorbed = 2. * t.rank + t.rope_dim;
	const double more = n_older * t.rank * (t.nope_dim + t.v_dim) + double(t.nope_dim) * t.nope_dim * t.rank +
	                    (ranked ? n_new * t.rank * t.nope_dim : 0);
	return pairs * (absorbed - 2. * expanded_width(t)) > more;
}

// A layer with latent attention, all of which have the same shape; null if there is none.
inline const Layer* latent_layer(const Config& c) {
	const auto at = std::ranges::find_if(c.layers, [](const Layer& l) { return l.latent.rank != 0; });
	return at == c.layers.end() ? nullptr : &*at;
}

struct ExpandedMemory { // of one layer
	View k, v;          // (n_heads, rows, nope_dim + rope_dim) f16: keys and values of all heads
	KvMemory older;     // (1, rows, rank), (1, rows, rope_dim) f16: latents and rotated keys of older tokens

	void lay(Arena& a, const Latent& t, uint32_t n_heads, uint32_t rows) {
		k = a.take(DType::F16, n_heads, rows, expanded_width(t));
		v = a.take(DType::F16, n_heads, rows, expanded_width(t));
		older.k = a.take(DType::F16, 1, rows, t.rank);
		older.v = a.take(DType::F16, 1, rows, t.rope_dim);
	}
	static uint64_t row_bytes(const Config& c) { // of a token; 0 if no layer can have this form
		const Layer* l = latent_layer(c);
		if (!l || !can_expand(l->latent)) return 0;
		return uint64_t(l->n_heads) * expanded_width(l->latent) * 4 + 2 * (l->latent.rank + l->latent.rope_dim);
	}
};

} // namespace kvrun
