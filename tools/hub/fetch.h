// Files of a repository into the hub's cache on this machine, in the layout that huggingface_hub reads and writes:
// blobs/HASH, snapshots/COMMIT/PATH -> the blob, refs/main.
#pragma once
#include "tools/hub/remote.h"
#include <filesystem>
#include <functional>

namespace kvrun {

// Bytes of this file that are here: all, or the part that an earlier run left.
uint64_t bytes_here(const RemoteRepo&, const HubFile&);

// Throws Error{Io} where the disk has no room for what is missing of the files.
void check_room(const RemoteRepo&, const std::vector<HubFile>&);

// The file's beginning, `bytes` of it at most, as a part that fetch_files() goes on with; its path. Throws as it.
std::filesystem::path fetch_beginning(const RemoteRepo&, const HubFile&, uint64_t bytes);

// Fetches what is missing of the files, checks it, and gives it its names; the path of the first. Shows progress on
// stderr. A cut is continued, now and by the next call. Throws Error{Io}: network, disk; Error{Format}: another content
// than the hub says; Exit{130} after Ctrl-C, when the part stays.
std::filesystem::path fetch_files(const RemoteRepo&, const std::vector<HubFile>&);

// The path of a file in the snapshot, here or not.
std::filesystem::path snapshot_path(const RemoteRepo&, const HubFile&);

} // namespace kvrun
