#!/usr/bin/env bash
# What fetching recovers on the bundled model: KL divergence on text, recall by decode steps; 1 and 2 bits, the number of
# fetched tokens, chosen ahead and by the token itself.
#   tools/dev/fetch_study.sh [options]
#   --kvrun FILE     program to measure [build/kvrun]
#   --device NAME    as for kvrun [cpu]
#   --text FILE      text to score [../shared/assets/models/recall/stories-eval.txt]
#   --chunks N       chunks of 1024 tokens of it, half of each scored [1]
#   --samples N      records per recall column [32]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kvrun=$root/build/kvrun device=cpu chunks=1 samples=32
text=${KVRUN_SHARED:-$root/../shared}/assets/models/recall/stories-eval.txt
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help) sed -n '2,10s/^# \?//p' "$0"; exit 0 ;;
	--kvrun) kvrun=$2 ;;
	--device) device=$2 ;;
	--text) text=$2 ;;
	--chunks) chunks=$2 ;;
	--samples) samples=$2 ;;
	*) echo "fetch_study: no option $1; --help lists them" >&2; exit 2 ;;
	esac
	shift 2
done
# The paper's rule: what is fetched takes the place of half of the window.
one=specache1 two=specache2 relaxed=kivi1,eta=0.25,recent=128
kv=fp16,kivi1,$relaxed
for k in 16 32 64 128; do kv+=,$one,fetch=$k; done
kv+=,$one,fetch=64,fetch_mode=sync,kivi2,$two
model=$root/models/bundled/recall-4m-f16.gguf
echo "# $(date -u +%F), $("$kvrun" --version | head -1), device $device"
if [ -e "$text" ]; then
	"$kvrun" eval "$model" --device "$device" -f "$text" -c 1024 --chunks "$chunks" --kv "$kv"
else
	echo "skipped: text ($text is not there)"
fi
"$kvrun" eval "$model" --device "$device" --task recall --samples "$samples" --ask later --kv "$kv"
