#!/usr/bin/env bash
# From a fresh machine to all tests: packages, Release build, layering check and all of ctest.
# KVRUN_PRESET: a preset of CMakePresets.json [release]; ci is the same with warnings as errors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step="installing packages"
trap 'echo "test.sh: stopped while $step" >&2; echo "0 passed, 1 failed"' ERR
tools/packages.sh tests

step="building"
. tools/environment.sh
preset=${KVRUN_PRESET:-release}
cmake --preset "$preset" # also after tools/try.sh: newly installed packages add targets and tests
cmake --build --preset "$preset"
trap - ERR

# At most two at a time, because the software drivers use all cores.
jobs=$(($(nproc) < 2 ? 1 : 2))
ctest --preset "$preset" -j "$jobs" "$@"
