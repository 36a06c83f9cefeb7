// Names on a model hub: repositories, what their files are called, and which of them may become files here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct RepoName {
	std::string repo; // "USER/REPO"
	std::string want; // what stands behind the colon: a quant or a file; empty: nothing
};
// "USER/REPO[:QUANT]"; the address of its page is taken too. Throws Error{Invalid}.
RepoName parse_repo(std::string_view text);
// The same; nullopt: it is none.
std::optional<RepoName> as_repo(std::string_view text);

// A relative path below a folder, whose parts are names that no file system reads as something else.
bool is_safe_path(std::string_view path);

bool is_gguf(std::string_view path);
// Of a split model: "NAME-00002-of-00003.gguf".
struct SplitName {
	std::string stem; // "NAME", with its folder
	uint32_t number, count;
};
std::optional<SplitName> split_name(std::string_view path);

// "Q4_K_M" of "folder/SmolLM2-135M-Instruct-Q4_K_M.gguf"; empty: its name says none.
std::string quant_of(std::string_view path);
std::string lower_case(std::string_view);

struct HubFile {
	std::string path; // in the repository
	uint64_t bytes = 0;
	std::string sha256; // of the content; empty: not stored as a large file
	std::string git_id; // SHA-1 of a git object; empty: not known
};
// One model of a repository: a file, or the parts of a split one, in order.
struct HubModel {
	std::string quant; // name behind the colon: the quant, else the file's name without its end
	std::vector<HubFile> files;
	uint64_t bytes() const;
};
// The models among files of one repository, by size; files that belong to a model without being one are left out
// (projectors of pictures, importance matrices).
std::vector<HubModel> models_of(std::vector<HubFile> files);
// The one that `want` names: a quant or a file, whatever its case; null: none.
const HubModel* find_model(const std::vector<HubModel>&, const std::string& want);

} // namespace kvrun
