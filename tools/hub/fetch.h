// Fetches files of a repository into the hub's cache on this machine, in the layout of huggingface_hub: blobs/HASH,
// snapshots/COMMIT/PATH -> the blob, refs/main.
#pragma once
#include "tools/hub/remote.h"
#include <filesystem>
#include <functional>

namespace kvrun {

// Bytes of this file that are present: all, or the part left by an earlier run.
uint64_t bytes_here(const RemoteRepo&, const HubFile&);

// Throws Error{Io} if the disk has no room for the missing bytes of the files.
void check_room(const RemoteRepo&, const std::vector<HubFile>&);

// Fetches the first bytes of the file, at most `bytes`, as a part that fetch_files() continues; returns its path.
// Throws as fetch_files().
std::filesystem::path fetch_beginning(const RemoteRepo&, const HubFile&, uint64_t bytes);

// Fetches missing bytes of the files, checks them and creates their names; returns the path of the first. Shows
// progress on stderr. An interrupted transfer is continued, in this call and by the next one. Throws Error{Io} for
// network and disk, Error{Format} if the content differs from the hub's hash, Exit{130} after Ctrl-C; the part then
// stays.
std::filesystem::path fetch_files(const RemoteRepo&, const std::vector<HubFile>&);

// The path of a file in the snapshot, whether it exists or not.
std::filesystem::path snapshot_path(const RemoteRepo&, const HubFile&);

} // namespace kvrun
