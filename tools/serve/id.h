// IDs of answers and requests.
#pragma once
#include <random>
#include <string>

namespace kvrun::serve {

// The prefix followed by 24 random letters and digits.
inline std::string new_id(const char* prefix) {
	static thread_local std::mt19937_64 random{std::random_device()()};
	static constexpr const char* digits = "0123456789abcdefghijklmnopqrstuvwxyz";
	std::string id = prefix;
	for (int i = 0; i < 24; ++i) id += digits[random() % 36];
	return id;
}

} // namespace kvrun::serve
