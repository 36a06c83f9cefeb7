#!/usr/bin/env bash
# Makes a zip and an installer of the Windows build: build-windows/kvrun-VERSION-windows-x86_64.zip and -setup.exe, with
# the programs, the library, its header, README and licences. The preset windows must be built; makensis (package nsis)
# makes the installer.
#   tools/windows_package.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-windows}
version=$(sed -n 's/^project(kvrun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=kvrun-$version-windows-x86_64
for file in kvrun.exe kvrun-probe.exe kvrun.dll lib/libkvrun.dll.a; do
	[ -e "$build/$file" ] || { echo "error: there is no $build/$file; build the preset windows first" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$name
mkdir -p "$stage/include" "$stage/lib" "$stage/licences"
for file in kvrun.exe kvrun-probe.exe kvrun.dll; do
	x86_64-w64-mingw32-strip -o "$stage/$file" "$build/$file"
done
cp "$build/lib/libkvrun.dll.a" "$stage/lib/"
cp engine/kvrun.h "$stage/include/"
for file in README.md LICENSE; do # Windows' Notepad opens .txt
	sed 's/$/\r/' "$file" >"$stage/${file%.md}.txt"
done
# of what is linked into the programs, and of the scripts in the server's page
for package in libboost-dev libcli11-dev libfmt-dev libjs-marked libpcre2-dev libtomlplusplus-dev libutf8proc-dev \
	libvulkan-dev libvulkan-volk-dev libxxhash-dev node-highlight.js nlohmann-json3-dev \
	libpng-dev libturbojpeg0-dev libwebp-dev libz-mingw-w64-dev \
	gcc-mingw-w64-base mingw-w64-common; do
	file=/usr/share/doc/$package/copyright
	if [ -e "$file" ]; then
		sed 's/$/\r/' "$file" >"$stage/licences/$package.txt"
	else
		echo "error: the licence of $package is not there ($file)" >&2
		exit 1
	fi
done

rm -f "$build/$name.zip" "$build/$name-setup.exe"
(cd "$work" && cmake -E tar cf "$name.zip" --format=zip "$name")
mv "$work/$name.zip" "$build/"
# What the uninstaller deletes: these files and no others.
(cd "$stage" && find . -type f -printf 'Delete "$INSTDIR\\%P"\n' &&
	find . -depth -mindepth 1 -type d -printf 'RMDir "$INSTDIR\\%P"\n') |
	sed 's|/|\\|g' >"$work/list.nsh"
makensis -V2 -DVERSION="$version" -DSTAGE="$stage" -DLIST="$work/list.nsh" \
	-DOUT="$(realpath "$build")/$name-setup.exe" tools/windows/kvrun.nsi
(cd "$build" && du -h --apparent-size "$name.zip" "$name-setup.exe")
