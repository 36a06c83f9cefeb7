#!/usr/bin/env bash
# Makes kvrun-portable-x86_64.tar.xz from a build folder: kvrun, its device tests, the Vulkan loader, the validation
# layer where this system has it, the libraries they need, the bundled model and the scripts of portable/, for any
# x86-64 Linux with glibc 2.31 or newer; no root, no network there. A second archive beside it has the data of the
# tests, whole models, which hardly compress: kvrun-portable-x86_64-tests.tar.xz.
#   tools/dev/portable.sh [BUILD] [OUT]       (build, kvrun-portable-x86_64.tar.xz)
# On the other machine: tar xf ... && kvrun-portable/run; for the tests, both archives in one folder.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin # ldconfig, which Debian's users do not have in theirs
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath "${1:-$root/build}") out=$(realpath -m "${2:-kvrun-portable-x86_64.tar.xz}")
[ "$(uname -m)" = x86_64 ] || { echo "portable: this is $(uname -m); the bundle is for x86_64" >&2; exit 1; }
for program in kvrun kvrun-probe tests/kvrun_device_tests; do
	[ -x "$build/$program" ] || { echo "portable: no $build/$program; build it first" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
p=$work/kvrun-portable
mkdir -p "$p"/{bin,lib,libc,newest,glvnd,models/bundled}
cp "$build/kvrun" "$build/kvrun-probe" "$build/tests/kvrun_device_tests" "$p/bin/"
strip "$p"/bin/*
cp "$root"/models/bundled/{recall-4m-f16.gguf,record40.*,words.py} "$p/models/bundled/"
cp "$root/LICENSE" "$p/"

# Libraries by how portable/run chooses them: glibc; those that a driver may need newer; those that only kvrun uses.
loader=$(ldconfig -p | awk '/libvulkan\.so\.1 .*x86-64/ { print $NF; exit }')
layer=$(ldconfig -p | awk '/libVkLayer_khronos_validation\.so/ { print $NF; exit }')
[ -n "$layer" ] || layer=/usr/lib/x86_64-linux-gnu/libVkLayer_khronos_validation.so
[ -e "$loader" ] || { echo "portable: no libvulkan.so.1; install package libvulkan1" >&2; exit 1; }
cp -L "$loader" "$p/lib/"
if [ -e "$layer" ]; then
	mkdir "$p/layers"
	cp -L "$layer" "$p/layers/"
	strip "$p/layers/$(basename "$layer")"
	sed 's|"library_path": *"[^"]*"|"library_path": "./'"$(basename "$layer")"'"|' \
		/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json >"$p/layers/VkLayer_khronos_validation.json"
else
	echo "portable: no validation layer (package vulkan-validationlayers): the bundle cannot validate" >&2
	layer=
fi
# Libraries that NVIDIA's driver needs and containers lack: used if the machine has none (portable/run).
for name in libX11.so.6 libXext.so.6 libEGL.so.1 libGLX.so.0 libGL.so.1 libGLdispatch.so.0; do
	so=$(ldconfig -p | awk -v name="$name" '$1 == name && /x86-64/ { print $NF; exit }')
	if [ ! -e "$so" ]; then
		echo "portable: no $name (packages libx11-6, libxext6, libgl1, libegl1): a container without it may not" \
			"load NVIDIA's driver" >&2
		continue
	fi
	for file in "$so" $(ldd "$so" | awk '$3 ~ /^\// { print $3 }'); do
		case $(basename "$file") in
		libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.*) ;;
		*) cp -L "$file" "$p/glvnd/" ;;
		esac
	done
done
for file in "$p"/bin/* "$loader" $layer; do ldd "$file"; done | awk '$3 ~ /^\// { print $3 }' | sort -u | while read -r so; do
	case $(basename "$so") in
	libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.*) cp -L "$so" "$p/libc/" ;;
	libstdc++.so.* | libgcc_s.so.* | libtinfo.so.*) cp -L "$so" "$p/newest/" ;;
	*) cp -L "$so" "$p/lib/" ;;
	esac
done
for name in libpthread.so.0 libdl.so.2 librt.so.1; do # a driver of an older system links to them
	cp -L "/lib/x86_64-linux-gnu/$name" "$p/libc/"
done
cp -L /lib64/ld-linux-x86-64.so.2 "$p/libc/"
ldd --version | awk 'NR == 1 { print $NF }' >"$p/libc/version"
strings "$p/newest/libstdc++.so.6" | grep -E '^GLIBCXX_3\.4\.[0-9]+$' | sort -uV | tail -n 1 | sed 's/.*\.//' >"$p/newest/version"

cp "$root"/tools/dev/portable/{run,probe,measure,README.md} "$p/"
# Archives that are larger than this do not reach every rented machine.
most=48
pack() { # ARCHIVE PATH: the path of the working folder, as an archive
	tar -C "$work" -cf - "$2" | xz -9e >"$1" # a window of 64 MiB: the programs have most of their bytes in common
	local bytes
	bytes=$(stat -c %s "$1")
	echo "$1: $((bytes / 1048576)) MiB"
	[ "$bytes" -lt $((most * 1048576)) ] || { echo "portable: $1 is larger than $most MiB" >&2; exit 1; }
}
echo "glibc $(cat "$p/libc/version")"
pack "$out" kvrun-portable
mkdir "$p/tests"
cp -r "$root/tests/golden" "$p/tests/" # what the tests of whole models compare with
pack "${out%.tar.xz}-tests.tar.xz" kvrun-portable/tests
