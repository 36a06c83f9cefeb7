// Traits of layers that a family leaves to its files: some keys show them, or only the tensors.
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

// Of all layers alike, seen in the first.
void see_traits(const ConfigKeys&, const Family&, Layer&);
NormKind see_norm(const ConfigKeys&, const Family&);
// Which layers have a window. The key has a flag or number per layer, or a period: one layer of so many has none.
Windows read_windows(const ConfigKeys&, const Family&, uint32_t n_layers);
// Needs layers in c, experts placed. Sets Layer::mlp_limit, gate_cap, up_cap and Experts::limit.
void read_limits(const ConfigKeys&, const Family&, Config& c);
// Of Family::skips_parts: takes attention and MLPs from layers that lack them.
void skip_parts(const ConfigKeys&, Config& c);
// Of Family::rounds; needs layers in c, complete. Repeats them and sets Config::rounds and Layer::ends_round.
void repeat_layers(const ConfigKeys&, const Family&, Config& c);
// Needs layers in c. Sets Layer::xielu where layers have that activation.
void read_xielu(const ConfigKeys&, Config& c);

} // namespace kvrun
