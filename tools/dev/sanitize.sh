#!/bin/sh
# Runs the tests of the C API on the cpu backend under AddressSanitizer with UndefinedBehaviorSanitizer, and under
# ThreadSanitizer: threads that share an engine, cancelling, misuse, handles in any order, and races between these.
# tools/dev/nightly.sh runs the whole suite under both.
#
# Usage: sanitize.sh [asan|tsan]...     both by default
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- asan tsan
for preset in "$@"; do
	cmake --preset "$preset" >/dev/null
	cmake --build "build-$preset" --target kvrun_api_tests
	KVRUN_TEST_DEVICES=cpu TSAN_OPTIONS=halt_on_error=1 "build-$preset/tests/kvrun_api_tests" --no-version \
		--test-case-exclude='*1000 engines*'
	echo "sanitize: $preset ok"
done
