#!/usr/bin/env bash
# Installs missing packages of Debian 12 or newer or Ubuntu 24.04 that kvrun is built from; `tests`: also those of the
# test suite, and mingw-w64 where this system has it; `models`: only those that tools/models.sh needs; `windows`: also
# those that build kvrun for Windows and run it (preset windows, Wine), the installer's maker, and the libraries that
# tools/windows_packages.sh builds; `arm64`: also those that build kvrun for 64-bit Arm and run it (preset arm64,
# qemu-user), and the folder of arm64 libraries that tools/arm64_packages.sh fills.
set -euo pipefail

usage="usage: tools/packages.sh [build|tests|models|windows|arm64] [--list]"
want=build list=
for arg in "$@"; do
	case $arg in
	build | tests | models | windows | arm64) want=$arg ;;
	--list) list=1 ;;
	*) echo "$usage" >&2; exit 2 ;;
	esac
done

# compiler and build; libraries; shaders; scripts of the server's page; drivers to run on, lavapipe included
packages=(g++ make cmake ninja-build pkg-config
	libfmt-dev nlohmann-json3-dev libcli11-dev doctest-dev libpcre2-dev libutf8proc-dev libxxhash-dev libboost-dev
	libedit-dev
	libcurl4-openssl-dev libssl-dev libtomlplusplus-dev libpng-dev libturbojpeg0-dev libwebp-dev libsndfile1-dev
	libsamplerate0-dev
	libvulkan-dev libvulkan-volk-dev glslang-tools spirv-tools
	libjs-marked node-highlight.js
	libvulkan1 mesa-vulkan-drivers)
if [ "$want" = tests ]; then
	packages+=(qt6-base-dev libmd4c-dev xvfb) # kvrun-desktop
	packages+=(libboost-context-dev vulkan-validationlayers python3 python3-cffi python3-jinja2 python3-jsonschema
		python3-numpy python3-pytest openssl xz-utils locales)
fi

if [ "$want" = windows ]; then packages+=(g++-mingw-w64-x86-64-posix libz-mingw-w64-dev nsis wine64 xvfb); fi
extra=() # of the test `windows_syntax`, which is skipped without it
if [ "$want" = tests ] && [ "$(uname -m)" = x86_64 ]; then extra=(g++-mingw-w64-x86-64-posix); fi
if [ "$want" = arm64 ]; then packages+=(g++-aarch64-linux-gnu qemu-user); fi
if [ "$want" = models ]; then packages=(python3 python3-pip unzip); fi

id=unknown version=
if [ -r /etc/os-release ]; then
	id=$(. /etc/os-release && echo "${ID:-unknown}")
	version=$(. /etc/os-release && echo "${VERSION_ID:-}")
fi
case $id in
debian) # SwiftShader, the second software driver of the suite, comes with chromium
	if [ "$want" = tests ]; then packages+=(chromium); fi ;;
ubuntu)
	if [ "$want" = tests ]; then
		echo "packages: Ubuntu's chromium is a snap without SwiftShader's library; the suite skips that driver" >&2
	fi ;;
esac
if [ -n "$list" ]; then
	printf '%s\n' "${packages[@]}" "${extra[@]}"
	exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	echo "packages: '$id $version' has no apt; install what these Debian packages hold and build as usual:" >&2
	echo "packages: ${packages[*]}" >&2
	exit 0
fi

here=$(dirname "${BASH_SOURCE[0]}")
absent() { # which of the packages are not installed
	local p
	for p in "$@"; do
		[ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || echo "$p"
	done
}
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
apt_get() {
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

mapfile -t missing < <(absent "${packages[@]}")
if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
		echo "error: these packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2
		exit 1
	fi
	echo "packages: installing ${missing[*]}"
	if ! { apt_get update && apt_get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		hint=
		if [ "$id" = ubuntu ]; then hint="; they need the 'universe' component"; fi
		echo "error: apt-get could not install the packages above$hint" >&2
		exit 1
	fi
fi

# libraries of another system or processor
case $want in
windows | arm64) "$here/${want}_packages.sh" ;;
tests) # the suite goes on without them
	if [ ${#extra[@]} -eq 0 ]; then exit 0; fi
	mapfile -t missing < <(absent "${extra[@]}")
	if [ ${#missing[@]} -gt 0 ]; then
		echo "packages: installing ${missing[*]}"
		install() { apt_get install -y --no-install-recommends "${missing[@]}"; }
		if ! { install || { apt_get update && install; }; } >"$log" 2>&1; then
			echo "packages: $(tail -n 1 "$log"); the suite skips windows_syntax" >&2
		fi
	fi ;;
esac
