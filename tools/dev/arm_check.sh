#!/usr/bin/env bash
# Builds kvrun for 64-bit Arm and runs it under qemu-user, on the cpu backend and, one answer, on lavapipe. Compares it
# with this machine's build: answers, logits and session files bit for bit, session files that the other build wrote,
# the test programs. Prints a table; the exit code is 1 if something differs. Debian 12's lavapipe does not work there,
# so that Debian 13's is fetched, with its C library (KVRUN_ARM64_LAVAPIPE, a folder [build-arm64-lavapipe]).
#   tools/dev/arm_check.sh [--no-build] [--no-tests] [BUILD]         BUILD: this machine's build folder [build]
# KVRUN_TEST_EVERY=N: the test programs run every Nth row of their tables [19]. What it showed: tools/arm.md
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/environment.sh
arm=${KVRUN_ARM64_BUILD:-build-arm64} root=${KVRUN_ARM64_SYSROOT:-$PWD/build-arm64-sysroot}
lavapipe=${KVRUN_ARM64_LAVAPIPE:-$PWD/build-arm64-lavapipe} triple=aarch64-linux-gnu
builds=1 tests=1
while [ $# -gt 0 ]; do
	case $1 in
	--no-build) builds= ;;
	--no-tests) tests= ;;
	*) break ;;
	esac
	shift
done
here=${1:-build}
if [ -n "$builds" ]; then
	targets=(kvrun kvrun-probe kvrun_shared)
	[ -z "$tests" ] || targets+=(kvrun_tests kvrun_device_tests)
	tools/packages.sh arm64 && cmake --preset arm64 >/dev/null &&
		cmake --build --preset arm64 --target "${targets[@]}" || exit 1
fi
if grep -qa libLLVM-15 "$root/usr/lib/$triple/libvulkan_lvp.so"; then # tools/arm.md
	tools/arm64_packages.sh "$lavapipe" trixie libvulkan1 mesa-vulkan-drivers libstdc++6 || exit 1
else
	lavapipe=$root
fi
for need in "$here/kvrun" "$here/lib/libkvrun.so" "$arm/lib/libkvrun.so"; do
	[ -e "$need" ] || { echo "error: there is no $need; build it first" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static)
emulated() { "$qemu" -L "$root" "$@"; }
# Programs that use lavapipe run on the C library that comes with it.
printf '#!/bin/sh\nexec %s -L %s -E LD_LIBRARY_PATH=%s "$@"\n' "$qemu" "$lavapipe" \
	"$lavapipe/usr/lib/$triple:$root/usr/lib/$triple" >"$work/on_lavapipe"
# The kernel does not start programs of Arm, so the probe is started by a script.
printf '#!/bin/sh\nexec %s %s "$@"\n' "$work/on_lavapipe" "$PWD/$arm/kvrun-probe" >"$work/probe"
chmod +x "$work/on_lavapipe" "$work/probe"
export KVRUN_PROBE=$work/probe

model=models/bundled/recall-4m-f16.gguf text=models/bundled/record40.txt
bad=0
row() { printf '| %-38s | %-9s | %-9s | %s\n' "$@"; }
result() { # what, device, whether it is good, details
	if [ "$3" = 0 ]; then
		row "$1" "$2" same "$4"
	else
		bad=$((bad + 1))
		row "$1" "$2" DIFFERS "$4"
	fi
}
row what device result ''
row -------------------------------------- --------- --------- ---

# Logits and sessions through libkvrun.so, which both builds have.
build_bits() { # compiler, library folder, output; the library's own libraries need not be found here
	$1 -std=c11 -O1 -Wall -Wextra -I. -o "$3" tools/dev/session_bits.c -L"$2" -lkvrun -Wl,-rpath,"$(realpath "$2")" \
		-Wl,--allow-shlib-undefined
}
cross="aarch64-linux-gnu-gcc --sysroot=$root"
build_bits cc "$here/lib" "$work/bits" && build_bits "$cross" "$arm/lib" "$work/bits.arm" || exit 1
for kv in fp16 kivi2 turbo3/2 zipcache; do
	name=${kv//\//-}
	"$work/bits" $model $text $kv cpu "$work/$name.logits" "$work/$name.session" || exit 1
	start=$SECONDS
	emulated "$work/bits.arm" $model $text $kv cpu "$work/$name.logits.arm" "$work/$name.session.arm"
	cmp -s "$work/$name.logits" "$work/$name.logits.arm"
	result "logits, $kv" cpu $? "$((SECONDS - start)) s"
	cmp -s "$work/$name.session" "$work/$name.session.arm"
	result "session file, $kv" cpu $? "$(stat -c %s "$work/$name.session") bytes"
	# each goes on with the file of the other
	"$work/bits" $model --restore "$work/$name.session.arm" cpu "$work/$name.next"
	emulated "$work/bits.arm" $model --restore "$work/$name.session" cpu "$work/$name.next.arm"
	[ -s "$work/$name.next" ] && cmp -s "$work/$name.next" "$work/$name.next.arm"
	result "sessions of the other, $kv" cpu $? ''
done

# The program. Names of drivers for the loader in the folder of packages.
icd=$(ls "$lavapipe"/usr/share/vulkan/icd.d/lvp_icd*.json 2>/dev/null | head -n 1)
sed -E "s#\"library_path\": *\"([^\"]*/)?#\"library_path\": \"$lavapipe/usr/lib/$triple/#" "$icd" >"$work/lvp.json"
strip() { grep -v '^#' | sed -E '/^\|/{s/\|[^|]*\|$/|/; s/([0-9]+)\.[0-9]+/\1/}' || true; }
compare() { # name, device, arguments
	local name=$1 device=$2 a b code start=$SECONDS
	shift 2
	a=$(KVRUN_DEVICE=$device KVRUN_PROBE= KVRUN_CACHE_DIR=$work/cache "$here/kvrun" "$@" </dev/null 2>/dev/null | strip)
	b=$(KVRUN_DEVICE=$device KVRUN_CACHE_DIR=$work/cache-arm VK_DRIVER_FILES=$work/lvp.json \
		VK_ICD_FILENAMES=$work/lvp.json timeout 1800 "${by[@]}" "$arm/kvrun" "$@" </dev/null 2>"$work/err")
	code=$?
	b=$(strip <<<"$b")
	[ $code -eq 0 ] && [ -n "$b" ] && [ "$a" = "$b" ]
	code=$?
	result "$name" "$device" $code "$((SECONDS - start)) s"
	[ $code -eq 0 ] || { tail -n 2 "$work/err"; diff <(echo "$a") <(echo "$b") | head -n 6; }
}
by=("$qemu" -L "$root")
if [ -x "$arm/kvrun" ]; then
	compare 'plan kivi2' cpu plan $model --kv kivi2 -c 2k --memory 1G
	for kv in fp16 kivi2 turbo3/2; do
		compare "run $kv" cpu run $model -f $text -n 8 --temp 0 --kv $kv
	done
	compare 'run, sampled' cpu run $model -f $text -n 16 --temp 1 --seed 7
	compare 'eval' cpu eval $model -f $text --kv fp16,kivi2
	by=("$work/on_lavapipe") # minutes, most of them in its compiler
	compare 'run fp16' llvmpipe run $model -p 'Once upon a time' -n 8 --temp 0
fi

counts() { # of doctest's last lines: "12 cases, 3456 checks"
	sed -n 's/^\[doctest\] test cases: *[0-9]* | *\([0-9]*\) passed | *\([0-9]*\) failed.*/\1 \2/p
		s/^\[doctest\] assertions: *[0-9]* | *\([0-9]*\) passed | *\([0-9]*\) failed.*/\1 \2/p' | paste -sd' ' |
		awk 'NF == 4 { printf "%d cases, %d checks", $1, $3; if ($2) printf ", %d cases FAILED", $2 }
			NF != 4 { printf "no result" }'
}
suite() { # name, program, doctest's arguments
	local name=$1 program=$2 a b code
	shift 2
	[ -x "$arm/tests/$program" ] || return 0
	a='not built'
	[ ! -x "$here/tests/$program" ] || a=$("$here/tests/$program" "$@" 2>/dev/null | counts)
	timeout 3000 "$qemu" -L "$root" "$arm/tests/$program" "$@" >"$work/suite" 2>&1
	code=$?
	b=$(counts <"$work/suite")
	[ $code -eq 0 ] || [ $code -eq 77 ]
	result "$name" cpu $? "here $a; Arm $b"
	grep -E 'TEST CASE|ERROR|values:' "$work/suite" | head -n 30
}
if [ -n "$tests" ]; then
	export KVRUN_TEST_DEVICES=cpu KVRUN_TEST_EVERY=${KVRUN_TEST_EVERY:-19}
	suite host kvrun_tests
	for name in ops attend pack policies session stored models; do
		suite $name kvrun_device_tests --source-file="*test_$name*"
	done
fi
echo
if [ $bad -eq 0 ]; then echo "arm_check: all the same"; else echo "arm_check: $bad differ"; fi
[ $bad -eq 0 ]
