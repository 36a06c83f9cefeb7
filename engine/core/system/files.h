// File operations of POSIX and Windows: descriptors, metadata, locks, atomic replacement, memory maps. Names are UTF-8.
// A function that fails sets errno, on Windows too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <system_error>

namespace kvrun::sys {

// What the system says about a value of errno: "No such file or directory".
inline std::string error_text(int error) { return std::generic_category().message(error); }

// On Windows the C++ library reads narrow names in another encoding; string() of this path is UTF-8 again.
std::filesystem::path path_of(const std::string& utf8);

enum class FileKind : uint8_t { Regular, Folder, Link, Fifo, Socket, CharacterDevice, BlockDevice, Other };
struct FileInfo {
	FileKind kind = FileKind::Other;
	uint64_t bytes = 0;
	int64_t changed_ns = 0; // last change of its content, since 1970
	// On Windows these keep their defaults: access control lists of a user's folders let nobody else write there.
	bool own = true;           // this user owns it
	bool others_write = false; // users other than the owner may write to it
	bool open_to_others = false;

	bool regular() const { return kind == FileKind::Regular; }
};
bool stat_file(const std::string& path, bool follow_link, FileInfo&);
bool stat_file(int fd, FileInfo&);
bool may_write(const std::string& path);
bool may_execute(const std::string& path);

enum class Open {
	Read,       // never waits for a FIFO's writer
	ReadNoLink, // the same, but fails with ELOOP if the name is a symbolic link
	ReadWaiting,
	Create,       // for writing; created with mode 0600 if it is missing; a link is not followed
	CreateShared, // the same, with mode 0644
};
int open_file(const std::string& path, Open);
// Creates a new file with mode 0600. The letters XXXXXX before the last `ending` bytes of `name` become unique ones.
int create_unique(std::string& name, int ending = 0);
// Without a name; closing it removes it. name: one by which this process can open it meanwhile.
int create_unnamed(const std::string& folder, std::string* name = nullptr);
bool share_file(int fd); // gives it the mode of new files, 0666 without the bits of the umask
bool close_file(int fd);
int copy_descriptor(int fd); // another descriptor of the same open file; -1: there is none
bool replace_descriptor(int from, int to);
bool lock_file(int fd); // until it is closed; false if another process holds the lock; never waits

// Return the bytes read, 0 at the end, -1 for an error; calls that a signal interrupts are repeated.
ptrdiff_t read_file(int fd, std::span<char>);
ptrdiff_t read_at(int fd, uint64_t at, std::span<std::byte>);
void expect_sequential(int fd);                      // the file will be read from its beginning to its end
bool write_file(int fd, std::span<const std::byte>); // all of it
bool write_at(int fd, uint64_t at, std::span<const std::byte>);
bool sync_file(int fd);
bool cut_file(int fd, uint64_t bytes); // to this length; where it becomes longer, nothing is allocated

bool replace_file(const std::string& from, const std::string& to); // readers of `to` see the old file or the new one
void sync_folder(const std::string& path);                         // so that a new name in it survives a power failure
bool remove_file(const std::string& path);
bool make_folder(const std::string& path); // mode 0700; false, with EEXIST, if it exists already

void for_owner_only(const std::function<void()>& make); // files that `make` creates are accessible to this user alone

enum class Claim { Ours, NoFolder, Foreign, Failed };
Claim claim_folder(const std::string& path); // makes it accessible to this user alone; a link counts as NoFolder

// Parts of a file mapped to memory. Sizes and offsets are multiples of map_unit().
size_t map_unit();
int reserve_room(int fd, uint64_t at, uint64_t bytes); // allocates disk space; returns 0 or an errno value
void* map_file(int fd, uint64_t at, size_t bytes);     // null: see errno; zeroed where give_room() was called
void unmap_file(void* memory, size_t bytes);
void give_room(int fd, uint64_t at, uint64_t bytes); // frees disk space; the content is lost
bool prepare_write(void* memory, size_t bytes);      // false, with EFAULT, if a write would raise a signal

} // namespace kvrun::sys
