// IDs of answers and requests.
#pragma once
#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace kvrun::serve {

// The prefix followed by 24 random letters and digits.
inline std::string new_id(const char* prefix) {
	static thread_local std::mt19937_64 random{std::random_device()()};
	static constexpr const char* digits = "0123456789abcdefghijklmnopqrstuvwxyz";
	std::string id = prefix;
	for (int i = 0; i < 24; ++i) id += digits[random() % 36];
	return id;
}

// The ids of an answer's calls of tools: those that the model writes itself, if they tell calls apart, else random
// ones.
class CallIds {
 public:
	explicit CallIds(const char* prefix) : prefix_(prefix) {}
	const std::string& of(size_t call, const std::string& written) {
		while (ids_.size() <= call) ids_.push_back(counted(written) ? new_id(prefix_) : written);
		return ids_[call];
	}

 private:
	// A number, as of Command R's calls, or what the library gives calls without an id: call00000.
	static bool counted(const std::string& id) {
		const size_t word = id.starts_with("call") ? 4 : 0;
		return std::all_of(id.begin() + ptrdiff_t(word), id.end(), [](char c) { return c >= '0' && c <= '9'; });
	}
	const char* const prefix_;
	std::vector<std::string> ids_; // by the call's number in the answer
};

} // namespace kvrun::serve
