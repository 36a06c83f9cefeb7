// Files that only this user can have written (caches): ownership and permissions are checked before reading, and set
// when writing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace kvrun {

// The bytes of a regular file that this user owns and nobody else may write to. Links are not followed, and FIFOs do
// not block. Empty if the file does not exist; empty with `why` set if it must not be used: "owned by another user".
std::vector<std::byte> read_private_file(const std::filesystem::path&, uint64_t most_bytes, std::string& why);

enum class Written {
	Yes,
	NoPlace, // the folder is missing or not writable
	Cut,     // no room for the bytes, or another fault while writing
};
// Replaces the file by these bytes, the spans in order, with mode 0600; missing folders are created with mode 0700.
// Readers, also after a crash, see the old file or the new one. Temporary files of ended processes are removed. On
// failure no new file is left and `why` names the fault. The caller must ignore SIGXFSZ.
Written write_private_file(const std::filesystem::path&, std::initializer_list<std::span<const std::byte>>,
                           std::string& why) noexcept;

} // namespace kvrun
