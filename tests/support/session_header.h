// The header of a session file as a test sees it; recomputes checksums after a change.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <xxhash.h>

namespace kvrun {

// As in the comment of session_file.h: magic, version, sections, length, (bytes, hash) of each, hash.
constexpr size_t kSectionsAt = 24, kSectionCount = 5, kHashAt = kSectionsAt + kSectionCount * 16,
                 kHeaderBytes = kHashAt + 8;
inline uint64_t word(std::span<const std::byte> file, size_t at) {
	uint64_t x = 0;
	std::memcpy(&x, file.data() + at, 8);
	return x;
}
inline void set_word(std::span<std::byte> file, size_t at, uint64_t x) { std::memcpy(file.data() + at, &x, 8); }
// Recomputes all checksums, so that the content behind them is read. The file must have a header.
inline void seal(std::span<std::byte> file) {
	size_t at = kHeaderBytes;
	for (size_t i = 0; i < kSectionCount; ++i) {
		const size_t n = size_t(word(file, kSectionsAt + i * 16));
		if (n > file.size() - at) return;
		set_word(file, kSectionsAt + i * 16 + 8, XXH3_64bits(file.data() + at, n));
		at += n;
	}
	set_word(file, kHashAt, XXH3_64bits(file.data(), kHashAt));
}

} // namespace kvrun
