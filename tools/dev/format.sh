#!/usr/bin/env bash
# Formats all C++ and CUDA files by .clang-format:
#   tools/dev/format.sh            rewrites files that differ
#   tools/dev/format.sh --check    names files that differ, and fails if there are any
# Versions of clang-format give different results; version 14 (Debian 12) is used. Exit code 77: it is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case ${1:-} in
"") mode=(-i) ;;
--check) mode=(--dry-run -Werror) ;;
*) sed -n '2,5s/^# \?//p' tools/dev/format.sh >&2; exit 2 ;;
esac
for program in clang-format-14 clang-format; do
	if "$program" --version 2>/dev/null | grep -q ' version 14\.'; then break; fi
	program=
done
if [ -z "$program" ]; then
	echo "skipped: formatting was not looked at; no clang-format 14 (Debian 12: package clang-format)" >&2
	exit 77
fi
find . \( -path './build*' -o -path './.*' \) -prune -o \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name \
	'*.cuh' \) -print0 |
	xargs -0 "$program" "${mode[@]}"
