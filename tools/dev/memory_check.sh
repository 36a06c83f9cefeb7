#!/usr/bin/env bash
# Compares the resident memory of `kvrun run` after loading with 1.3 x model file + KV + 64 MiB, on a driver whose
# device memory is the process's own (lavapipe).
#   tools/dev/memory_check.sh [options] [MODEL...]
#   --kvrun FILE     program to measure [build/kvrun]
#   --driver FILE    Vulkan driver manifest [lavapipe of this machine]; `any`: leave the environment as it is
#   --predict N      tokens to generate during the measurement [8]
#   --models DIR     folder of the random model [~/.cache/kvrun/bench]
#   --python FILE    the python3 that has gguf and numpy, to make it [python3]
# MODEL: GGUF files [a random model of 664 MiB, made by ../shared/peer/random_model.py]. A small model exceeds any such
# limit: lavapipe's compiler and its compiled shaders alone take about 90 MiB.
# Prints a table: the largest resident set after the first token, its anonymous and file pages, the peak of the whole
# run, and the limit. Exit code 1 if a resident set exceeds its limit.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
kvrun=$root/build/kvrun driver='' predict=8 models=() cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvrun/bench python=python3
while [ $# -gt 0 ]; do
	case $1 in
	--kvrun) kvrun=$2; shift ;;
	--driver) driver=$2; shift ;;
	--predict) predict=$2; shift ;;
	--models) cache=$2; shift ;;
	--python) python=$2; shift ;;
	-*) sed -n '2,14s/^# \?//p' "$0" >&2; exit 2 ;;
	*) models+=("$1") ;;
	esac
	shift
done
# shellcheck source=tools/dev/measuring.sh
. "$root/tools/dev/measuring.sh"
check_program "$kvrun"
choose_driver "$driver"

if [ ${#models[@]} -eq 0 ]; then
	models=("$cache/mid.gguf")
	random_model "$cache" mid
fi

out=$(mktemp -d)
pid=''
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$out"' EXIT
field() { awk -v key="$1:" '$1 == key { print $2 }' "$out/status"; } # kB
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 1048576 }'; }
failed=0
echo "| model | file MiB | KV MiB | resident MiB | anonymous | file pages | peak | limit | |"
echo "|---|---:|---:|---:|---:|---:|---:|---:|---|"
for model in "${models[@]}"; do
	[ -r "$model" ] || { echo "memory_check: $model cannot be read" >&2; exit 3; }
	options=(-m "$model" -p "Once upon a time" -n "$predict" --temp 0 --ignore-eos --seed 1)
	: >"$out/text"
	"$kvrun" run "${options[@]}" >"$out/text" 2>"$out/error" &
	pid=$!
	rss=0 anonymous=0 files=0 peak=0
	while cat "/proc/$pid/status" >"$out/now" 2>/dev/null && grep -q '^VmRSS' "$out/now"; do
		mv "$out/now" "$out/status"
		peak=$(field VmHWM)
		if [ -s "$out/text" ] && [ "$(field VmRSS)" -gt "$rss" ]; then
			rss=$(field VmRSS) anonymous=$(field RssAnon) files=$(field RssFile)
		fi
		sleep 0.01
	done
	if ! wait "$pid"; then
		echo "memory_check: kvrun failed on $model:" >&2
		tail -n 3 "$out/error" >&2
		exit 1
	fi
	pid=''
	if [ "$rss" = 0 ]; then
		echo "memory_check: $model was done before its memory could be read; raise --predict" >&2
		exit 1
	fi
	kv=$("$kvrun" run "${options[@]}" --json 2>/dev/null | awk -F'[:, ]+' \
		'/"kv":/ { inside = 1 } inside && /"bytes":/ { print $3; exit }')
	[ -n "$kv" ] || { echo "memory_check: kvrun's JSON names no KV bytes" >&2; exit 1; }
	size=$(stat -Lc %s "$model")
	limit=$((size * 13 / 10 + kv + 64 * 1048576))
	verdict=ok
	if [ $((rss * 1024)) -gt "$limit" ]; then verdict=OVER failed=1; fi
	echo \
		"| $(basename "$model") | $(mib "$size") | $(mib "$kv") | $(mib $((rss * 1024))) | $(mib $((anonymous * 1024))) | $(mib $((files * 1024))) | $(mib $((peak * 1024))) | $(mib "$limit") | $verdict |"
done
exit $failed
