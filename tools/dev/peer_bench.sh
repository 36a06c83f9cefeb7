#!/usr/bin/env bash
# Speed of kvrun and of llama.cpp's Vulkan backend on one driver, measured alternately, as a markdown table.
#   tools/dev/peer_bench.sh PEER [options]
# PEER is the unpacked archive of ../shared/peer/pack.sh, with `run` and `llama-bench`.
#   --kvrun FILE     program to measure [build/kvrun]
#   --driver FILE    Vulkan driver manifest for both [lavapipe of this machine]; `any`: leave the environment as it is
#   --models DIR     folder of the random models, which random_model.py makes once (python3 with gguf, numpy)
#                    [~/.cache/kvrun/bench]
#   --python FILE    the python3 that has gguf and numpy [python3]
#   --rounds N       measurements per row and program; the table has their median [3]
#   --rows LIST      MODEL-ppN or MODEL-tgN, with -dDEPTH where the depth is not 0, and packed
#                    [small-pp128 small-tg16 deep-tg8 deep-tg8-d2048 packed]
#   --kv LIST        cache policies of row `packed` [fp16,kivi4,kivi2,zipcache,mikv,xquant]
#   --peer-only      skip kvrun
# A row: the programs alternate N times; each time a program loads the model, warms up and measures once.
# Models: small and deep of random_model.py; a tenth of the layers of mixtures, made by `kvrun synth` (1 to 2 GB each):
# qwen3moe (qwen3-30b-a3b, Q4_K), gptoss (gpt-oss-20b, MXFP4), gemma4 (gemma-4-26b-a4b, Q4_K), qwen35 (qwen3.5-9b,
# Q4_K) and qwen35moe (qwen3.5-35b-a3b, Q4_K), of whose 4 layers 3 are recurrent; glmflash (glm-4.7-flash, Q4_K), 2
# of 47 layers, with latent attention.
# Row `packed`: 8 tokens at depth 2048 of `deep`; llama.cpp once with a q4_0 cache (minutes on a software driver, where
# reading its prompt back is slow), then kvrun with the policies in turn, N times.
set -euo pipefail
usage() { sed -n '2,21s/^# \?//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
kvrun=$root/build/kvrun driver='' models=${XDG_CACHE_HOME:-$HOME/.cache}/kvrun/bench python=python3 rounds=3 \
	with_kvrun=1
rows="small-pp128 small-tg16 deep-tg8 deep-tg8-d2048 packed" kv=fp16,kivi4,kivi2,zipcache,mikv,xquant peer='' \
	command="tools/dev/peer_bench.sh $*"
while [ $# -gt 0 ]; do
	case $1 in
	--kvrun) kvrun=$(realpath "$2"); shift ;;
	--driver) driver=$2; shift ;;
	--models) models=$2; shift ;;
	--python) python=$2; shift ;;
	--rounds) rounds=$2; shift ;;
	--rows) rows=$2; shift ;;
	--kv) kv=$2; shift ;;
	--peer-only) with_kvrun=0 ;;
	-*) usage ;;
	*) [ -z "$peer" ] || usage; peer=$1 ;;
	esac
	shift
done
if [ -z "$peer" ] || ! [ -x "$peer/run" ]; then usage; fi
peer=$(realpath "$peer")
# shellcheck source=tools/dev/measuring.sh
. "$root/tools/dev/measuring.sh"
[ "$with_kvrun" = 0 ] || check_program "$kvrun"
choose_driver "$driver"
mkdir -p "$models"
models=$(realpath "$models")
make_model() { # NAME
	case $1 in
	small | deep) random_model "$models" "$1" ;;
	qwen3moe) synth_model "$1" qwen3-30b-a3b layers=5,vocab=32000 q4_k ;;
	gptoss) synth_model "$1" gpt-oss-20b layers=2,vocab=32000 mxfp4 ;;
	gemma4) synth_model "$1" gemma-4-26b-a4b layers=3,vocab=32000 q4_k ;;
	qwen35) synth_model "$1" qwen3.5-9b layers=4,vocab=32000 q4_k ;;
	glmflash) synth_model "$1" glm-4.7-flash layers=2,vocab=32000 q4_k ;;
	qwen35moe) synth_model "$1" qwen3.5-35b-a3b layers=4,vocab=32000 q4_k ;;
	*) echo "peer_bench: there is no model '$1'; --help lists them" >&2; exit 2 ;;
	esac
}
synth_model() { # NAME LIKE SHAPE TYPE
	[ -f "$models/$1.gguf" ] || "$kvrun" synth --like "$2" --shape "$3" --type "$4" -o "$models/$1.gguf" >&2
}
for row in $rows; do
	[ "$row" = packed ] || [[ $row =~ ^[a-z0-9]+-(pp|tg)[0-9]+(-d[0-9]+)?$ ]] ||
		{ echo "peer_bench: no row '$row'; --help describes them" >&2; exit 2; }
	[ "$row" = packed ] && make_model deep || make_model "${row%%-*}"
done

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
turn() { # WHO ROW ROUND COMMAND...: its JSON to $out/ROW.WHO.ROUND.json
	if ! "${@:4}" >"$out/$2.$1.$3.json" 2>"$out/error"; then
		echo "peer_bench: $1 failed at $2:" >&2
		tail -n 5 "$out/error" >&2
		exit 1
	fi
	echo "peer_bench: $2, round $3 of $rounds, $1 done" >&2
}
for round in $(seq "$rounds"); do
	for row in $rows; do
		[ "$row" != packed ] || continue
		[[ $row =~ ^([a-z0-9]+)-(pp|tg)([0-9]+)(-d([0-9]+))?$ ]]
		model=${BASH_REMATCH[1]} n=${BASH_REMATCH[3]} args=(-d "${BASH_REMATCH[5]:-0}")
		if [ "${BASH_REMATCH[2]}" = pp ]; then args+=(-p "$n" -n 0); else args+=(-p 0 -n "$n"); fi
		turn peer "$row" "$round" "$peer/run" llama-bench -m "$models/$model.gguf" -dev Vulkan0 -ngl 99 -fa on \
			-ctk f16 -ctv f16 -r 1 -o json "${args[@]}"
		[ "$with_kvrun" = 0 ] || turn kvrun "$row" "$round" "$kvrun" bench -m "$models/$model.gguf" -r 1 -o json \
			"${args[@]}"
	done
done
case " $rows " in *' packed '*)
	args=(-p 0 -n 8 -d 2048)
	turn peer packed 1 "$peer/run" llama-bench -m "$models/deep.gguf" -dev Vulkan0 -ngl 99 -fa on -ctk q4_0 -ctv q4_0 \
		-r 1 -o json "${args[@]}"
	[ "$with_kvrun" = 0 ] || turn kvrun packed 1 "$kvrun" bench -m "$models/deep.gguf" -r "$rounds" --kv "$kv" -o json \
		"${args[@]}"
	;;
esac

commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
# shellcheck disable=SC2086 # a list of words
"$python" - "$out" "$rounds" "$command" "$commit" "$(nproc)" $rows <<'PY'
import datetime, json, statistics, sys

out, rounds, command, commit, cores, *rows = sys.argv[1:]
peer_info, kvrun_info = {}, {}


def samples(row, who):
    values = []
    for i in range(1, int(rounds) + 1):
        try:
            doc = json.load(open(f"{out}/{row}.{who}.{i}.json"))
        except FileNotFoundError:
            return None
        if who == "peer":
            peer_info.update(doc[0])
            values += doc[0]["samples_ts"]
        else:
            kvrun_info.update(doc)
            values += doc["results"][0]["tok_s"]
    return values


def cell(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})" if values else "-"


lines, packed = [], []
for row in rows:
    if row == "packed":
        continue
    peer, ours = samples(row, "peer"), samples(row, "kvrun")
    ratio = f"{statistics.median(ours) / statistics.median(peer):.2f}" if ours else "-"
    lines.append(f"| {row} | {cell(ours)} | {cell(peer)} | {ratio} |")
if "packed" in rows:
    doc = json.load(open(f"{out}/packed.peer.1.json"))
    peer_info.update(doc[0])
    peer = statistics.median(doc[0]["samples_ts"])
    packed.append(f"| llama.cpp q4_0 | {peer:.2f} | 1.00 | - | - |")
    try:
        kvrun_info.update(json.load(open(f"{out}/packed.kvrun.1.json")))
        results = kvrun_info["results"]
    except FileNotFoundError:
        results = []
    for r in results:
        own = f"{r['tok_s_median'] / results[0]['tok_s_median']:.2f}"
        packed.append(f"| {r['kv']} | {cell(r['tok_s'])} | {r['tok_s_median'] / peer:.2f} | {own} | {r['kv_bytes'] / 2**20:.1f} |")
device = kvrun_info.get("device", {})
if device and device["name"] != peer_info["gpu_info"]:
    sys.exit(f"peer_bench: kvrun ran on '{device['name']}', llama.cpp on '{peer_info['gpu_info']}': no comparison")
print(f"{datetime.date.today()}, {peer_info['gpu_info']}"
      f"{', driver ' + device['driver'] if device else ''}, processor {peer_info['cpu_info']}, {cores} cores")
print(f"kvrun {kvrun_info.get('version', '-')} ({commit}), llama.cpp build {peer_info['build_number']} "
      f"({peer_info['build_commit']}), {rounds} measurements, in turns\n`{command}`")
if lines:
    print("\nf16 caches:\n\n| row | kvrun tok/s, median (min .. max) | llama.cpp tok/s | ratio |\n|---|---:|---:|---:|")
    print("\n".join(lines))
if packed:
    print("\nPacked caches, deep, 8 tokens at depth 2048 (llama.cpp measured once):\n")
    print("| cache | tok/s, median (min .. max) | of llama.cpp q4_0 | of the first policy | MiB |\n|---|---:|---:|---:|---:|")
    print("\n".join(packed))
PY
