#!/usr/bin/env bash
# Makes kvrun-portable-x86_64.tar.xz from a build folder: kvrun, its tests, the Vulkan loader, the validation layer, the libraries
# they need and the bundled model, for any x86-64 Linux with glibc 2.31 or newer; no root, no network there.
#   tools/dev/portable.sh [BUILD] [OUT]       (build, kvrun-portable-x86_64.tar.xz)
# On the other machine: tar xf ... && kvrun-portable/run
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath "${1:-$root/build}") out=$(realpath -m "${2:-kvrun-portable-x86_64.tar.xz}")
[ "$(uname -m)" = x86_64 ] || { echo "portable: this is $(uname -m); the bundle is for x86_64" >&2; exit 1; }
for program in kvrun kvrun-probe tests/kvrun_device_tests; do
	[ -x "$build/$program" ] || { echo "portable: no $build/$program; build it first" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
p=$work/kvrun-portable
mkdir -p "$p"/{bin,lib,libc,newest,layers,models}
cp "$build/kvrun" "$build/kvrun-probe" "$build/tests/kvrun_device_tests" "$p/bin/"
strip "$p"/bin/*
cp "$root"/models/bundled/recall-4m-f16.gguf "$root"/models/bundled/record40.* "$p/models/"
cp "$root/LICENSE" "$p/"

# Libraries by who decides which one is used (run, below): glibc; those a driver may need newer; those only kvrun has.
loader=$(ldconfig -p | awk '/libvulkan\.so\.1 .*x86-64/ { print $NF; exit }')
layer=$(ldconfig -p | awk '/libVkLayer_khronos_validation\.so/ { print $NF; exit }')
[ -n "$layer" ] || layer=/usr/lib/x86_64-linux-gnu/libVkLayer_khronos_validation.so
[ -e "$loader" ] || { echo "portable: no libvulkan.so.1; install package libvulkan1" >&2; exit 1; }
[ -e "$layer" ] || { echo "portable: no validation layer; install package vulkan-validationlayers" >&2; exit 1; }
cp -L "$loader" "$p/lib/"
cp -L "$layer" "$p/layers/"
strip "$p/layers/$(basename "$layer")"
sed 's|"library_path": *"[^"]*"|"library_path": "./'"$(basename "$layer")"'"|' \
	/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json >"$p/layers/VkLayer_khronos_validation.json"
for file in "$p"/bin/* "$loader" "$layer"; do ldd "$file"; done | awk '$3 ~ /^\// { print $3 }' | sort -u | while read -r so; do
	case $(basename "$so") in
	libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.*) cp -L "$so" "$p/libc/" ;;
	libstdc++.so.* | libgcc_s.so.* | libtinfo.so.*) cp -L "$so" "$p/newest/" ;;
	*) cp -L "$so" "$p/lib/" ;;
	esac
done
for name in libpthread.so.0 libdl.so.2 librt.so.1; do # a driver of an older system names them
	cp -L "/lib/x86_64-linux-gnu/$name" "$p/libc/"
done
cp -L /lib64/ld-linux-x86-64.so.2 "$p/libc/"
ldd --version | awk 'NR == 1 { print $NF }' >"$p/libc/version"
strings "$p/newest/libstdc++.so.6" | grep -E '^GLIBCXX_3\.4\.[0-9]+$' | sort -uV | tail -n 1 | sed 's/.*\.//' >"$p/newest/version"

cat >"$p/run" <<'RUN'
#!/bin/sh
# run COMMAND ARGS...: kvrun and its tests on this machine's drivers.
#   run test [DEVICES]            device tests on the GPU under Vulkan, and CUDA where the program has it; DEVICES: gpu,cuda,lavapipe,cpu
#   run compare [OPTIONS]         kvrun compare; without options: every device, the bundled model, results in ./kvrun-compare
#   run bench [OPTIONS]           kvrun bench; without options: the bundled model
#   run COMMAND ...               any other command of kvrun; run help lists them
# Before COMMAND:
#   --icd FILE                    also load this Vulkan driver (a .json manifest), for one in an unusual place
#   --peer FOLDER                 for compare: also measure the llama-bench that FOLDER/run starts
here=$(cd "$(dirname "$0")" && pwd)
peer=
while :; do
	case ${1:-} in
	--icd)
		[ -r "${2:-}" ] || { echo "run: --icd ${2:-}: no such file" >&2; exit 2; }
		icd=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
		VK_ADD_DRIVER_FILES=${VK_ADD_DRIVER_FILES:+$VK_ADD_DRIVER_FILES:}$icd
		export VK_ADD_DRIVER_FILES
		shift 2 ;;
	--peer)
		[ -x "${2:-}/run" ] || { echo "run: --peer ${2:-}: has no program 'run'" >&2; exit 2; }
		peer=$(cd "$2" && pwd)
		shift 2 ;;
	*) break ;;
	esac
done

# Which C library: drivers of this machine may need its own, the program needs one as new as the bundle's. The newer one
# can do both, because glibc keeps what older programs need. The same holds for the C++ library.
number() { echo "$1" | awk -F. '{ printf "%d\n", $1 * 1000 + $2 }'; }
own=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{ print $2 }')
[ -n "$own" ] || own=$(ldd --version 2>/dev/null | awk 'NR == 1 { print $NF }')
case $own in [0-9]*.[0-9]*) ;; *) own=0.0 ;; esac
hosts=/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu:/lib64:/usr/lib64:/lib:/usr/lib
path=$here/lib:$here/newest
for folder in $(echo "$hosts" | tr : ' '); do
	[ -e "$folder/libstdc++.so.6" ] || continue
	real=$(readlink -f "$folder/libstdc++.so.6") # libstdc++.so.6.0.30
	[ "${real##*.}" -gt "$(cat "$here/newest/version")" ] 2>/dev/null && path=$here/lib:$hosts:$here/newest
	break
done
path=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ "$(number "$own")" -ge "$(number "$(cat "$here/libc/version")")" ]; then
	start() { program=$1; shift; LD_LIBRARY_PATH=$path exec "$here/bin/$program" "$@"; }
else
	start() {
		program=$1; shift
		exec "$here/libc/ld-linux-x86-64.so.2" --library-path "$here/libc:$path:$hosts" "$here/bin/$program" "$@"
	}
fi
export VK_LAYER_PATH="$here/layers" KVRUN_PROBE="$here/probe"
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/tmp}"

model=$here/models/recall-4m-f16.gguf
case ${1:-} in
"") sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
--probe) shift; start kvrun-probe "$@" ;;
test)
	devices=${2:-gpu,cuda}
	echo "operations, packing and attention on $devices; tests of whole models need the source tree and are not in the bundle"
	export KVRUN_TEST_DEVICES="$devices"
	(start kvrun_device_tests --no-version '--source-file=*test_ops*,*test_attend.cpp,*test_pack.cpp')
	code=$?
	[ $code -ne 77 ] || echo "nothing was tested: none of these devices can be used; run devices says why, run test lavapipe tests a CPU driver"
	exit $code ;;
compare)
	shift
	if [ -n "$peer" ]; then set -- "$@" --peer "$peer/run llama-bench"; fi
	case " $* " in *" -m "* | *" --model "* | " merge "*) ;; *) set -- -m "$model" "$@" ;; esac
	case " $* " in *" -o "* | *" --output "*) ;; *) set -- "$@" -o kvrun-compare ;; esac
	start kvrun compare "$@" ;;
bench)
	shift
	[ $# -gt 0 ] || set -- "$model"
	start kvrun bench "$@" ;;
*) start kvrun "$@" ;;
esac
RUN
cat >"$p/probe" <<'PROBE'
#!/bin/sh
exec "$(dirname "$0")/run" --probe "$@"
PROBE
chmod +x "$p/run" "$p/probe"
tar -C "$work" -cf - kvrun-portable | xz -T0 -6e >"$out"
bytes=$(stat -c %s "$out")
echo "$out: $((bytes / 1048576)) MiB; glibc $(cat "$p/libc/version")"
[ "$bytes" -lt $((48 * 1048576)) ] || { echo "portable: larger than 48 MiB" >&2; exit 1; }
