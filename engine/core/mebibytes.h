// Amounts of memory in messages.
#pragma once
#include <fmt/format.h>
#include <string>
#include <utility>

namespace kvrun {

inline std::string mebibytes(size_t bytes) { return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20)); }
// What is needed and what is there, in MiB, with as many digits as show that they differ.
inline std::pair<std::string, std::string> mebibytes_apart(size_t need, size_t have) {
	for (int digits = 1; digits <= 4; ++digits) {
		std::pair<std::string, std::string> both = {fmt::format("{:.{}f} MiB", double(need) / (1 << 20), digits),
		                                            fmt::format("{:.{}f} MiB", double(have) / (1 << 20), digits)};
		if (both.first != both.second) return both;
	}
	return {fmt::format("{} bytes", need), fmt::format("{} bytes", have)};
}

} // namespace kvrun
