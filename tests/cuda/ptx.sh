#!/usr/bin/env bash
# Compiles the CUDA kernels to PTX by clang, without a CUDA toolkit:  tests/cuda/ptx.sh FOLDER FILE.cu...
# For the oldest architecture kvrun is built for and the newest this clang knows. The PTX goes to FOLDER; where ptxas is
# at hand, it assembles it. Exit code 77: there is no clang that compiles CUDA.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,4s/^# \?//p' "$0" >&2; exit 2; }
folder=$1
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$folder"

compile() { # PROGRAM ARCH SOURCE OUT
	"$1" -x cuda --cuda-gpu-arch="$2" --cuda-path="$folder" -nocudainc -nocudalib --cuda-device-only -S -std=c++17 -O2 \
		-Xclang -target-feature -Xclang +ptx64 -Wall -Wextra -Werror -Wno-unknown-cuda-version -Wno-pass-failed \
		-I"$root" -I"$root/shaders" -include "$root/tests/cuda/ptx_words.h" "$3" -o "$4"
}

printf '__global__ void nothing_kernel() {}\n' >"$folder/nothing.cu"
for clang in clang-14 clang; do
	if compile "$clang" sm_75 "$folder/nothing.cu" "$folder/nothing.ptx" 2>"$folder/nothing.log"; then break; fi
	clang=
done
if [ -z "$clang" ]; then
	echo "skipped: no clang here compiles CUDA to PTX (package clang)"
	exit 77
fi
newest=sm_75
for arch in sm_120 sm_100 sm_90 sm_89 sm_86 sm_80; do
	if compile "$clang" $arch "$folder/nothing.cu" "$folder/nothing.ptx" 2>/dev/null; then newest=$arch && break; fi
done

kernels=0
for arch in sm_75 $newest; do
	for file in "$@"; do
		ptx=$folder/$(basename "$file" .cu).$arch.ptx
		compile "$clang" "$arch" "$file" "$ptx"
		found=$(grep -c '^\.visible \.entry\|^	*\.entry' "$ptx" || true)
		if [ "$found" -ne "$(grep -c '^__global__' "$file")" ]; then
			echo "error: $ptx has $found kernels, $file says otherwise" >&2
			exit 1
		fi
		kernels=$((kernels + found))
		if command -v ptxas >/dev/null; then ptxas -arch="$arch" -c "$ptx" -o "$ptx.o"; fi
	done
done
assembled="ptxas is not here: not assembled"
if command -v ptxas >/dev/null; then assembled="assembled by ptxas"; fi
echo "$kernels kernels compiled to PTX for sm_75 and $newest by $clang; $assembled"
