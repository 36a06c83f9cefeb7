// Files of Windows: its own calls with wide names, behind descriptors of the C library.
#include "engine/core/system/files.h"
#include "engine/core/system/wide.h"
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <io.h>
#include <random>
#include <winioctl.h>

namespace kvrun::sys {
namespace {

constexpr size_t kMost = size_t(1) << 30; // bytes of one call
constexpr int kTries = 20;                // of a replacement: a virus scanner may hold the file for a moment
constexpr DWORD kPause = 10;              // ms between them

int64_t ns_since_1970(FILETIME t) { // counts 100 ns since 1601
	return ((int64_t(t.dwHighDateTime) << 32 | t.dwLowDateTime) - 116'444'736'000'000'000) * 100;
}

FileKind kind_of(DWORD attributes, bool follow_link) {
	if (!follow_link && (attributes & FILE_ATTRIBUTE_REPARSE_POINT)) return FileKind::Link;
	return attributes & FILE_ATTRIBUTE_DIRECTORY ? FileKind::Folder : FileKind::Regular;
}

int open_handle(const std::string& path, DWORD access, DWORD creation, DWORD flags) {
	const DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
	const HANDLE h = CreateFileW(wide_path(path).c_str(), access, share, nullptr, creation, flags, nullptr);
	if (h == INVALID_HANDLE_VALUE) return fail_errno();
	const int fd =
	    _open_osfhandle(intptr_t(h), _O_BINARY | _O_NOINHERIT | (access & GENERIC_WRITE ? _O_RDWR : _O_RDONLY));
	if (fd < 0) CloseHandle(h);
	return fd;
}

OVERLAPPED at_place(uint64_t at) {
	OVERLAPPED o{};
	o.Offset = DWORD(at), o.OffsetHigh = DWORD(at >> 32);
	return o;
}

// Text that is typed, as UTF-8: the console gives other code pages to byte-wise readers.
ptrdiff_t read_console(HANDLE console, std::span<char> to) {
	wchar_t typed[1024];
	const DWORD room = DWORD(std::min<size_t>(std::size(typed), to.size() / 4));
	DWORD n = 0;
	if (!ReadConsoleW(console, typed, room, &n, nullptr)) return fail_errno();
	if (n && typed[0] == 26) return 0; // Ctrl-Z ends input
	const std::string text = narrow({typed, n});
	std::memcpy(to.data(), text.data(), text.size());
	return ptrdiff_t(text.size());
}

} // namespace

std::filesystem::path path_of(const std::string& utf8) { return wide(utf8); }

bool stat_file(const std::string& path, bool follow_link, FileInfo& out) {
	WIN32_FILE_ATTRIBUTE_DATA data;
	if (!GetFileAttributesExW(wide_path(path).c_str(), GetFileExInfoStandard, &data)) return fail_errno(), false;
	if (follow_link && (data.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT)) {
		const int fd = open_handle(path, FILE_READ_ATTRIBUTES, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS);
		if (fd < 0) return false;
		const bool good = stat_file(fd, out);
		_close(fd);
		return good;
	}
	out.kind = kind_of(data.dwFileAttributes, follow_link);
	out.bytes = uint64_t(data.nFileSizeHigh) << 32 | data.nFileSizeLow;
	out.changed_ns = ns_since_1970(data.ftLastWriteTime);
	return true;
}
bool stat_file(int fd, FileInfo& out) {
	const HANDLE h = handle_of(fd);
	switch (GetFileType(h)) {
	case FILE_TYPE_DISK: break;
	case FILE_TYPE_CHAR: return out.kind = FileKind::CharacterDevice, true;
	case FILE_TYPE_PIPE: return out.kind = FileKind::Fifo, true;
	default: return out.kind = FileKind::Other, true;
	}
	BY_HANDLE_FILE_INFORMATION data;
	if (!GetFileInformationByHandle(h, &data)) return fail_errno(), false;
	out.kind = kind_of(data.dwFileAttributes, /*follow_link=*/true);
	out.bytes = uint64_t(data.nFileSizeHigh) << 32 | data.nFileSizeLow;
	out.changed_ns = ns_since_1970(data.ftLastWriteTime);
	return true;
}
bool may_write(const std::string& path) { return _waccess(wide_path(path).c_str(), 2) == 0; }
bool may_execute(const std::string& path) { return _waccess(wide_path(path).c_str(), 4) == 0; }

int open_file(const std::string& path, Open how) {
	FileInfo info;
	const bool no_link = how == Open::ReadNoLink || how == Open::Create || how == Open::CreateShared;
	if (no_link && stat_file(path, false, info) && info.kind == FileKind::Link) return errno = ELOOP, -1;
	if (how == Open::Create || how == Open::CreateShared)
		return open_handle(path, GENERIC_READ | GENERIC_WRITE, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL);
	return open_handle(path, GENERIC_READ, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL);
}
int create_unique(std::string& name, int ending) {
	static thread_local std::mt19937_64 random{std::random_device()()};
	constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
	for (int i = 0; i < 100; ++i) {
		for (size_t k = 0; k < 6; ++k) name[name.size() - size_t(ending) - 6 + k] = kLetters[random() % 36];
		const int fd = open_handle(name, GENERIC_READ | GENERIC_WRITE, CREATE_NEW, FILE_ATTRIBUTE_NORMAL);
		if (fd >= 0 || errno != EEXIST) return fd;
	}
	return -1;
}
int create_unnamed(const std::string& folder, std::string* own_name) {
	std::string name = folder + "/kvrun-offload-XXXXXX";
	const int fd = create_unique(name);
	if (fd < 0) return fd;
	if (own_name) *own_name = name;
	_close(fd); // opened again as a file that goes with its handle, also after a crash
	return open_handle(name, GENERIC_READ | GENERIC_WRITE | DELETE, OPEN_EXISTING,
	                   FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE);
}
bool share_file(int) { return true; } // a new file has the access of its folder
bool close_file(int fd) { return _close(fd) == 0; }
int copy_descriptor(int fd) { return _dup(fd); }
bool replace_descriptor(int from, int to) { return _dup2(from, to) == 0; }
bool lock_file(int fd) { // a byte behind every content, so that the file can be read meanwhile
	OVERLAPPED far_end = at_place(uint64_t(1) << 62);
	if (LockFileEx(handle_of(fd), LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &far_end)) return true;
	return fail_errno(), false;
}

ptrdiff_t read_file(int fd, std::span<char> to) {
	DWORD mode;
	if (const HANDLE h = handle_of(fd); GetConsoleMode(h, &mode)) return read_console(h, to);
	return _read(fd, to.data(), unsigned(std::min(to.size(), kMost)));
}
ptrdiff_t read_at(int fd, uint64_t at, std::span<std::byte> to) {
	OVERLAPPED o = at_place(at);
	DWORD n = 0;
	if (ReadFile(handle_of(fd), to.data(), DWORD(std::min(to.size(), kMost)), &n, &o)) return ptrdiff_t(n);
	return GetLastError() == ERROR_HANDLE_EOF ? 0 : fail_errno();
}
void expect_sequential(int) {}

bool write_file(int fd, std::span<const std::byte> from) {
	while (!from.empty()) {
		const int n = _write(fd, from.data(), unsigned(std::min(from.size(), kMost)));
		if (n == 0) errno = ENOSPC;
		if (n <= 0) return false;
		from = from.subspan(size_t(n));
	}
	return true;
}
bool write_at(int fd, uint64_t at, std::span<const std::byte> from) {
	while (!from.empty()) {
		OVERLAPPED o = at_place(at);
		DWORD n = 0;
		if (!WriteFile(handle_of(fd), from.data(), DWORD(std::min(from.size(), kMost)), &n, &o))
			return fail_errno(), false;
		if (n == 0) return errno = ENOSPC, false;
		at += n;
		from = from.subspan(n);
	}
	return true;
}
bool sync_file(int fd) { return _commit(fd) == 0; }
bool cut_file(int fd, uint64_t bytes) {
	const HANDLE h = handle_of(fd);
	DWORD n = 0;
	LARGE_INTEGER size, end;
	end.QuadPart = int64_t(bytes);
	if (GetFileSizeEx(h, &size) && size.QuadPart < end.QuadPart)
		DeviceIoControl(h, FSCTL_SET_SPARSE, nullptr, 0, nullptr, 0, &n, nullptr);
	if (SetFilePointerEx(h, end, nullptr, FILE_BEGIN) && SetEndOfFile(h)) return true;
	return fail_errno(), false;
}

bool replace_file(const std::string& from, const std::string& to) {
	const std::wstring a = wide_path(from), b = wide_path(to);
	for (int i = 1; !MoveFileExW(a.c_str(), b.c_str(), MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH); ++i) {
		const DWORD error = GetLastError();
		if (i >= kTries || (error != ERROR_ACCESS_DENIED && error != ERROR_SHARING_VIOLATION))
			return set_errno(error), false;
		Sleep(kPause);
	}
	return true;
}
void sync_folder(const std::string&) {} // replace_file() has written through
bool remove_file(const std::string& path) { return DeleteFileW(wide_path(path).c_str()) || (fail_errno(), false); }
bool make_folder(const std::string& path) {
	return CreateDirectoryW(wide_path(path).c_str(), nullptr) || (fail_errno(), false);
}
void for_owner_only(const std::function<void()>& make) { make(); }
Claim claim_folder(const std::string& path) {
	FileInfo info;
	if (!stat_file(path, /*follow_link=*/false, info)) return Claim::Failed;
	return info.kind == FileKind::Folder ? Claim::Ours : Claim::NoFolder;
}

size_t map_unit() {
	SYSTEM_INFO info;
	GetSystemInfo(&info);
	return info.dwAllocationGranularity;
}
int reserve_room(int fd, uint64_t at, uint64_t bytes) {
	LARGE_INTEGER size, end;
	if (!GetFileSizeEx(handle_of(fd), &size)) return fail_errno(), errno;
	if (uint64_t(size.QuadPart) >= at + bytes) return 0;
	end.QuadPart = int64_t(at + bytes);
	if (SetFilePointerEx(handle_of(fd), end, nullptr, FILE_BEGIN) && SetEndOfFile(handle_of(fd))) return 0;
	return fail_errno(), errno;
}
void* map_file(int fd, uint64_t at, size_t bytes) {
	const HANDLE section = CreateFileMappingW(handle_of(fd), nullptr, PAGE_READWRITE, 0, 0, nullptr);
	void* memory = nullptr;
	if (section) memory = MapViewOfFile(section, FILE_MAP_WRITE, DWORD(uint64_t(at) >> 32), DWORD(at), bytes);
	if (!memory) fail_errno();
	if (section) CloseHandle(section);
	return memory;
}
void unmap_file(void* memory, size_t) { UnmapViewOfFile(memory); }
void give_room(int fd, uint64_t at, uint64_t bytes) {
	FILE_ZERO_DATA_INFORMATION range;
	range.FileOffset.QuadPart = int64_t(at), range.BeyondFinalZero.QuadPart = int64_t(at + bytes);
	DWORD n = 0;
	if (DeviceIoControl(handle_of(fd), FSCTL_SET_ZERO_DATA, &range, sizeof range, nullptr, 0, &n, nullptr)) return;
	if (void* memory = map_file(fd, at, bytes)) std::memset(memory, 0, bytes), unmap_file(memory, bytes);
}
bool prepare_write(void*, size_t) { return true; } // a fault of the disk ends the process there

} // namespace kvrun::sys
