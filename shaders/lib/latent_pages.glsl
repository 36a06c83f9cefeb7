// Tokens of pages of latent attention, decoded: latents c_t and rotated keys r_t of any format.
//
// The including file declares p, k_codes (binding 2), v_codes (3), tables (5), k_params (6), v_params (7) as words, and
// defines HEAD_DIM, ROPE_DIM, K_BITS, V_BITS, K_GROUP, V_GROUP, PAGE, and of the latents' format BOOK, MEAN, BYTES and
// CHANNEL. Latents that are stored rotated stay so.
#include "lib/book.glsl"
#include "lib/halves.glsl"

uint in_page = 0, live = 0; // a token in its page, and the live bits from it on
uint k_at = 0, v_at = 0, k_params_at = 0, v_params_at = 0; // words of the page

// Live bits of an item's tokens, from token `first` on, of its page.
uint live_from(uint first, uint live_at) {
	return tables[live_at + first / PAGE * 4u + first % PAGE / 32u] >> (first % PAGE % 32u);
}

// Looks at the page of token `first` of an item's pages. live_at, pages_at: words of `tables`, as in AttendWork.
void go_to(uint first, uint live_at, uint pages_at) {
	const uint page = first / PAGE;
	in_page = first % PAGE;
	live = live_from(first, live_at);
	k_at = KV_AT(2) + tables[pages_at + page * 4u];
	v_at = KV_AT(3) + tables[pages_at + page * 4u + 1u];
	k_params_at = KV_AT(6) + tables[pages_at + page * 4u + 2u];
	v_params_at = KV_AT(7) + tables[pages_at + page * 4u + 3u];
}

// Codes of 4 neighbouring channels that begin at bit `at` of w.
uvec4 codes_of(uint w, uint at, uint bits) {
	return (uvec4(w) >> (at + uvec4(0, bits, 2u * bits, 3u * bits))) & ((1u << bits) - 1u);
}
vec4 latent_codes(uint t, uint c) {
	const uint low_bits = K_BITS == 3u ? 2u : K_BITS, bit = 4u * c * low_bits;
	uvec4 code = codes_of(k_codes[k_at + kv_k_word(0u, bit / 32u, t, HEAD_DIM, K_BITS, PAGE)], bit % 32u, low_bits);
	if (K_BITS == 3u) {
		const uint high = (HEAD_DIM * 2u + 31u) / 32u + c / 8u;
		code |= codes_of(k_codes[k_at + kv_k_word(0u, high, t, HEAD_DIM, K_BITS, PAGE)], c % 8u * 4u, 1u) << 2u;
	}
	return vec4(code);
}
vec4 means_of(uint c) {
	const uint at = k_params_at + kv_mean_word(1u, 0u, 4u * c, HEAD_DIM, PAGE, BYTES ? 8u : 16u);
	return vec4(unpackHalf2x16(k_params[at]), unpackHalf2x16(k_params[at + 1u]));
}
float norm_of(uint t) {
	const uint w = k_params[k_params_at + (BYTES ? t / 4u : t / 2u)];
	if (!BYTES) return unpackHalf2x16(w)[t % 2u];
	const float largest = unpackHalf2x16(k_params[k_params_at + kv_norm_scale_word(1u, 0u, PAGE)]).x;
	return float(w >> (8u * (t % 4u)) & 255u) * kv_255th(largest);
}
// Channels 4 c .. 4 c + 3 of the latent of token t of the page, whose codes have less than 16 bits.
vec4 latent_values(uint t, uint c) {
	const vec4 code = latent_codes(t, c);
	if (BOOK) {
		const vec4 x = book_values(code, K_BITS) * norm_of(t);
		return MEAN ? x + means_of(c) : x;
	}
	if (CHANNEL) {
		vec4 scale, zero;
		if (BYTES) {
			const uint at = k_params_at + kv_byte_param_word(4u * c),
			           largest = k_params_at + kv_byte_largest_word(HEAD_DIM, 0u);
			byte_params_of(uvec2(k_params[at], k_params[at + 1u]), k_params[largest], scale, zero);
		} else {
			[[unroll]] for (uint i = 0; i < 4u; i++) {
				const vec2 x = unpackHalf2x16(k_params[k_params_at + kv_channel_param(0u, 4u * c + i, HEAD_DIM)]);
				scale[i] = x.x;
				zero[i] = x.y;
			}
		}
		return code * scale + zero;
	}
	const vec2 x = unpackHalf2x16(k_params[k_params_at + kv_token_param(0u, 4u * c, t, HEAD_DIM, K_GROUP, PAGE)]);
	return code * x.x + x.y;
}
// The same as halves, of any number of bits.
uvec2 latent_halves(uint t, uint c) {
	if (K_BITS < 16u) return finite_halves4(latent_values(t, c));
	const uint at = k_at + kv_k_word(0u, 2u * c, t, HEAD_DIM, 16u, PAGE);
	return uvec2(k_codes[at], k_codes[at + PAGE]);
}
// Channels 4 r .. 4 r + 3 of its rotated key.
uvec2 rope_halves(uint t, uint r) {
	if (V_BITS == 16u) {
		const uint at = v_at + kv_v_word(0u, t, 2u * r, ROPE_DIM, 16u, PAGE);
		return uvec2(v_codes[at], v_codes[at + 1u]);
	}
	const uint bit = 4u * r * V_BITS;
	const vec2 x = unpackHalf2x16(v_params[v_params_at + kv_token_param(0u, 4u * r, t, ROPE_DIM, V_GROUP, PAGE)]);
	const uint w = v_codes[v_at + kv_v_word(0u, t, bit / 32u, ROPE_DIM, V_BITS, PAGE)];
	return finite_halves4(vec4(codes_of(w, bit % 32u, V_BITS)) * x.x + x.y);
}
