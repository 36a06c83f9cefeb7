#!/usr/bin/env bash
# Starts a program on a driver of ../shared/vendor (Mesa 26.1) and on the C library and Vulkan loader that come with it:
#   tests/support/vendor_drivers.sh FOLDER PLATFORM PROGRAM ARGS...
# PLATFORM is lavapipe, or a chip whose compiler is wanted (gfx1100). The archives are unpacked into FOLDER, of the
# build tree, once. Exit code 77, with the reason: they cannot be used here.
set -euo pipefail
if [ $# -lt 3 ]; then
	sed -n '2,5s/^# //p' "$0" >&2
	exit 2
fi
folder=$1 platform=$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
archives=${KVRUN_SHARED:-$root/../shared}/vendor

skip() {
	echo "skipped: $platform of ../shared/vendor ($1)"
	exit 77
}
[ "$(uname -m)" = x86_64 ] || skip "its drivers are for x86_64, this is $(uname -m)"
for archive in vendor-drivers llvm-drivers; do
	[ -r "$archives/$archive.tar.xz" ] || skip "no $archives/$archive.tar.xz; set KVRUN_SHARED"
done
command -v xz >/dev/null || skip "no xz to unpack it; install package xz-utils"

mkdir -p "$folder"
exec 9>"$folder/lock" # tests run in parallel
flock 9
contents=$(stat -L -c '%s %Y' "$archives/vendor-drivers.tar.xz" "$archives/llvm-drivers.tar.xz")
if [ "$(cat "$folder/unpacked" 2>/dev/null)" != "$contents" ]; then
	rm -rf "$folder/vendor-drivers" "$folder/unpacked"
	tar --no-same-owner -C "$folder" -xf "$archives/vendor-drivers.tar.xz"
	tar --no-same-owner -C "$folder" -xf "$archives/llvm-drivers.tar.xz" # overwrites files of the first archive
	echo "$contents" >"$folder/unpacked"
fi
exec 9>&-
KVRUN_TEST_VENDOR_DRIVERS=$(cd "$folder/vendor-drivers" && pwd)
export KVRUN_TEST_VENDOR_DRIVERS # read when lavapipe26 is opened
exec "$KVRUN_TEST_VENDOR_DRIVERS/run" "$platform" "$@"
