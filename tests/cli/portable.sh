#!/bin/sh
# The script `run` of tools/dev/portable.sh's bundle: what it adds to the options of `run compare`, and where the tests
# find their data.
#   tests/cli/portable.sh SOURCE_FOLDER
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/libc" "$work/newest"
cp "$1/tools/dev/portable/run" "$work/"
echo 0.0 >"$work/libc/version" # this system's C library is newer
echo 0 >"$work/newest/version"
printf '#!/bin/sh\necho "$*"\n' >"$work/bin/kvrun" # says what it is asked for
chmod +x "$work/bin/kvrun"

failed=0
check() { # WANTED OPTIONS...
	want="compare $1"
	shift
	got=$(VK_ADD_DRIVER_FILES=none "$work/run" compare "$@")
	[ "$got" = "$want" ] || { echo "FAILED: run compare $*: '$got' instead of '$want'"; failed=1; }
}
model="-m $work/models/bundled/recall-4m-f16.gguf" out="-o kvrun-compare"
check "$model $out"
check "$model --quick $out" --quick
for given in "-o here" "-ohere" "--output here" "--output=here"; do
	# shellcheck disable=SC2086  # words
	check "$model $given" $given
done
for given in "-m x.gguf" "-mx.gguf" "--model x.gguf" "--model=x.gguf" "-hf a/b" "--hf-repo a/b" "--hf-repo=a/b"; do
	# shellcheck disable=SC2086
	check "$given $out" $given
done
check "merge here there -o all" merge here there -o all

printf '#!/bin/sh\necho "$KVRUN_TEST_ROOT"\n' >"$work/bin/kvrun_device_tests"
chmod +x "$work/bin/kvrun_device_tests"
root_is() { # CODE WANTED [KVRUN_TEST_ROOT]
	code=0
	got=$(VK_ADD_DRIVER_FILES=none KVRUN_TEST_ROOT="${3:-}" "$work/run" test cpu 2>&1) || code=$?
	case $code:$got in "$1":*"$2"*) ;; *) echo "FAILED: run test: '$got', exit code $code"; failed=1 ;; esac
}
root_is 3 kvrun-portable-x86_64-tests.tar.xz
root_is 3 kvrun-portable-x86_64-tests.tar.xz "$work"
root_is 0 "$1" "$1"
mkdir -p "$work/tests/golden"
root_is 0 "$work" "$1"
exit $failed
