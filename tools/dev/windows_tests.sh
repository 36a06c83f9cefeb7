#!/usr/bin/env bash
# Runs the test programs of the Windows build under Wine and those of the Linux build, and prints a table of the test
# cases and checks that passed. The exit code is 1 where a test fails under Wine.
#   cmake --preset windows -DKVRUN_BUILD_TESTS=ON && cmake --build --preset windows
#   tools/dev/windows_tests.sh [SUITE...]
# SUITE: host; of devices, ops attend pack policies session stored; api (kvrun.dll); serve_answers; cli and serve, where
# Linux' tests start kvrun.exe under Wine. [all of these]
# KVRUN_TEST_EVERY=N runs every Nth row of the tables. KVRUN_TEST_CASES=FILTER: doctest's filter of cases.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/environment.sh
windows=${KVRUN_WINDOWS_BUILD:-build-windows} linux=${KVRUN_LINUX_BUILD:-build}
source tools/dev/wine.sh
suites=("$@")
[ $# -gt 0 ] || suites=(host ops attend pack policies session stored api serve_answers cli serve)
bad=0
counts() { # of doctest's last lines, or of the servers' tests: "12 cases, 3456 checks"
	tr -d '\r' | sed -n 's/^\[doctest\] test cases: *[0-9]* | *\([0-9]*\) passed | *\([0-9]*\) failed.*/\1 \2/p
		s/^\[doctest\] assertions: *[0-9]* | *\([0-9]*\) passed | *\([0-9]*\) failed.*/\1 \2/p
		s/^\([0-9]*\) checks, \([0-9]*\) failed$/1 0 \1 \2/p' | paste -sd' ' |
		awk '{ for (i = 1; i + 3 <= NF; i += 4) {
				cases += $i; failed += $(i + 1); checks += $(i + 2); wrong += $(i + 3) } }
			cases + failed > 0 { printf "%d cases, %d checks", cases, checks
				if (failed + wrong) printf ", %d FAILED", failed ? failed : wrong }
			cases + failed == 0 { printf "no result" }'
}
report() { # suite, device, Linux, exit code, log
	local got
	got=$(counts <"$5")
	echo "| $1 | $2 | $3 | $got |"
	if { [ "$4" -ne 0 ] && [ "$4" -ne 77 ]; } || [ "$got" = 'no result' ]; then
		bad=$((bad + 1))
		[ "$got" != 'no result' ] || cat "$5.err" >&2 2>/dev/null
		grep -E 'TEST CASE|ERROR|values:|logged:|skipped:|FAILED' "$5" | head -n 80 >&2
		echo "exit code $4" >&2
	fi
}
# Starts kvrun.exe in the place of kvrun: signals reach Wine's process.
printf '#!/bin/sh\nexec %s %s "$@"\n' "$wine" "$PWD/$windows/kvrun.exe" >"$work/kvrun"
chmod +x "$work/kvrun"

echo '| suite | device | Linux | Wine |'
echo '|---|---|---|---|'
for suite in "${suites[@]}"; do
	log=$work/$suite
	case $suite in
	cli)
		program=$linux/tests/kvrun_cli_tests filter=--test-case=${KVRUN_TEST_CASES:-*}
		[ -x "$program" ] || { echo "error: there is no $program; build it first" >&2; exit 2; }
		nolinux=$(KVRUN_PROGRAM=$PWD/$linux/kvrun "$program" "$filter" 2>/dev/null | counts)
		KVRUN_TEST_WINDOWS=1 KVRUN_PROGRAM=$work/kvrun timeout 3000 "$program" "$filter" >"$log" 2>&1
		report cli any "$nolinux" $? "$log"
		continue
		;;
	serve)
		for test in tests/serve/test_serve*.py; do
			nolinux=$(python3 -B "$test" "$PWD/$linux/kvrun" 2>/dev/null | counts)
			KVRUN_TEST_WINDOWS=1 timeout 1500 python3 -B "$test" "$work/kvrun" >"$log" 2>&1
			code=$?
			report "$(basename "$test" .py)" cpu "$nolinux" $code "$log"
		done
		continue
		;;
	host) # terminal and others of the suites that need a person's machine
		program=kvrun_tests devices=(none) filter=--source-file-exclude="*test_gguf_files*" ;;
	api) program=kvrun_api_tests devices=(cpu lavapipe) filter=--no-version ;;
	serve_answers) program=kvrun_serve_tests devices=(none) filter=--source-file-exclude="*test_serve_connection*" ;;
	*) program=kvrun_device_tests devices=(cpu lavapipe) filter=--source-file="*test_$suite*" ;;
	esac
	for device in "${devices[@]}"; do
		export KVRUN_TEST_DEVICES=$device
		nolinux='not built'
		cases=--test-case=${KVRUN_TEST_CASES:-*}
		if [ -x "$linux/tests/$program" ]; then
			nolinux=$("$linux/tests/$program" "$filter" "$cases" 2>/dev/null | counts)
		fi
		timeout 3000 "$wine" "$windows/tests/$program.exe" "$filter" "$cases" >"$log" 2>"$log.err"
		report "$suite" "$device" "$nolinux" $? "$log"
	done
done
[ $bad -eq 0 ]
