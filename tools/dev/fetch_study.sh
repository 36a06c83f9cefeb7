#!/usr/bin/env bash
# What fetching recovers on the bundled model: KL divergence on text, recall by decode steps, time of a step; for 1 and
# 2 bits, by number of fetched tokens, chosen one step ahead or by the token itself.
#   tools/dev/fetch_study.sh [options]
#   --only LIST      of text,recall,hits,time [all]; hits: tools/dev/attention_study.py, python3 with numpy
#   --kvrun FILE     program to measure [build/kvrun]
#   --device NAME    as for kvrun [cpu]
#   --text FILE      text to score [../shared/assets/models/recall/stories-eval.txt]
#   --chunks N       chunks of 1024 tokens of it [1]
#   --score N        last tokens of each that are scored [128]
#   --samples N      records per recall column [32]
#   --depth N        tokens in the cache when a step is timed [4096]
#   --python FILE    [python3]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kvrun=$root/build/kvrun device=cpu chunks=1 score=128 samples=32 depth=4096 python=python3 only=text,recall,hits,time
text=${KVRUN_SHARED:-$root/../shared}/assets/models/recall/stories-eval.txt
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) sed -n '2,14s/^# \?//p' "$0"; exit 0 ;;
	--only) only=$2 ;;
	--kvrun) kvrun=$2 ;;
	--device) device=$2 ;;
	--text) text=$2 ;;
	--chunks) chunks=$2 ;;
	--score) score=$2 ;;
	--samples) samples=$2 ;;
	--depth) depth=$2 ;;
	--python) python=$2 ;;
	*) echo "fetch_study: no option $1; --help lists them" >&2; exit 2 ;;
	esac
	shift 2
done
wanted() { case ,$only, in *,$1,*) ;; *) return 1 ;; esac; }
# The paper's rule: fetched tokens replace half of the window.
kv=fp16
for bits in 1 2; do
	plain=kivi$bits
	[ $bits = 2 ] || plain+=,eta=0.25
	kv+=,$plain,recent=64,$plain,recent=128
	for k in 16 32 64 128; do kv+=,specache$bits,fetch=$k; done
	kv+=,specache$bits,fetch_mode=sync
done
model=$root/models/bundled/recall-4m-f16.gguf
echo "# $(date -u +%F), $("$kvrun" --version | head -1), device $device"
if wanted text; then
	if [ -e "$text" ]; then
		"$kvrun" eval "$model" --device "$device" -f "$text" -c 1024 --score "$score" --chunks "$chunks" --kv "$kv"
	else
		echo "skipped: text ($text is not there)"
	fi
fi
if wanted recall; then
	"$kvrun" eval "$model" --device "$device" --task recall --samples "$samples" --ask later --kv "$kv"
fi
if wanted hits; then
	"$python" -B "$root/tools/dev/attention_study.py" --only hits --chunks "$chunks" --text "$text" --kvrun "$kvrun"
fi
if wanted time; then # also of the same step without fetching, and of a step that waits for its own choice
	"$kvrun" bench -m "$model" --device "$device" -p 0 -n 8 -d "$depth" -c $((depth + 64)) -r 2 --fill \
		--kv fp16,kivi2,specache2,specache2,fetch_mode=sync,kivi1,specache1,specache1,fetch_mode=sync
fi
