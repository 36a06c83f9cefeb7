// For test programs of Windows, included before every file: the few names of POSIX that portable tests use.
#pragma once
#define _USE_MATH_DEFINES // M_PI
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include <cstdlib>
#include <ctime>
#include <io.h>
#include <process.h>

inline int setenv(const char* name, const char* value, int overwrite) {
	if (overwrite || !std::getenv(name)) kvrun::sys::set_variable(name, value);
	return 0;
}
inline int unsetenv(const char* name) { return kvrun::sys::set_variable(name, ""), 0; }

inline char* mkdtemp(char* name) {
	std::string unique = name;
	const int fd = kvrun::sys::create_unique(unique); // the name of a file that is not there any more
	if (fd < 0) return nullptr;
	kvrun::sys::close_file(fd);
	kvrun::sys::remove_file(unique);
	if (!kvrun::sys::make_folder(unique)) return nullptr;
	return unique.copy(name, unique.size()), name;
}
