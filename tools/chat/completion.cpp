// Words and paths that begin as what is typed.
#include "tools/chat/completion.h"
#include "engine/core/system/files.h"
#include "tools/text.h"
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace kvrun {
namespace fs = std::filesystem;

// Whether a line can hold it.
static bool is_plain(const std::string& name) {
	const auto is_control = [](char c) { return uint8_t(c) < 0x20 || c == 0x7f; };
	return std::ranges::none_of(name, is_control) && well_formed(name) == name;
}

std::vector<std::string> beginning_with(std::string_view typed, std::vector<std::string> words) {
	std::erase_if(words, [&](const std::string& w) { return !w.starts_with(typed); });
	std::ranges::sort(words);
	return words;
}

std::vector<std::string> paths_beginning(const std::string& typed, const std::string& home) {
	const std::string folder = typed.substr(0, typed.rfind('/') + 1); // empty where there is no slash
	const std::string name = typed.substr(folder.size());
	const std::string where = folder.empty() ? "." : folder.starts_with("~/") ? home + folder.substr(1) : folder;
	std::vector<std::string> out;
	std::error_code ec;
	for (fs::directory_iterator it(sys::path_of(where), ec), end; !ec && it != end; it.increment(ec)) {
		const std::string found = it->path().filename().string();
		if (name.empty() && found.starts_with('.')) continue;
		if (!is_plain(found)) continue;
		std::error_code unknown;
		out.push_back(folder + found + (it->is_directory(unknown) ? "/" : ""));
	}
	return beginning_with(typed, std::move(out));
}

std::string common_beginning(const std::vector<std::string>& words) {
	if (words.empty()) return {};
	std::string out = words.front();
	for (const std::string& w : words) out.resize(size_t(std::ranges::mismatch(out, w).in1 - out.begin()));
	while (!is_plain(out)) out.pop_back(); // the words part within a character
	return out;
}

} // namespace kvrun
