// A session in a file: the packed cache as it lies on the device, the tokens, and a note of the caller.
//
// A header, then sections without gaps: facts (JSON), tokens (u32), books of the cache (engine/kv_host/books.h), device
// data, the note. Numbers are little-endian. The header has the length and the XXH3 hash of each section, and a hash of
// itself.
#pragma once
#include "engine/core/new_file.h"
#include "engine/run/session.h"
#include <string>
#include <vector>

namespace kvrun {

constexpr size_t kMaxNote = size_t(64) << 20; // bytes

// Writes the whole session file. It is on disk only after NewFile::commit().
void write_session(Session&, NewFile&, std::span<const std::byte> note);
// Throws Error{Io, NotFound} naming the path; the file is then unchanged.
void save_session(Session&, const std::string& path, std::span<const std::byte> note);

// A session of this engine's model with the saved policy, context and tokens, without its checkpoints. On the same
// device its next logits are bit-identical to those of the saved session. Throws Error{Format} for a damaged file,
// {Unsupported} for one of a newer version, {Invalid} for one of another model, {OutOfMemory}; each names the path and
// what is wrong in the file.
std::unique_ptr<Session> restore_session(Engine&, const std::string& path, uint32_t checkpoints = 0);

std::vector<std::byte> read_session_note(const std::string& path); // checked as above, except the model

} // namespace kvrun
