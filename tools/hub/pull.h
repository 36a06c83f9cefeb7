// Models of the hub by name: choosing, fetching, finding, removing.
#pragma once
#include <cstdint>
#include <string>

namespace kvrun {

// Fetches "USER/REPO[:QUANT]" unless it is present; prints on stderr what is chosen and why; returns the path of its
// file. must_run: a model that kvrun cannot run is refused before most of it is fetched; otherwise that is a warning.
std::string pull_model(const std::string& name, bool must_run);

// For -hf: a model that is present is used, another one is fetched first.
std::string model_of_hub(const std::string& name);

// Deletes a model of the hub's cache or of kvrun's own folder by its full name ("USER/REPO": all of its models, and
// parts left by interrupted fetches); returns the bytes freed. Throws Error{NotFound}, and Error{Invalid} for other
// folders.
uint64_t remove_model(const std::string& name);

} // namespace kvrun
