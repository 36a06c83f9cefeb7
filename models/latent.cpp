// Latent attention (MLA) as files describe it.
#include "models/latent.h"
#include "models/compressed.h"
#include <cmath>

namespace kvrun {
namespace {

constexpr uint32_t kMostHeads = 512, kMostChannels = 512, kStep = 8; // what every backend's attention can do

uint32_t channels(const ConfigKeys& k, const char* key, uint32_t v, uint32_t most = kMostChannels) {
	if (v == 0 || v % kStep != 0 || v > most)
		fail(Code::Unsupported, "{}: key {} makes {} channels; kvrun runs multiples of {} up to {}", k.g.name(),
		     k.key(key), v, kStep, most);
	return v;
}

} // namespace

Latent read_latent(const ConfigKeys& k, const Family& f, Config& c, LayerSizes& sizes) {
	if (!f.latent) return {};
	if (f.compressed) return read_shared_latent(k, c, sizes);
	// Files with attn_kv_b may have the lengths of heads where others have those of latents.
	const bool old = k.g.splits_latents() && !k.has("attention.key_length_mla");
	const char* key_length = old ? "attention.key_length" : "attention.key_length_mla";
	const char* value_length = old ? "attention.value_length" : "attention.value_length_mla";
	if (!old && (!k.has(key_length) || !k.has(value_length)))
		fail(Code::Unsupported,
		     "{}: key {} is missing, as in files made before 2025-04; convert the model again, or get a newer file",
		     k.g.name(), k.key("attention.key_length_mla"));
	Latent t;
	t.rank = channels(k, "attention.kv_lora_rank", k.u32("attention.kv_lora_rank"));
	const uint32_t rotated = k.u32("rope.dimension_count");
	t.no_rope = rotated == 0 && f.rope_use == RopeUse::Never;
	t.rope_dim = t.no_rope ? kStep : channels(k, "rope.dimension_count", rotated, 128);
	t.v_dim = channels(k, value_length, k.u32(value_length, old ? c.dim / c.n_heads : 0));
	const uint32_t key = k.u32(key_length);
	if (key <= rotated)
		fail(Code::Format, "{}: key {} is {}, of which RoPE takes {}; the file is damaged", k.g.name(),
		     k.key(key_length), key, rotated);
	t.nope_dim = channels(k, key_length, key - rotated);
	if (t.rope_dim > t.rank)
		fail(Code::Unsupported, "{}: a rotated key of {} channels beside a latent of {}; kvrun runs at most as many",
		     k.g.name(), t.rope_dim, t.rank);
	constexpr uint32_t kMostQueryRank = 1 << 16;
	t.q_rank = k.u32("attention.q_lora_rank", 0);
	if (t.q_rank > kMostQueryRank)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs up to {}", k.g.name(), k.key("attention.q_lora_rank"),
		     t.q_rank, kMostQueryRank);
	if (c.n_heads > kMostHeads)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs up to {} heads on one latent", k.g.name(),
		     k.key("attention.head_count"), c.n_heads, kMostHeads);
	c.head_dim = t.rank, c.n_kv_heads = 1;
	sizes.n_kv_heads.assign(c.n_layers, 1);
	return t;
}

float latent_scale(const ConfigKeys& k, const Latent& t, Rope& rope) {
	// attention multiplies by the root of the latent's width itself
	const float plain = t.out_groups ? 0 : 1 / std::sqrt(float(t.nope_dim + (t.no_rope ? 0 : t.rope_dim)));
	if (rope.scaling != RopeScaling::Yarn || !(rope.factor > 1)) return plain;
	const float log_factor = std::log(rope.factor);
	const float m = 1 + k.f32("rope.scaling.yarn_log_multiplier", 0) * log_factor; // the file's includes YaRN's 0.1
	rope.attn_factor = 1 / (1 + 0.1f * log_factor);
	return plain * m * m;
}

void add_latent_specs(std::vector<TensorSpec>& out, const Layer& layer, uint32_t l, uint32_t dim) {
	const Latent& t = layer.latent;
	if (t.out_groups) return add_shared_latent_specs(out, layer, l, dim);
	const uint32_t n = layer.n_heads, rotated = t.no_rope ? 0 : t.rope_dim;
	const auto name = [l](const char* what) { return fmt::format("blk.{}.{}.weight", l, what); };
	if (t.q_rank) {
		out.push_back({name("attn_q_a"), t.q_rank, dim, true});
		out.push_back({name("attn_q_a_norm"), 1, t.q_rank, false});
	}
	TensorSpec q{
	    name(t.q_rank ? "attn_q_b" : "attn_q"), n * (t.nope_dim + rotated), t.q_rank ? t.q_rank : dim, true, n, true};
	if (t.no_rope)
		q.depth = 1, q.halves = false;
	else
		q.flat = true, q.first = t.nope_dim;
	out.push_back(q);
	out.push_back({name("attn_kv_a_mqa"), t.rank + rotated, dim, true});
	out.push_back({name("attn_kv_a_norm"), 1, t.rank, false});
	out.push_back({name("attn_k_b"), n * t.rank, t.nope_dim, true, n});
	out.push_back({name("attn_v_b"), n * t.v_dim, t.rank, true, n});
	if (layer.sinks) out.push_back({name("attn_sinks"), 1, n, false});
	if (layer.output_gate) out.push_back({name("attn_gate"), layer.gate_by_head ? n : n * t.v_dim, dim, true});
	out.push_back({name("attn_output"), dim, n * t.v_dim, true});
}

} // namespace kvrun
