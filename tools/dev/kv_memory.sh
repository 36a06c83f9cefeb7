#!/usr/bin/env bash
# Memory of packed caches at long contexts, as a markdown table: bytes needed, bytes allocated on the device, and growth
# of the process, on a driver whose device memory is the process's own (lavapipe).
#   tools/dev/kv_memory.sh [options]
#   --kvrun FILE     program to measure [build/kvrun]
#   --driver FILE    Vulkan driver manifest [lavapipe of this machine]; `any`: leave the environment as it is
#   --model FILE     GGUF file [the random model `deep`: 4 layers, 8 kv heads, head_dim 128, made by random_model.py]
#   --models DIR     folder of the random model [~/.cache/kvrun/bench]
#   --python FILE    the python3 that has gguf and numpy, to make it [python3]
#   --tokens N       length of the context [32768]
#   --kv LIST        cache policies; the others are compared with the first
#   [fp16,kivi4,kivi2,xquant,zipcache,mikv]
#   --limit P=X      policy P must take at most X times the first one's bytes, device and resident; may be repeated
#                    [kivi2=0.2 xquant=0.142857]
# The cache is filled by `kvrun bench --fill`: tokens are stored as in a prompt, in the same memory, but the model does
# not run. Device: allocated after one more token was generated. Resident: growth of the process relative to 1024 tokens
# in the cache, plus the bytes allocated for those. Peak: the same for the largest resident set, which includes the
# prompt's rows and one layer's f16 keys and values. Exit code 1 if a limit is exceeded.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
kvrun=$root/build/kvrun driver='' model='' models=${XDG_CACHE_HOME:-$HOME/.cache}/kvrun/bench python=python3
tokens=32768 kv=fp16,kivi4,kivi2,xquant,zipcache,mikv limits=()
while [ $# -gt 0 ]; do
	case $1 in
	--kvrun) kvrun=$2; shift ;;
	--driver) driver=$2; shift ;;
	--model) model=$2; shift ;;
	--models) models=$2; shift ;;
	--python) python=$2; shift ;;
	--tokens) tokens=$2; shift ;;
	--kv) kv=$2; shift ;;
	--limit) limits+=("$2"); shift ;;
	*) sed -n '2,19s/^# \?//p' "$0" >&2; exit 2 ;;
	esac
	shift
done
[ ${#limits[@]} -gt 0 ] || limits=(kivi2=0.2 xquant=0.142857)
# shellcheck source=tools/dev/measuring.sh
. "$root/tools/dev/measuring.sh"
check_program "$kvrun"
choose_driver "$driver"
if [ -z "$model" ]; then
	model=$models/deep.gguf
	random_model "$models" deep
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
IFS=';' read -ra policies <<<"$(sed -E 's/,([a-z0-9]+)(,|$)/;\1\2/g; s/,([a-z0-9]+)(,|$|;)/;\1\2/g' <<<"$kv")"
for i in "${!policies[@]}"; do
	for depth in 1024 "$tokens"; do # separate processes, because freed memory may stay resident
		if ! "$kvrun" bench -m "$model" -p 0 -n 1 -d "$depth" -r 1 --fill --kv "${policies[i]}" -o json \
			>"$out/$i.$depth" 2>"$out/error"; then
			echo "kv_memory: kvrun failed with ${policies[i]} at $depth tokens:" >&2
			tail -n 3 "$out/error" >&2
			exit 1
		fi
	done
done
"$python" - "$out" "$tokens" "${#policies[@]}" "${limits[@]}" <<'PY'
import json, sys

out, tokens, n, *limits = sys.argv[1:]
limits = {k: float(v) for k, v in (x.split("=", 1) for x in limits)}
first, failed = None, False
for i in range(int(n)):
    small, full = (json.load(open(f"{out}/{i}.{depth}")) for depth in ("1024", tokens))
    a, b = small["results"][0], full["results"][0]
    if not b["resident_bytes"]:
        sys.exit("kv_memory: this system does not say what is resident")
    grown = b["resident_bytes"] - a["resident_bytes"] + a["kv_device_bytes"]
    peak = full["resident_peak_bytes"] - a["resident_bytes"] + a["kv_device_bytes"]
    row = [b["kv_bytes"], b["kv_device_bytes"], grown]
    if first is None:
        device = full["device"]
        print(f"{tokens} tokens, {device['name']}, driver {device['driver']}\n")
        print("| policy | cache needs, MiB | of the first | device allocated | of the first | resident | of the first | peak | |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
        first = row
    share = [x / y for x, y in zip(row, first)]
    limit, verdict = limits.get(b["kv"]), ""
    if limit:
        over = max(share) > limit
        failed |= over
        verdict = f"{'OVER' if over else 'within'} 1/{1 / limit:.3g}"
    cells = " | ".join(f"{x / 2**20:.1f} | 1/{1 / s:.2f}" for x, s in zip(row, share))
    print(f"| {b['kv']} | {cells} | {peak / 2**20:.1f} | {verdict} |")
sys.exit(1 if failed else 0)
PY
