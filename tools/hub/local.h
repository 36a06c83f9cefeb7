// Models on this machine: found in the folders of kvrun and of other programs, and by name.
#pragma once
#include "tools/hub/folders.h"
#include "tools/hub/names.h"
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvrun {

struct LocalModel {
	std::string name;  // name for commands: "USER/REPO:QUANT", "llama3.2:1b", a file's name
	std::string owner; // of the folder: ModelFolder::owner
	std::string path;  // of the file, or of the first part
	uint64_t bytes = 0;
	uint32_t parts = 1;
	std::string repo;    // "USER/REPO" if the owner has repositories; else empty
	std::string encoder; // file of the repository's vision encoder; empty: none
};
struct ModelPath {
	std::string path;    // of the file, or of the first part
	std::string encoder; // LocalModel::encoder; of a file that is given by its path empty
};

// Sorted by name. A split model is listed if all parts exist. Folders that cannot be read are skipped. stop: called
// often; true ends the search.
std::vector<LocalModel> local_models(
    const std::vector<ModelFolder>& folders = model_folders(),
    const std::function<bool()>& stop = [] { return false; });

// Models with the full name `name`, or the address of its page; else those whose names begin with it. Case and
// punctuation are ignored.
std::vector<LocalModel> find_local(const std::vector<LocalModel>&, const std::string& name);

// The model of a repository that `asked.want` means by its file, see find_path().
std::optional<LocalModel> local_of_repo(const std::vector<LocalModel>& all, const RepoName& asked);

// Throws Error{NotFound}: no model of `all` is called so, and which are similar.
[[noreturn]] void fail_no_local(const std::vector<LocalModel>& all, const std::string& given);
// The one model that `given` means; throws the same, or Error{Invalid} that lists several.
LocalModel one_local(const std::vector<LocalModel>& all, const std::string& given);

// The path of the model given to a command: a file, or a local model by its name. Throws Error{NotFound}, which says
// what to do, or Error{Invalid} if the name matches several.
ModelPath resolve_model(const std::string& given);

} // namespace kvrun
