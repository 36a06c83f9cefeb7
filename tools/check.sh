#!/usr/bin/env bash
# The one command before a commit: Release build and tests, host tests under sanitizers, format of changed files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/environment.sh

cmake --preset release
cmake --build --preset release
cmake --preset asan
cmake --build --preset asan --target kvrun_tests
ctest --preset release
build-asan/tests/kvrun_tests --no-version

if command -v clang-format >/dev/null; then
	base=$(git merge-base HEAD main 2>/dev/null || echo HEAD)
	mapfile -t changed < <(git diff --name-only --diff-filter=d "$base" -- '*.h' '*.cpp')
	if [ ${#changed[@]} -gt 0 ]; then clang-format --dry-run "${changed[@]}"; fi
else
	echo "check: no clang-format, formatting not looked at" >&2
fi
echo "check: all good"
