// Models that are on this machine already: found in the folders of kvrun and of other programs, and by name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvrun {

struct LocalModel {
	std::string name;  // what commands take: "USER/REPO:QUANT", "llama3.2:1b", a file's name
	std::string owner; // of the folder: ModelFolder::owner
	std::string path;  // of the file, or of the first part
	uint64_t bytes = 0;
	uint32_t parts = 1;
	std::string repo; // "USER/REPO" where the owner has such; empty: none
};

// Sorted by name. A split model is listed where all parts are there. Folders that cannot be read hold none.
std::vector<LocalModel> local_models();

// Models that `name` means: those it names in full, else those whose names begin with it, whatever case and
// punctuation.
std::vector<LocalModel> find_local(const std::vector<LocalModel>&, const std::string& name);

// The path of the model that a command is given: a file, or a model here by its name. Throws Error{NotFound} with what
// can be done, Error{Invalid} where the name means several.
std::string resolve_model(const std::string& given);

} // namespace kvrun
