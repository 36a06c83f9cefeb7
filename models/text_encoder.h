// Texts that become vectors or scores: what an encoder adds to embeddings, and what follows its last layer.
#pragma once
#include "models/config.h"
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

// Sets Config::encodes: a family's files say it, or key attention.causal.
void read_encodes(const ConfigKeys&, const Family&, Config&);
// Sets Config::text_input by the file's tensors. Needs the vocabulary and the trained context.
void read_text_input(const ConfigKeys&, const Family&, Config&);
// Of any model: sets Config::text_head by keys and tensors.
void read_text_head(const ConfigKeys&, const Family&, Config&);
// Refuses layers that cannot see tokens behind their own: those with states, latents or other residual streams.
void check_encoder(const ConfigKeys&, const Config&);
// (n_heads): slopes of Layer::alibi, 2^(-8 i / n) for i = 1 .. n if n_heads is a power of two n; else n is the largest
// power of two below, and further heads have those of 2 n for i = 1, 3, 5 ..
std::vector<float> alibi_slopes(uint32_t n_heads);
void add_text_input_specs(std::vector<TensorSpec>&, const Config&);
void add_text_head_specs(std::vector<TensorSpec>&, const Config&);

// Names in the file.
constexpr const char *kPositionTable = "position_embd.weight", *kTypeTable = "token_types.weight",
                     *kEmbeddingNorm = "token_embd_norm", *kHiddenNorm = "cls.norm.weight";
inline const char* dense_name(const TextHead& h, size_t i) {
	return i == 1 ? "dense_3.weight" : h.dense_is_output ? "output.weight" : "dense_2.weight";
}

// Channels of a text's vector.
inline uint32_t vector_dim(const Config& c) {
	const TextHead& h = c.text_head;
	return h.dense[1] ? h.dense[1] : h.dense[0] ? h.dense[0] : c.dim;
}

} // namespace kvrun
