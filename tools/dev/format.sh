#!/usr/bin/env bash
# Formats every C++ and CUDA file by .clang-format:
#   tools/dev/format.sh            rewrites what differs
#   tools/dev/format.sh --check    names what differs, and fails
# Versions of clang-format differ in what they write; the one of Debian 12, 14, counts. Exit code 77: it is not there.
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
