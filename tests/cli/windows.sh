#!/usr/bin/env bash
# Builds kvrun for Windows and runs it under Wine: its answers beside those of the Linux build, on the processor and on
# lavapipe, and host tests. The shaders are those of the Linux build. Code is optimised a little: not at all makes
# archives that binutils takes minutes to index. Exit code 77: something that it needs is not here.
#   tests/cli/windows.sh SOURCE_FOLDER BUILD_FOLDER PROGRAM         the build folder and the program of Linux
# tools/dev/windows_check.sh and windows_tests.sh compare more.
set -euo pipefail
source=$1 build=$(realpath "$2") linux=$(realpath "$3")
skip() {
	echo "skipped: $1; tools/packages.sh windows installs it"
	exit 77
}
[ "$(uname -m)" = x86_64 ] || { echo "skipped: Wine runs programs of x86-64 on such processors alone"; exit 77; }
command -v x86_64-w64-mingw32-g++-posix >/dev/null || skip "no mingw-w64 (package g++-mingw-w64-x86-64-posix)"
command -v wine64 wine >/dev/null || [ -x /usr/lib/wine/wine64 ] || skip "no Wine (package wine64)"
command -v Xvfb >/dev/null || skip "no Xvfb (package xvfb)"
packages=${KVRUN_WINDOWS_PACKAGES:-$source/build-windows-packages}
ls "$packages"/complete-* >/dev/null 2>&1 || skip "no libraries for Windows in $packages"

cd "$source"
folder=$build/windows
host_tests='core|gguf|npy|quant|system|weights' # files, threads, bits of the C library; the others take minutes
started=$SECONDS
{
	cmake -G Ninja -S . -B "$folder" -DCMAKE_TOOLCHAIN_FILE=tools/windows.cmake -DKVRUN_WINDOWS_PACKAGES="$packages" \
		-DKVRUN_SHADERS_OF="$build" -DCMAKE_BUILD_TYPE=Release \
		-DCMAKE_CXX_FLAGS_RELEASE='-Og -DNDEBUG -DXXH_NO_INLINE_HINTS=1' \
		-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=64 -DKVRUN_CUDA=OFF -DKVRUN_INSTALL=OFF \
		-DKVRUN_HOST_TESTS="$host_tests" &&
		cmake --build "$folder" -j 1 --target kvrun kvrun-probe kvrun_tests
} >"$folder.log" 2>&1 || {
	grep -E 'error|FAILED' "$folder.log" | head -n 20
	echo "error: the Windows build failed; its output is in $folder.log"
	exit 1
}
echo "built in $((SECONDS - started)) s"

source tools/dev/wine.sh
model=models/bundled/recall-4m-f16.gguf text=models/bundled/record40.txt
answer() { # device, a command that starts the program
	KVRUN_DEVICE=$1 timeout 600 "${@:2}" run $model -f $text -n 24 --temp 0 2>"$work/err" | tr -d '\r'
}
export KVRUN_CACHE_DIR=$work/cache
devices=(cpu llvmpipe)
if ! "$linux" devices | grep -qi llvmpipe; then
	devices=(cpu)
	echo "no lavapipe here (package mesa-vulkan-drivers): the answer on it is left out"
else
	for _ in $(seq 12); do # on a busy machine Wine's desktop, and Vulkan with it, may come after the first program
		"$wine" "$folder/kvrun.exe" devices >"$work/devices" 2>&1 || true
		grep -qi llvmpipe "$work/devices" && break
		sleep 5
	done
fi
for device in "${devices[@]}"; do
	started=$SECONDS
	expected=$(answer $device "$linux") || { cat "$work/err"; exit 1; }
	got=$(answer $device "$wine" "$folder/kvrun.exe") || { cat "$work/err"; exit 1; }
	if [ -z "$got" ] || [ "$got" != "$expected" ]; then
		echo "error: on $device Windows answers otherwise than Linux:"
		diff <(echo "$expected") <(echo "$got") || true
		exit 1
	fi
	echo "$device: the answer of Linux, $((SECONDS - started)) s"
done
vision=tests/golden/vision
look() { # image, a command that starts the program
	KVRUN_DEVICE=cpu timeout 600 "${@:2}" run $vision/text.gguf --mmproj $vision/mlp.gguf \
		--image $vision/tile.$1 -p ab -n 12 --temp 0 2>"$work/err" | tr -d '\r'
}
for image in png jpg webp; do
	if ! expected=$(look $image "$linux"); then
		cat "$work/err" # this Linux build lacks the format's library
		continue
	fi
	got=$(look $image "$wine" "$folder/kvrun.exe") || { cat "$work/err"; exit 1; }
	if [ -z "$got" ] || [ "$got" != "$expected" ]; then
		echo "error: Windows sees tile.$image otherwise than Linux: $got, expected $expected"
		exit 1
	fi
done
echo "images: the answers of Linux"
started=$SECONDS
code=0
# Two files: in one, lines of stderr would be written into the middle of buffered lines of stdout.
timeout 1200 "$wine" "$folder/tests/kvrun_tests.exe" --no-version >"$work/host" 2>"$work/host_errors" || code=$?
tr -d '\r' <"$work/host" >"$work/host_lines"
if [ $code -ne 0 ] && [ $code -ne 77 ]; then # 77: a comparison that needs something else was left out
	grep -hE 'TEST CASE|ERROR|values:' "$work/host_lines" | tail -n 40
	tail -n 10 "$work/host_errors"
	echo "error: host tests fail under Wine, exit code $code"
	exit 1
fi
grep '^skipped:' "$work/host_errors" || true
grep '^\[doctest\] test cases: *[1-9]' "$work/host_lines" || {
	echo "error: host tests under Wine ended with exit code $code and without a result; their last lines:"
	tail -n 10 "$work/host_lines" "$work/host_errors"
	exit 1
}
echo "host tests: $((SECONDS - started)) s"
