#!/usr/bin/env bash
# The tables of packed caches in BENCHMARKS.md, as markdown: cost of saliency in a prompt, decode at depth, memory at
# 32768 tokens, and decode compared with llama.cpp's q4_0 cache; on lavapipe or any driver, with the random model deep.
#   tools/dev/kv_bench.sh [options] [PEER]
# PEER is the unpacked archive of ../shared/peer/pack.sh; without it the last table is omitted.
#   --kvrun FILE     program to measure [build/kvrun]
#   --driver FILE    Vulkan driver manifest [lavapipe of this machine]; `any`: leave the environment as it is
#   --models DIR     folder of the random model, which is made once [~/.cache/kvrun/bench]
#   --python FILE    the python3 that has gguf and numpy, to make it [python3]
#   --rounds N       measurements per policy, alternating [3]
#   --depth N        tokens of the prompt, and in the cache before tokens are generated [2048]
#   --tokens N       length of the context whose memory is measured; 0: not measured [32768]
# Takes about a quarter of an hour on two cores with PEER, mostly for llama.cpp; nothing else should run.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
kvrun=$root/build/kvrun driver='' models=${XDG_CACHE_HOME:-$HOME/.cache}/kvrun/bench python=python3
rounds=3 depth=2048 tokens=32768 peer=''
while [ $# -gt 0 ]; do
	case $1 in
	--kvrun) kvrun=$2; shift ;;
	--driver) driver=$2; shift ;;
	--models) models=$2; shift ;;
	--python) python=$2; shift ;;
	--rounds) rounds=$2; shift ;;
	--depth) depth=$2; shift ;;
	--tokens) tokens=$2; shift ;;
	-*) sed -n '2,14s/^# \?//p' "$0" >&2; exit 2 ;;
	*) peer=$1 ;;
	esac
	shift
done
# shellcheck source=tools/dev/measuring.sh
. "$root/tools/dev/measuring.sh"
check_program "$kvrun"
choose_driver "$driver"
common=(--kvrun "$kvrun" --driver "$driver" --models "$models" --python "$python")
random_model "$models" deep

bench() { # HEADING ARGUMENTS...
	printf '\n### %s\n\n`kvrun bench -m deep.gguf %s`\n\n' "$1" "${*:2}"
	"$kvrun" bench -m "$models/deep.gguf" "${@:2}"
}
status=0
printf '%s, kvrun %s (%s), %s cores, load %s\n' "$(date +%F)" "$("$kvrun" --version | awk '{ print $NF }')" \
	"$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)" "$(nproc)" \
		"$(cut -d' ' -f1 /proc/loadavg)"
bench "What saliency costs a prompt" -p "$depth" -n 0 -r "$rounds" --kv fp16,zipcache,mikv,kivi2
bench "Decode at depth $depth" -p 0 -n 32 -d "$depth" -r "$rounds" --kv fp16,kivi4,kivi2,zipcache,mikv,xquant
if [ "$tokens" != 0 ]; then
	printf '\n### Memory at %s tokens\n\n`tools/dev/kv_memory.sh --tokens %s`\n\n' "$tokens" "$tokens"
	"$root/tools/dev/kv_memory.sh" "${common[@]}" --tokens "$tokens" || status=1
fi
if [ -n "$peer" ]; then
	printf '\n### Beside llama.cpp\n\n'
	"$root/tools/dev/peer_bench.sh" "${common[@]}" "$peer" --rounds "$rounds" --rows packed
fi
exit $status
