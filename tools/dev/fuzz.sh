#!/usr/bin/env bash
# Builds the fuzzers with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs each on its seeds:
#   tools/dev/fuzz.sh [--fast] [SECONDS [NAME...]]      default: 600 seconds each of all of them
#   --fast   without the sanitizers, in build-fuzz-fast: several times as many executions, which find crashes, hangs and
#            broken rules; inputs that reach new code are added to the same corpora, for the next run with sanitizers
# Corpora and findings are kept in build-fuzz/corpus and build-fuzz/found; a finding ends the script with its exit code.
# KVRUN_FUZZ_MAX_LEN: longest input in bytes [16384]; shorter limits allow more executions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
preset=fuzz
case ${1:-} in
-h | --help) sed -n '2,8s/^# \?//p' "$0"; exit 0 ;;
--fast) preset=fuzz-fast; shift ;;
esac
seconds=${1:-600}
shift || true
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(gguf grammar http npy policy session spirv template tokenizer vision)
cmake --preset $preset >/dev/null
cmake --build build-$preset -j "$(nproc)" --target fuzz_seeds "${names[@]/#/fuzz_}"
build-$preset/tests/fuzz_seeds build-fuzz/seeds
for name in "${names[@]}"; do
	mkdir -p "build-fuzz/corpus/$name" build-fuzz/found
	echo "fuzzing $name for $seconds s"
	# limits of the fault table; stderr of the target is closed, libFuzzer has its own
	nice "build-$preset/tests/fuzz_$name" -max_total_time="$seconds" -max_len="${KVRUN_FUZZ_MAX_LEN:-16384}" \
		-timeout=5 \
		-malloc_limit_mb=256 -rss_limit_mb=2048 -close_fd_mask=2 -print_final_stats=1 \
		-artifact_prefix="build-fuzz/found/$name-" "build-fuzz/corpus/$name" "build-fuzz/seeds/$name"
done
