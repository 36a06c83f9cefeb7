#!/usr/bin/env bash
# Synchronisation validation by a newer layer than this system's: Debian 13's finds hazards between submissions and
# assumes that a shader accesses whole bindings. Recorder, models, sessions, batches, forks, fetching and policies must
# pass on lavapipe.
#   tools/dev/sync_check.sh [BUILD] [FOLDER]     (build, /tmp/kvrun-trixie: made by debootstrap, as root, and kept)
# KVRUN_DEBIAN_MIRROR: where debootstrap fetches packages [its own default].
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath "${1:-$root/build}") system=${2:-${TMPDIR:-/tmp}/kvrun-trixie}
. "$root/tools/environment.sh"
for program in kvrun_vulkan_tests kvrun_device_tests; do
	[ -x "$build/tests/$program" ] || { echo "sync_check: no $build/tests/$program; build it first" >&2; exit 1; }
done
if ! [ -e "$system/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json" ]; then
	command -v debootstrap >/dev/null || { echo "sync_check: no debootstrap; install package debootstrap" >&2; exit 1; }
	debootstrap --variant=minbase --include=vulkan-validationlayers,libvulkan1 trixie "$system" \
		${KVRUN_DEBIAN_MIRROR:+"$KVRUN_DEBIAN_MIRROR"} >"$system.log" 2>&1 || { echo "sync_check: debootstrap failed; see $system.log" >&2; exit 1; }
fi
libraries=$system/usr/lib/x86_64-linux-gnu own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
# libraries that the programs need and the folder lacks come from this system
for program in kvrun_vulkan_tests kvrun_device_tests; do ldd "$build/tests/$program"; done | awk '$3 ~ /^\// { print $3 }' | sort -u |
	while read -r file; do [ -e "$libraries/$(basename "$file")" ] || cp -L "$file" "$own/"; done
export VK_LAYER_PATH=$system/usr/share/vulkan/explicit_layer.d
# the tests choose this system's lavapipe; a build with older headers cannot request it
export VK_KHRONOS_VALIDATION_SYNCVAL_SHADER_ACCESSES_HEURISTIC=true
export KVRUN_PROBE=off KVRUN_VALIDATE=sync KVRUN_TEST_DEVICES=lavapipe
failed=0
check() { # PROGRAM ARGUMENTS...
	program=$1
	shift
	echo "sync_check: $program $*"
	"$system/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$own" "$build/tests/$program" --no-version "$@" || failed=1
}
check kvrun_vulkan_tests '--source-file=*test_vulkan.cpp' '--test-case-exclude=*GPU-assisted*'
for ms in 100 2; do # 2 ms: every op is next to a boundary between submissions
	export KVRUN_SUBMIT_MS=$ms
	KVRUN_TEST_EVERY=3 check kvrun_device_tests '--source-file=*test_ops*'
	check kvrun_device_tests '--source-file=*test_session.cpp,*test_batch.cpp,*test_forks.cpp,*test_fetch.cpp'
	KVRUN_TEST_EVERY=7 check kvrun_device_tests '--source-file=*test_policies.cpp,*test_pack*'
done
exit $failed
