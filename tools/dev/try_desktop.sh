#!/usr/bin/env bash
# Acceptance run of kvrun-desktop from a clean state, under Xvfb and on lavapipe: the scripted tests, then frame times
# while a prompt of about 9000 tokens is read, and pictures of a first use.
#
# Usage: tools/dev/try_desktop.sh [--build FOLDER] [--pictures FOLDER] [--tokens N] [--seconds N]
# --seconds: measure only so many seconds of the reading
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=build pictures= tokens=9000 seconds=0
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 ;;
	--pictures) pictures=$(realpath "$2") ;;
	--tokens) tokens=$2 ;;
	--seconds) seconds=$2 ;;
	*) sed -n '2,7s/^# \?//p' "$0" >&2; exit 2 ;;
	esac
	shift 2
done
if [ ! -x "$build/kvrun-desktop" ]; then
	echo "try_desktop: no $build/kvrun-desktop; tools/packages.sh tests, then build" >&2
	exit 1
fi
if [ -x "$build/tests/kvrun_desktop_tests" ]; then "$build/tests/kvrun_desktop_tests" --no-version | tail -n 3; fi
python3 -B tests/desktop/test_desktop.py "$build/kvrun-desktop"
python3 -B tests/desktop/frames.py "$build/kvrun-desktop" --tokens "$tokens" --seconds "$seconds"
if [ -n "$pictures" ]; then python3 -B tests/desktop/walk.py "$build/kvrun-desktop" "$pictures"; fi
