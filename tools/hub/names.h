// Names on a model hub: repositories, names of their files, and which of them are safe as local paths.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct RepoName {
	std::string repo; // "USER/REPO"
	std::string want; // text after the colon: a quant or a file; may be empty
};
// Parses "USER/REPO[:QUANT]", or the address of its page. Throws Error{Invalid}.
RepoName parse_repo(std::string_view text);
// The same; nullopt: the text is something else.
std::optional<RepoName> as_repo(std::string_view text);

// Whether it is a relative path that stays below its folder, of names without a special meaning to file systems.
bool is_safe_path(std::string_view path);

bool is_gguf(std::string_view path);
bool is_encoder(std::string_view path); // a GGUF file with mmproj in its name
// Name of a part of a split model: "NAME-00002-of-00003.gguf".
struct SplitName {
	std::string stem; // "NAME", with its folder
	uint32_t number, count;
};
std::optional<SplitName> split_name(std::string_view path);
// The files of the model whose only file, or whose first part, is at `path`.
std::vector<std::string> part_names(const std::string& path);

// "Q4_K_M" of "folder/SmolLM2-135M-Instruct-Q4_K_M.gguf"; empty: the name has none.
std::string quant_of(std::string_view path);
std::string lower_case(std::string_view);
std::string bare_name(std::string_view); // its letters and digits in lower case

struct HubFile {
	std::string path; // in the repository
	uint64_t bytes = 0;
	std::string sha256; // of the content; empty: not stored as a large file
	std::string git_id; // SHA-1 of a git object; empty: unknown
};
// One model of a repository: a file, or the parts of a split one, in order.
struct HubModel {
	std::string quant; // name after the colon: the quant, else the file's name without its extension
	std::vector<HubFile> files;
	std::optional<HubFile> encoder; // the vision encoder beside it
	uint64_t bytes() const;
};
// The models among files of one repository, by size, without files that only accompany a model (importance matrices).
// A vision encoder (mmproj-F16.gguf) belongs to the models in its folder and below; of several, the one in f16 is
// taken, else in bf16, 8 bits, f32.
std::vector<HubModel> models_of(std::vector<HubFile> files);
// Which of the models' files `want` means, ignoring case: by its path, its name, or how that ends, as UD-Q4_K_XL.
// nullopt: none, or several.
std::optional<size_t> find_path(const std::vector<std::string>& paths, const std::string& want);
// The model that `want` names, a quant or a file, ignoring case; null: none.
const HubModel* find_model(const std::vector<HubModel>&, const std::string& want);

} // namespace kvrun
