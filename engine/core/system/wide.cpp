// Texts in UTF-8 and UTF-16, errors as errno.
#include "engine/core/system/wide.h"
#include <cerrno>

namespace kvrun::sys {

std::wstring wide(std::string_view utf8) {
	std::wstring out(size_t(MultiByteToWideChar(CP_UTF8, 0, utf8.data(), int(utf8.size()), nullptr, 0)), 0);
	MultiByteToWideChar(CP_UTF8, 0, utf8.data(), int(utf8.size()), out.data(), int(out.size()));
	return out;
}
std::string narrow(std::wstring_view text) {
	std::string out(
	    size_t(WideCharToMultiByte(CP_UTF8, 0, text.data(), int(text.size()), nullptr, 0, nullptr, nullptr)), 0);
	WideCharToMultiByte(CP_UTF8, 0, text.data(), int(text.size()), out.data(), int(out.size()), nullptr, nullptr);
	return out;
}

std::wstring wide_path(const std::string& path) {
	std::wstring out = wide(path);
	if (out.size() < MAX_PATH - 13 || out.starts_with(L"\\\\?\\")) return out; // a folder leaves room for an 8.3 name
	std::wstring whole(32768, 0);
	const DWORD n = GetFullPathNameW(out.c_str(), DWORD(whole.size()), whole.data(), nullptr);
	if (n == 0 || n >= whole.size()) return out;
	whole.resize(n);
	return whole.starts_with(L"\\\\") ? L"\\\\?\\UNC\\" + whole.substr(2) : L"\\\\?\\" + whole;
}

int set_errno(DWORD error) {
	switch (error) {
	case ERROR_FILE_NOT_FOUND:
	case ERROR_PATH_NOT_FOUND:
	case ERROR_INVALID_NAME:
	case ERROR_BAD_NETPATH:
	case ERROR_BAD_PATHNAME:
	case ERROR_INVALID_DRIVE: errno = ENOENT; break;
	case ERROR_DIRECTORY: errno = ENOTDIR; break;
	case ERROR_ACCESS_DENIED:
	case ERROR_SHARING_VIOLATION: errno = EACCES; break;
	case ERROR_LOCK_VIOLATION: errno = EWOULDBLOCK; break;
	case ERROR_FILE_EXISTS:
	case ERROR_ALREADY_EXISTS: errno = EEXIST; break;
	case ERROR_DISK_FULL:
	case ERROR_HANDLE_DISK_FULL: errno = ENOSPC; break;
	case ERROR_BROKEN_PIPE:
	case ERROR_NO_DATA: errno = EPIPE; break;
	case ERROR_FILENAME_EXCED_RANGE: errno = ENAMETOOLONG; break;
	case ERROR_NOT_ENOUGH_MEMORY:
	case ERROR_OUTOFMEMORY: errno = ENOMEM; break;
	case ERROR_TOO_MANY_OPEN_FILES: errno = EMFILE; break;
	case ERROR_INVALID_HANDLE: errno = EBADF; break;
	case ERROR_OPERATION_ABORTED: errno = EINTR; break;
	default: errno = EIO;
	}
	return -1;
}

} // namespace kvrun::sys
