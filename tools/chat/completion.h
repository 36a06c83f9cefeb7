// What the Tab key completes in a line.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct Completion {
	size_t from = 0;                // each of the words may stand for what is typed from here to the cursor
	std::vector<std::string> words; // sorted
};
using Completer = std::function<Completion(std::string_view typed)>;

std::vector<std::string> beginning_with(std::string_view typed, std::vector<std::string> words);
// Files, and folders with a slash behind them. `home` stands for the ~ of a path that begins with ~/.
std::vector<std::string> paths_beginning(const std::string& typed, const std::string& home);
// What all words begin with.
std::string common_beginning(const std::vector<std::string>& words);

} // namespace kvrun
