#!/usr/bin/env bash
# Quality loss of KV cache policies on the bundled model, as markdown on stdout; progress goes to stderr.
#   tools/dev/quality.sh [options]               every policy: text, recall, needle
#   tools/dev/quality.sh --ablations [options]   the papers' ablations, one table each
#   tools/dev/quality.sh --model smollm2         every policy on a real model of tools/models.sh: KL divergence
#                    of three texts; --help after it lists its options. Two idle cores take about 20 minutes
#   --quick          smaller samples: half a minute instead of minutes, with wide intervals
#   --windows WHICH  f16 windows of the first table: `small`, 33 to 64 tokens under every policy, so that short contexts
#                    are not mostly f16; `paper`, as the papers set them [small]
#   --only LIST      only these tables: probes,score,granularity,steps,balancer,outliers,eviction,
#                    salient,logwindow [all]
#   --kvrun FILE     program to measure [build/kvrun]
#   --device NAME    as for kvrun [cpu]
#   --model FILE     GGUF file of a model that answers records [models/bundled/recall-4m-f16.gguf]
#   --text FILE      text to score [../shared/assets/models/recall/stories-eval.txt; skipped with a message if absent]
#   --seed N         of questions and of probe rows [1]
#   --jobs N         runs at a time [one per core: the cpu device takes one]
#   --samples N      records per recall column           --lines N      lines of a record
#   --chunk N        tokens of a chunk of text, half     --chunks N     chunks of text
#                    of them scored
#   --needles N      number of needles                   --sentences N  sentences of filler
#   --dry-run        check every policy and print the commands, measure nothing
# The same seed and device give the same table. Two idle cores take about 8 minutes for the first table, 12 for the
# ablations.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ "${1:-}" = --model ] && [[ ${2:-} != *.gguf ]]; then exec python3 -B "$root/tools/dev/quality_model.py" "$@"; fi
for arg in "$@"; do
	case $arg in -h | --help) sed -n '2,25s/^# \?//p' "$0"; exit 0 ;; esac
done
command -v python3 >/dev/null || { echo "quality: python3 is needed; install python3" >&2; exit 4; }
exec python3 -B "$root/tools/dev/quality.py" "$@"
