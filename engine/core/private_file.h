// Files that only this user may have written (caches): read when nobody else can have, written so that nobody else can.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace kvrun {

// The bytes of a regular file that this user owns and nobody else may write to; a link is not followed, a FIFO not
// waited for. Empty without the file. Empty and `why` set where it is not to be used: "owned by another user".
std::vector<std::byte> read_private_file(const std::filesystem::path&, uint64_t most_bytes, std::string& why);

enum class Written {
	Yes,
	NoPlace, // no folder, or none that takes files
	Cut,     // no room for the bytes, or another fault while writing
};
// Replaces the file by these bytes, one span after the other: mode 0600, in folders of mode 0700 where they are
// missing. Readers and a crash see the old file or the new one. Temporary files that ended processes left are removed.
// On failure nothing is left and `why` says what failed. SIGXFSZ is the caller's to ignore.
Written write_private_file(const std::filesystem::path&, std::initializer_list<std::span<const std::byte>>,
                           std::string& why) noexcept;

} // namespace kvrun
