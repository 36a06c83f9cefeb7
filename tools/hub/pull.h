// A model of the hub by its name: chosen, fetched, found again, removed.
#pragma once
#include <string>

namespace kvrun {

// Fetches "USER/REPO[:QUANT]" unless it is here, and says on stderr what is chosen and why; the path of its file.
// must_run: refuses what kvrun cannot run, before most of it is fetched; else that is a warning.
std::string pull_model(const std::string& name, bool must_run);

// -hf: a model that is here is used as it is, another one is fetched first.
std::string model_of_hub(const std::string& name);

// Deletes a model of the hub's cache or of kvrun's own folder, by its name in full ("USER/REPO": all of it, and what an
// interrupted fetch left); bytes that are free now. Throws Error{NotFound}, and Error{Invalid} for other folders.
uint64_t remove_model(const std::string& name);

} // namespace kvrun
