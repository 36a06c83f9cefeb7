// Models of the hub by name: choosing, fetching, finding, removing.
#pragma once
#include "tools/hub/local.h"

namespace kvrun {

// Fetches "USER/REPO[:QUANT]" unless it is present; prints on stderr what is chosen and why; returns the path of its
// file. must_run: a model that kvrun cannot run is refused before most of it is fetched; otherwise that is a warning.
// encoder: the repository's vision encoder is fetched, too, if kvrun runs it.
ModelPath pull_model(const std::string& name, bool must_run, bool encoder);

// For -hf: a model that is present is used, as it is; another one is fetched first.
ModelPath model_of_hub(const std::string& name, bool encoder);

struct RemovedModel {
	std::string name; // in full
	uint64_t bytes = 0;
};
// Deletes a model of the hub's cache or of kvrun's own folder by its name ("USER/REPO": all of its models, and parts
// left by interrupted fetches; else a beginning that means one model). Throws Error{NotFound}, and Error{Invalid} for
// several models and for other folders.
RemovedModel remove_model(const std::string& name);

} // namespace kvrun
