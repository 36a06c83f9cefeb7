#!/usr/bin/env bash
# Checks that take too long for every change, in order; continues after a failure, and lists failures at the end.
#   tools/dev/nightly.sh [STAGE...]     default: all, some 12 hours on 4 cores
#   asan-gcc asan-clang tsan-gcc tsan-clang   the whole suite under AddressSanitizer with UndefinedBehaviorSanitizer, or
#                                             ThreadSanitizer, in build-STAGE
#   mutate                                    seeded faults that tests must notice (tools/dev/mutate.py)
#   cuda-mutants                              the same for the CUDA sources (tools/dev/cuda_mutants.py)
#   swiftshader lavapipe lavapipe26           every row of the device tests on this driver, of which the suite runs some
#   cuda-host                                 the same for the CUDA sources, run on the host
#   faults                                    every position of the faults that are injected into Vulkan calls
#   radv                                      every use of every kernel in AMD's compiler for three chips, of which the
#                                             suite compiles a part
#   subdirectory                              kvrun as a folder of another project (tests/api/consumers.sh)
#   windows                                   the Windows build under Wine (tests/cli/windows.sh)
#   fuzz                                      each fuzzer for KVRUN_NIGHTLY_FUZZ_SECONDS [600]
#   attack                                    damaged files, options and environments through every command
#   soak                                      64 clients and a server (tools/dev/soak.py)
#   memory                                    resident memory after loading (tools/dev/memory_check.sh)
# Logs are in build-nightly/STAGE.log. KVRUN_NIGHTLY_TESTS: a regular expression of the ctest entries to run [all].
# Exit code 1: a stage failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case ${1:-} in -h | --help) sed -n '2,21s/^# \?//p' "$0"; exit 0 ;; esac
. tools/environment.sh

sanitized() { # asan|tsan gcc|clang
	local folder=build-$1-$2 compiler=g++
	[ "$2" = clang ] && compiler=clang++
	# nvcc does not support sanitizers; the CUDA sources also run on the host in these builds
	cmake --preset "$1" -B "$folder" -DCMAKE_CXX_COMPILER=$compiler -DKVRUN_CUDA=OFF &&
		cmake --build "$folder" -j "$(nproc)" &&
		ctest --test-dir "$folder" -j 2 --output-on-failure -R "${KVRUN_NIGHTLY_TESTS:-.}"
}
release() { cmake --preset release && cmake --build --preset release -j "$(nproc)"; }

stage() {
	case $1 in
	asan-gcc | asan-clang | tsan-gcc | tsan-clang) sanitized "${1%-*}" "${1#*-}" ;;
	mutate) # without batches of files, so that a fault compiles one
		cmake --preset release -B build-mutate -DCMAKE_UNITY_BUILD=OFF && cmake --build build-mutate -j "$(nproc)" &&
			tools/dev/mutate.py --build build-mutate ;;
	cuda-mutants) release && tools/dev/cuda_mutants.py ;;
	swiftshader | lavapipe | cuda-host)
		release && KVRUN_TEST_DEVICES=$1 build/tests/kvrun_device_tests --no-version ;;
	lavapipe26) release && KVRUN_TEST_DEVICES=lavapipe26 tests/support/vendor_drivers.sh build/vendor lavapipe \
		build/tests/kvrun_device_tests --no-version ;;
	faults) release && KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 build/tests/kvrun_vulkan_tests --no-version \
		'--source-file=*test_faults.cpp' ;;
	radv) release && build/tests/kvrun_vulkan_tests --no-version '--source-file=*test_radv.cpp' ;;
	subdirectory) release && tests/api/consumers.sh "$PWD/build" "$PWD" whole ;;
	windows) tools/packages.sh windows && release && ctest --preset release -R '^windows$' ;;
	fuzz) tools/dev/fuzz.sh "${KVRUN_NIGHTLY_FUZZ_SECONDS:-600}" ;;
	attack) release && tools/dev/attack.py --kvrun build/kvrun ;;
	soak) release && tools/dev/soak.py build/kvrun ;;
	memory) release && tools/dev/memory_check.sh ;;
	*) echo "there is no stage '$1'; --help lists them" && return 2 ;;
	esac
}

# Options of sanitizers: a report ends the program, and leaks of drivers are ignored (tests/support/leaks.supp).
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
export LSAN_OPTIONS=suppressions=$PWD/tests/support/leaks.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}
export TSAN_OPTIONS=halt_on_error=1:suppressions=$PWD/tests/support/races.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}

mkdir -p build-nightly
failed=()
[ $# -gt 0 ] || set -- asan-gcc asan-clang tsan-gcc tsan-clang mutate cuda-mutants swiftshader lavapipe lavapipe26 \
	cuda-host faults radv subdirectory windows fuzz attack soak memory
for name in "$@"; do
	echo "nightly: $name ..."
	if stage "$name" >"build-nightly/$name.log" 2>&1; then
		echo "nightly: $name ok: $(grep -E 'tests passed|survive|executions|SUCCESS|ok' "build-nightly/$name.log" | tail -1)"
	else
		echo "nightly: $name FAILED, build-nightly/$name.log:"
		tail -20 "build-nightly/$name.log"
		failed+=("$name")
	fi
done
[ ${#failed[@]} -eq 0 ] && echo "nightly: all ok" && exit 0
echo "nightly: failed: ${failed[*]}"
exit 1
