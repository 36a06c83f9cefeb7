#!/usr/bin/env bash
# Fresh machine to every test passed: packages, Release build, layering check and all of ctest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step="installing packages"
trap 'echo "test.sh: stopped while $step" >&2; echo "0 passed, 1 failed"' ERR
tools/packages.sh tests

step="building"
. tools/environment.sh
cmake --preset release # also after tools/try.sh: packages that were just installed add targets and tests
cmake --build --preset release
trap - ERR

# Two at a time at most: the software drivers use every core by themselves.
jobs=$(($(nproc) < 2 ? 1 : 2))
ctest --preset release -j "$jobs" "$@"
