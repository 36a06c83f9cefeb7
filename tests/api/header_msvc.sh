#!/usr/bin/env bash
# Checks the syntax of kvrun.h with clang for the target of Microsoft's compiler, as C and as C++, for users of the DLL
# and of a static library. Exit code 77: there is no clang.
#   tests/api/header_msvc.sh SOURCE_FOLDER
set -euo pipefail
header=$1/engine/kvrun.h
clang=$(command -v clang || compgen -c clang- | grep -xE 'clang-[0-9]+' | sort -V | tail -n 1 || true)
if [ -z "$clang" ]; then
	echo "skipped: no clang (package clang)"
	exit 77
fi
# -ffreestanding: clang's own stddef.h and stdint.h, for Microsoft's are not here
flags=(--target=x86_64-pc-windows-msvc -fsyntax-only -ffreestanding -Wall -Wextra -Wpedantic -Werror)
for language in "c -std=c11" "c++ -std=c++14" "c++ -std=c++20"; do
	for use in -DKVRUN_USER -DKVRUN_STATIC -DKVRUN_BUILD; do
		read -r lang standard <<<"$language"
		"$clang" "${flags[@]}" -x "$lang" "$standard" "$use" -include "$header" - <<<'
			int main(void) { return kvrun_abi_version() == KVRUN_ABI_VERSION ? 0 : 1; }'
	done
done
# it can fail: what only GNU C takes is refused
if "$clang" "${flags[@]}" -x c -std=c11 - <<<'int f(void) { return ({ 1; }); }' 2>/dev/null; then
	echo "error: a GNU extension was taken" >&2
	exit 1
fi
echo "kvrun.h: C11, C++14 and C++20 for $("$clang" --version | head -n 1), target x86_64-pc-windows-msvc"
