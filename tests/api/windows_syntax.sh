#!/usr/bin/env bash
# Checks with mingw-w64 that the files of Windows compile: no program is made. Exit code 77: mingw-w64 is not here.
#   tests/api/windows_syntax.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
compiler=$(command -v x86_64-w64-mingw32-g++-posix || true)
if [ -z "$compiler" ]; then
	echo "skipped: no mingw-w64 (package g++-mingw-w64-x86-64-posix)"
	exit 77
fi
# this system's headers of libraries that are headers alone, and none of its other ones
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
for name in fmt nlohmann CLI utf8proc.h; do
	if [ -e "/usr/include/$name" ]; then ln -s "/usr/include/$name" "$headers/$name"; fi
done
flags=(-std=c++20 -fsyntax-only -Wall -Wextra -Werror -Wno-restrict -Wno-subobject-linkage -I. -Ishaders
	-isystem "$headers" -DKVRUN_BUILD -DFMT_HEADER_ONLY -DNOMINMAX -DWIN32_LEAN_AND_MEAN -D_WIN32_WINNT=0x0A00
	-DNTDDI_VERSION=0x0A000006 -DKVRUN_VERSION='"0"')
mapfile -t files < <(find engine tools -name '*_windows.cpp' | sort)
files+=(engine/core/system/wide.cpp tools/chat/editor_console.cpp)
[ ${#files[@]} -gt 8 ]
# one file that has them all: their names are unique, as in a unity build
printf '#include "%s"\n' "${files[@]}" >"$headers/all.cpp"
"$compiler" "${flags[@]}" "$headers/all.cpp"
# it can fail: what only POSIX has is refused
if "$compiler" "${flags[@]}" -x c++ - <<<'#include <sys/wait.h>' 2>/dev/null; then
	echo "error: a header of POSIX was taken" >&2
	exit 1
fi
echo "${#files[@]} files of Windows compile with $("$compiler" -dumpversion)"
