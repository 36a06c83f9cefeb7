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
#   --rows LIST      of small-pp128 small-tg16 deep-tg8-d0 deep-tg8-d2048 packed [all]
#   --kv LIST        cache policies of row `packed` [fp16,kivi4,kivi2,zipcache,mikv,xquant]
#   --peer-only      skip kvrun
# A row: the programs alternate N times; each time a program loads the model, warms up and measures once.
# Row `packed`: 8 tokens at depth 2048 of `deep`; llama.cpp once with a q4_0 cache (minutes on a software driver, where
# reading its prompt back is slow), then kvrun with the policies in turn, N times.
set -euo pipefail
usage() { sed -n '2,17s/^# \?//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
kvrun=$root/build/kvrun driver='' models=${XDG_CACHE_HOME:-$HOME/.cache}/kvrun/bench python=python3 rounds=3 \
	with_kvrun=1
rows="small-pp128 small-tg16 deep-tg8-d0 deep-tg8-d2048 packed" kv=fp16,kivi4,kivi2,zipcache,mikv,xquant peer='' \
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
case $rows in *small*) random_model "$models" small ;; esac
case $rows in *deep* | *packed*) random_model "$models" deep ;; esac

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
		case $row in
		small-pp128) model=small args=(-p 128 -n 0 -d 0) ;;
		small-tg16) model=small args=(-p 0 -n 16 -d 0) ;;
		deep-tg8-d0) model=deep args=(-p 0 -n 8 -d 0) ;;
		deep-tg8-d2048) model=deep args=(-p 0 -n 8 -d 2048) ;;
		*) echo "peer_bench: no row '$row'" >&2; exit 2 ;;
		esac
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
