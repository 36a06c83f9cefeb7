#!/usr/bin/env bash
# The command to run before a commit: Release build and tests, host tests under sanitizers, format of every file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/environment.sh

tools/dev/format.sh --check || [ $? -eq 77 ] # 77: clang-format 14 is missing; the script has said so

cmake --preset ci
cmake --build --preset ci
cmake --preset asan
cmake --build --preset asan --target kvrun_tests
ctest --preset ci
build-asan/tests/kvrun_tests --no-version
echo "check: all good"
