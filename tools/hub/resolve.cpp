// Models on this machine, by name.
#include "engine/core/edit_distance.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "models/synth/shape.h"
#include "tools/hub/local.h"
#include "tools/hub/names.h"
#include <algorithm>
#include <cctype>
#include <fmt/ranges.h>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

// The full names of a model.
std::vector<std::string> names_of(const LocalModel& m) {
	std::vector<std::string> out = {m.name};
	const size_t colon = m.name.find(':');
	if (colon != m.name.npos) out.push_back(m.name.substr(0, colon));
	if (m.owner == "ollama" && !m.name.ends_with(":latest")) out.pop_back();
	for (size_t i = 0, n = out.size(); i < n; ++i)
		if (const size_t slash = out[i].find('/'); slash != out[i].npos) out.push_back(out[i].substr(slash + 1));
	if (m.owner != "ollama") out.push_back(sys::path_of(m.path).stem().string());
	return out;
}

} // namespace

// The name without the address of its page: hf.co/USER/REPO:QUANT is USER/REPO:QUANT.
static std::string without_host(const std::string& given) {
	const auto repo = as_repo(given);
	return !repo ? given : repo->want.empty() ? repo->repo : repo->repo + ":" + repo->want;
}

std::optional<LocalModel> local_of_repo(const std::vector<LocalModel>& all, const RepoName& asked) {
	std::vector<std::string> paths;
	std::vector<const LocalModel*> models;
	for (const LocalModel& m : all) {
		if (lower_case(m.repo) != lower_case(asked.repo)) continue;
		paths.push_back(sys::path_of(m.path).generic_string());
		models.push_back(&m);
	}
	const auto at = find_path(paths, asked.want);
	return at ? std::optional(*models[*at]) : std::nullopt;
}

std::vector<LocalModel> find_local(const std::vector<LocalModel>& all, const std::string& typed) {
	const std::string given = without_host(typed);
	const std::string name = lower_case(given), begins = bare_name(given);
	std::vector<LocalModel> exact, similar;
	for (const LocalModel& m : all) {
		const std::vector<std::string> names = names_of(m);
		if (std::ranges::any_of(names, [&](const std::string& n) { return lower_case(n) == name; }))
			exact.push_back(m);
		else if (!begins.empty() &&
		         std::ranges::any_of(names, [&](const std::string& n) { return bare_name(n).starts_with(begins); }))
			similar.push_back(m);
	}
	if (const auto repo = as_repo(given); exact.empty() && repo)
		if (auto m = local_of_repo(all, *repo)) exact.push_back(std::move(*m));
	std::vector<LocalModel>& found = exact.empty() ? similar : exact;
	if (found.size() > 1 && std::ranges::count(found, given, &LocalModel::name) == 1)
		std::erase_if(found, [&](const LocalModel& m) { return m.name != given; });
	// one file under several names, or in folders of two programs, is one model
	std::vector<LocalModel> out;
	for (LocalModel& m : found) {
		std::error_code ec;
		if (std::ranges::none_of(out, [&](const LocalModel& o) {
			    return fs::equivalent(sys::path_of(o.path), sys::path_of(m.path), ec);
		    }))
			out.push_back(std::move(m));
	}
	return out;
}

namespace {

// Names of local models that are most similar to the given one, the nearest first.
std::vector<std::string> nearest_names(const std::vector<LocalModel>& all, const std::string& given) {
	constexpr size_t kMost = 3, kLongest = 64;
	const std::string word = bare_name(given).substr(0, kLongest);
	std::vector<std::pair<size_t, std::string>> found;
	for (const LocalModel& m : all) {
		size_t best = SIZE_MAX;
		for (const std::string& n : names_of(m)) {
			const std::string b = bare_name(n).substr(0, kLongest);
			// for a longer name only its beginning counts
			best = std::min(best, edit_distance(word, b.substr(0, word.size() + 1)));
		}
		if (best <= std::max<size_t>(1, word.size() / 2)) found.emplace_back(best, m.name);
	}
	std::ranges::stable_sort(found, {}, &std::pair<size_t, std::string>::first);
	std::vector<std::string> out;
	for (size_t i = 0; i < found.size() && i < kMost; ++i) out.push_back(one_line(found[i].second));
	return out;
}

// "here is: ..", or where the names are
std::string what_is_here(const std::vector<LocalModel>& all, const std::string& given) {
	const std::vector<std::string> similar = nearest_names(all, given);
	if (!similar.empty())
		return fmt::format("here {}: {}", similar.size() == 1 ? "is" : "are", fmt::join(similar, ", "));
	return all.empty() ? "no models are here yet" : "'kvrun list' shows what is here";
}

[[noreturn]] void fail_several(const std::vector<LocalModel>& found, const std::string& given) {
	constexpr size_t kMost = 8;
	std::vector<std::string> names;
	for (const LocalModel& m : found)
		if (names.size() < kMost) names.push_back(one_line(m.name));
	fail(Code::Invalid, "'{}' means {} models here: {}{}; give one of these names", one_line(given), found.size(),
	     fmt::join(names, ", "), found.size() > kMost ? ", .." : "");
}

[[noreturn]] void fail_unknown(const std::vector<LocalModel>& all, const std::string& given) {
	const auto repo = as_repo(given);
	std::string text =
	    fmt::format("no file and no model here is called '{}'; {}; ", one_line(given), what_is_here(all, given));
	text += repo ? fmt::format("'kvrun pull {}' fetches it", one_line(given))
	             : "'kvrun pull USER/REPO' fetches one from huggingface.co";
	text += "; or give the path of a .gguf file";
	fail(Code::NotFound, "{}", text);
}

} // namespace

ModelPath resolve_model(const std::string& given) {
	std::error_code ec;
	if (given.empty() || given.find('\0') != given.npos || is_synth(given)) return {given, ""};
	const fs::file_status here = fs::status(sys::path_of(given), ec);
	const bool path = is_gguf(given) || given.starts_with("/") || given.starts_with("./") || given.starts_with("../") ||
	                  given.starts_with("~");
	const bool folder = fs::is_directory(here) && !given.ends_with("/"); // is no model, and may be called as one
	if (path || here.type() == fs::file_type::none || (fs::exists(here) && !folder))
		return {given, ""}; // opening the file reports what is wrong
	const std::vector<LocalModel> all = local_models();
	const std::vector<LocalModel> found = find_local(all, given);
	if (found.empty() && folder) return {given, ""};
	if (found.empty()) fail_unknown(all, given);
	if (found.size() == 1) return {found[0].path, found[0].encoder};
	fail_several(found, given);
}

void fail_no_local(const std::vector<LocalModel>& all, const std::string& given) {
	fail(Code::NotFound, "no model here is called '{}'; {}", one_line(given), what_is_here(all, given));
}

LocalModel one_local(const std::vector<LocalModel>& all, const std::string& given) {
	const std::vector<LocalModel> found = find_local(all, given);
	if (found.empty()) fail_no_local(all, given);
	if (found.size() > 1) fail_several(found, given);
	return found[0];
}

} // namespace kvrun
