// For files of the Windows build only: windows.h without its macros, texts in UTF-8 and UTF-16, errors as errno.
#pragma once
#include <io.h>
#include <string>
#include <string_view>
#include <windows.h>

namespace kvrun::sys {

std::wstring wide(std::string_view utf8);
std::string narrow(std::wstring_view text);
std::wstring wide_path(const std::string& path); // also of more than 260 characters
int set_errno(DWORD error);                      // of GetLastError(); -1
inline HANDLE handle_of(int fd) { return reinterpret_cast<HANDLE>(_get_osfhandle(fd)); }
inline int fail_errno() { return set_errno(GetLastError()); }

} // namespace kvrun::sys
