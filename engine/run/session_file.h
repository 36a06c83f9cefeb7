// A session in a file: the packed cache as it lies, the tokens, and bytes of the caller's.
//
// A header, then sections without gaps: facts (JSON), tokens (u32), books of the cache (engine/kv_host/books.h), what
// lies on the device, the note. Numbers are little-endian. The header has the length and the XXH3 hash of each section,
// and a hash of itself.
#pragma once
#include "engine/core/new_file.h"
#include "engine/run/session.h"
#include <string>
#include <vector>

namespace kvrun {

constexpr size_t kMaxNote = size_t(64) << 20; // bytes

// All of a session's file but its way to the disk, which NewFile::commit() waits for.
void write_session(Session&, NewFile&, std::span<const std::byte> note);
// Throws Error{Io, NotFound} naming the path; the file is then what it was before.
void save_session(Session&, const std::string& path, std::span<const std::byte> note);

// A session of this engine's model with the policy, the context and the tokens it had; without its checkpoints. Its
// next token is, to the bit, the one it would have had, on the same device. Throws Error{Format} for a damaged file,
// {Unsupported} for one of a newer version, {Invalid} for one of another model, {OutOfMemory}; each names the path and
// what in the file is wrong.
std::unique_ptr<Session> restore_session(Engine&, const std::string& path, uint32_t checkpoints = 0);

std::vector<std::byte> read_session_note(const std::string& path); // checked as above, but for the model

} // namespace kvrun
