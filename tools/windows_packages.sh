#!/usr/bin/env bash
# Builds the libraries that kvrun for Windows needs into a folder: fmt, PCRE2, utf8proc, xxHash, and those that read
# images (libpng, libjpeg-turbo, libwebp), from Debian's source packages, whose hashes apt checks; header-only
# libraries are copied from this system's packages. tools/packages.sh windows calls it. A complete folder is left as it
# is.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/apt_places.sh
root=$PWD
prefix=${1:-$root/build-windows-packages}
sources=(fmtlib pcre2 utf8proc xxhash libpng1.6 libjpeg-turbo libwebp)
stamp=$prefix/complete-2 # another number for another way to build them
if [ -e "$stamp" ]; then exit 0; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$prefix/include" "$work/lists/partial" "$work/parts"

# Source packages of the places that this system's binary packages come from; apt's own settings stay as they are.
apt_places "$work/parts" 's/^deb /deb-src /' 's/^Types:.*/Types: deb-src/'
apt_get() {
	apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::lists="$work/lists" \
		-o APT::Sandbox::User=root -o Acquire::Retries=3 "$@"
}
echo "packages: building ${sources[*]} for Windows into $prefix"
log=$work/log
if ! { apt_get update && cd "$work" && apt_get source --download-only --tar-only "${sources[@]}"; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "error: apt-get could not fetch the source packages ${sources[*]}" >&2
	exit 1
fi

build() { # source package, CMake options
	local name=$1 from
	shift
	mkdir "$work/$name"
	tar -xf "$(ls "$work/${name}"_*.orig.tar.* | grep -v '\.asc$')" -C "$work/$name" --strip-components=1
	from=$work/$name
	if [ "$name" = xxhash ]; then from=$work/$name/cmake_unofficial; fi
	if ! {
		cmake -S "$from" -B "$work/$name-build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$root/tools/windows.cmake" \
			-DKVRUN_WINDOWS_PACKAGES="$prefix" -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_BUILD_TYPE=Release \
			-DBUILD_SHARED_LIBS=OFF "$@" && cmake --build "$work/$name-build" && cmake --install "$work/$name-build"
	} >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		echo "error: $name could not be built for Windows" >&2
		exit 1
	fi
}
build fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
build pcre2 -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_JIT=ON
build utf8proc
build xxhash -DXXHASH_BUILD_XXHSUM=OFF
build libpng1.6 -DPNG_SHARED=OFF -DPNG_TESTS=OFF -DPNG_BUILD_ZLIB=OFF
build libjpeg-turbo -DENABLE_SHARED=OFF -DWITH_SIMD=OFF -DWITH_JAVA=OFF -DCMAKE_SYSTEM_PROCESSOR=x86_64
build libwebp -DWEBP_BUILD_ANIM_UTILS=OFF -DWEBP_BUILD_CWEBP=OFF -DWEBP_BUILD_DWEBP=OFF -DWEBP_BUILD_GIF2WEBP=OFF \
	-DWEBP_BUILD_IMG2WEBP=OFF -DWEBP_BUILD_VWEBP=OFF -DWEBP_BUILD_WEBPINFO=OFF -DWEBP_BUILD_WEBPMUX=OFF \
	-DWEBP_BUILD_EXTRAS=OFF -DWEBP_BUILD_LIBWEBPMUX=OFF

cp "/usr/x86_64-w64-mingw32/lib/libz.a" "$prefix/lib/" # of libz-mingw-w64-dev, without the DLL's import library

# pkg-config's files of static libraries: what is compiled against them must know that they are static.
module() { # name, libraries, flags
	mkdir -p "$prefix/lib/pkgconfig"
	printf 'Name: %s\nDescription: built for Windows\nVersion: 0\nLibs: -L%s/lib %s\nCflags: -I%s/include %s\n' \
		"$1" "$prefix" "$2" "$prefix" "$3" >"$prefix/lib/pkgconfig/$1.pc"
}
module libpcre2-8 -lpcre2-8 -DPCRE2_STATIC
module libutf8proc -lutf8proc -DUTF8PROC_STATIC
module libxxhash -lxxhash ''
module libpng '-lpng16 -lz' ''
module libturbojpeg -lturbojpeg ''
sharpyuv= # of newer versions of libwebp
if [ -e "$prefix/lib/libsharpyuv.a" ]; then sharpyuv=-lsharpyuv; fi
module libwebp "-lwebp $sharpyuv" ''

# Headers, and what CMake reads of them: only these, for the system's other headers are of another system.
for headers in boost nlohmann CLI doctest toml++ vulkan vk_video volk.h volk.c; do
	cp -rf "/usr/include/$headers" "$prefix/include/"
done
for package in /usr/share/cmake/nlohmann_json /usr/share/cmake/CLI11 /usr/lib/cmake/doctest; do
	mkdir -p "$prefix/${package#/usr/}"
	cp -rf "$package/." "$prefix/${package#/usr/}"
done
touch "$stamp"
