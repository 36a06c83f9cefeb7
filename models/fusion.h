// Files whose layers draft for one model from its hidden states (--draft FILE): what EAGLE-3 and DFlash have in common.
// States of several layers of the model are joined to one row per token. Embedding and output are the file's or the
// model's; the file's output may know fewer tokens than the model, and a table says which ones.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

constexpr const char *kFusionJoin = "fc.weight", *kFusionNorm = "enc.output_norm.weight";

// Sets Config::fusion, target_dim and vocab from the file, of read_config(). Throws Error{Invalid} if it was made for
// another model than `of`.
void read_fusion(const ConfigKeys&, const Config& of, Config&);
// As read_draft_file().
Config read_fused(const Gguf&, const Config& of);
// Channels of what is joined.
inline uint32_t fused_states(const Config& c) { return uint32_t(c.fusion.layers.size()) * c.target_dim; }
void add_fusion_specs(std::vector<TensorSpec>&, const Config&); // in front of the layers

struct FusedFormat { // what one kind of file has beside that
	DraftKind kind;
	const char* text;                              // "EAGLE-3 layers"
	void (*read_keys)(const ConfigKeys&, Config&); // after read_fusion()
	void (*see_traits)(const ConfigKeys&, Layer&);
	void (*add_specs)(std::vector<TensorSpec>&, const Config&);
	std::vector<std::string_view> unused; // tensors
};
const FusedFormat* fused_format(DraftKind); // null: none of these

} // namespace kvrun
