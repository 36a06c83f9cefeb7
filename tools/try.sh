#!/usr/bin/env bash
# Fresh machine to an answer: packages, Release build, and the bundled model looks up one of 40 lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step="installing packages"
trap 'echo "try.sh: stopped while $step" >&2' ERR
tools/packages.sh build

step="building"
. tools/environment.sh
# the CUDA backend only validates the others; tools/test.sh builds it
if [ ! -f build/build.ninja ]; then cmake --preset release -DKVRUN_CUDA=OFF; fi
cmake --build --preset release --target kvrun

step="running"
model=models/bundled/recall-4m-f16.gguf
prompt=models/bundled/record40.txt
expected=$(cat models/bundled/record40.answer)
query=$(sed -n 's/^Query: //p' "$prompt")
command=(build/kvrun run -m "$model" -f "$prompt" -n 5 --temp 0)
echo
echo "The record (models/bundled/record40.txt) has $(grep -c '^line ' "$prompt") lines:"
sed -n '2,4p' "$prompt" | sed 's/^/    /'
echo "    ..."
echo "Question: what does line $query contain?"
echo "\$ ${command[*]}"
answer=$("${command[@]}")
if [ "$answer" != "$expected" ]; then
	echo "Answer:   $answer - wrong, line $query contains $expected" >&2
	exit 1
fi
echo "Answer:   $answer (right)"
