// MODEL.kv.json, beside the model or in the cache folder: measurements of `kvrun tune`, and the policy that `auto` and
// `tuned:BITS` derive from them.
#pragma once
#include "engine/kv_host/choose.h"
#include "models/gguf.h"
#include <optional>

namespace kvrun {

std::string tuning_path(const Gguf&);       // beside the model
std::string found_tuning_path(const Gguf&); // which file read_tuning() reads; empty: there is none
// Where the file can be written: beside the model, else in its cache_folder(), which is created. Throws Error{Io,
// NotFound} as NewFile does, about the first place.
std::string new_tuning_path(const Gguf&);
// Writes the file completely or not at all. `how`: one line on what was measured. Beside the model it replaces the one
// in the cache folder.
void write_tuning(const std::string& path, const Gguf&, const Tuning&, const std::string& how);
// Reads the file in the cache folder, which is the user's own, else the one beside the model; nullopt if absent. Throws
// Error{Format} if it is damaged or of another model.
std::optional<Tuning> read_tuning(const Gguf&, const KvShape&);

// choose_policy() by that file, or by the default guess without one. Policies that are not a choice
// and do not rotate the keys of a model with outlier channels (key_outliers.h) are returned unchanged.
Choice choose_policy(const KvPolicy&, const KvShape&, const Gguf&, uint64_t n_tokens, size_t budget_bytes,
                     bool or_fewer = false);

std::vector<CacheStep> auto_steps(const KvPolicy&, const KvShape&, const Gguf&);

} // namespace kvrun
