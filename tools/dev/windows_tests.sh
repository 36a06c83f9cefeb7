#!/usr/bin/env bash
# Runs the test programs of the Windows build under Wine and those of the Linux build, and prints a table of the test
# cases and checks that passed. The exit code is 1 where a test fails under Wine.
#   cmake --preset windows -DKVRUN_BUILD_TESTS=ON && cmake --build --preset windows
#   tools/dev/windows_tests.sh [SUITE...]         suites of devices [ops attend pack policies session stored], or host
# KVRUN_TEST_EVERY=N runs every Nth row of the tables.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/environment.sh
windows=${KVRUN_WINDOWS_BUILD:-build-windows} linux=${KVRUN_LINUX_BUILD:-build}
source tools/dev/wine.sh
suites=("$@")
[ $# -gt 0 ] || suites=(host ops attend pack policies session stored)
bad=0
counts() { # of doctest's last lines: "12 cases, 3456 checks"
	tr -d '\r' | sed -n 's/^\[doctest\] test cases: *[0-9]* | *\([0-9]*\) passed | *\([0-9]*\) failed.*/\1 \2/p
		s/^\[doctest\] assertions: *[0-9]* | *\([0-9]*\) passed | *\([0-9]*\) failed.*/\1 \2/p' | paste -sd' ' |
		awk 'NF == 4 { printf "%d cases, %d checks", $1, $3; if ($2) printf ", %d FAILED", $2 }
			NF != 4 { printf "no result" }'
}
echo '| suite | device | Linux | Wine |'
echo '|---|---|---|---|'
for suite in "${suites[@]}"; do
	program=kvrun_device_tests devices=(cpu lavapipe) filter=--source-file="*test_$suite*"
	if [ "$suite" = host ]; then
		# terminal and others of the suites that need a person's machine
		program=kvrun_tests devices=(none) filter=--source-file-exclude="*test_gguf_files*"
	fi
	for device in "${devices[@]}"; do
		log=$work/$suite.$device
		export KVRUN_TEST_DEVICES=$device
		nolinux='not built'
		if [ -x "$linux/tests/$program" ]; then
			nolinux=$("$linux/tests/$program" "$filter" 2>/dev/null | counts)
		fi
		timeout 3000 "$wine" "$windows/tests/$program.exe" "$filter" >"$log" 2>"$log.err"
		code=$?
		echo "| $suite | $device | $nolinux | $(counts <"$log") |"
		if [ $code -ne 0 ] && [ $code -ne 77 ]; then
			bad=$((bad + 1))
			grep -E 'TEST CASE|ERROR|values:|skipped:' "$log" | head -n 40 >&2
			echo "exit code $code" >&2
		fi
	done
done
[ $bad -eq 0 ]
