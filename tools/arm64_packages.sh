#!/usr/bin/env bash
# Fetches the arm64 packages that kvrun for 64-bit Arm is built from and runs with, and unpacks them into a folder. The
# places are those of this system's own packages; apt checks the hashes. Nothing is installed: apt has its own state
# here, and knows only arm64. tools/packages.sh arm64 calls it. A complete folder is left as it is.
#   tools/arm64_packages.sh [FOLDER [SUITE PACKAGE...]]     SUITE: another release of Debian, with packages of it
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/apt_places.sh
root=${1:-$PWD/build-arm64-sysroot}
packages=(libc6-dev libstdc++-12-dev
	libfmt-dev nlohmann-json3-dev libcli11-dev doctest-dev libpcre2-dev libutf8proc-dev libxxhash-dev libboost-dev
	libboost-context-dev libedit-dev libcurl4-openssl-dev libssl-dev libtomlplusplus-dev libpng-dev libturbojpeg0-dev
	libwebp-dev libsndfile1-dev libsamplerate0-dev
	libvulkan-dev libvulkan-volk-dev libvulkan1 mesa-vulkan-drivers)
gcc=$(aarch64-linux-gnu-g++ -dumpversion)
packages=("${packages[@]/libstdc++-12-dev/libstdc++-${gcc%%.*}-dev}")
release=
if [ $# -gt 1 ]; then
	release="s/$(. /etc/os-release && echo "${VERSION_CODENAME:?}")/$2/; "
	packages=("${@:3}")
fi
stamp=$root/complete-3 # another number for other packages
if [ -e "$stamp" ]; then exit 0; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{parts,lists/partial,archives/partial}
: >"$work/status"
# Ubuntu has its arm64 packages at another place.
ports='s#https\?://[a-z.]*ubuntu.com/ubuntu/\?#http://ports.ubuntu.com/ubuntu-ports/#'
apt_places "$work/parts" "$release$ports; s/arch=[a-z0-9,]*//" "$release$ports; /^Architectures:/d"
apt_get() {
	apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
		-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" -o Dir::State="$work" \
		-o Dir::State::status="$work/status" -o Dir::State::lists="$work/lists" -o Dir::Cache="$work" \
		-o Dir::Cache::archives="$work/archives" -o Debug::NoLocking=1 -o Acquire::Retries=3 "$@"
}
echo "packages: unpacking arm64 packages into $root"
log=$work/log
if ! { apt_get update && apt_get install --no-install-recommends --download-only "${packages[@]}"; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "error: apt-get could not fetch the arm64 packages ${packages[*]}" >&2
	exit 1
fi
for folder in bin lib sbin; do # Debian's packages may name either place
	mkdir -p "$root/usr/$folder"
	ln -snf "usr/$folder" "$root/$folder"
done
for deb in "$work"/archives/*.deb; do
	dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root"
done
rm -rf "$root"/usr/share/{doc,man,locale,info,lintian}
find "$root" -type l -lname '/*' | while read -r link; do # from this machine's root to the folder's
	ln -snfr "$root$(readlink "$link")" "$link"
done
touch "$stamp"
