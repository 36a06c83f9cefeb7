#!/bin/sh
# Installs kvrun into a folder, moves that folder, and builds and runs applications with it: C99 by pkg-config (shared
# and static), C++ by find_package, C++ by add_subdirectory, Python by ctypes.
#
# Also looks at paths of installation, without building.
#
# Usage: consumers.sh BUILD_FOLDER SOURCE_FOLDER [MODE...]     modes: installed subdirectory paths by default; whole
set -eu
build=$1 source=$2
shift 2
[ $# -gt 0 ] || set -- installed subdirectory paths
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$source/models/bundled/recall-4m-f16.gguf
here=$source/tests/api/consumers
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
say() { echo "consumers: $*"; }
quietly() { # runs a command, whose output is shown if it fails
	"$@" >"$work/log" 2>&1 || { tail -n 60 "$work/log"; say "failed: $*"; exit 1; }
}

check_output() { # compares the example's output with the program's own answer
	want=$("$build/kvrun" run -m "$model" -p "Once upon a time" -n 16 --temp 0 --kv kivi2 --device cpu 2>/dev/null)
	got=$("$1" "$model" "Once upon a time" cpu)
	[ "$got" = "$want" ] || { say "$1 says '$got', kvrun says '$want'"; exit 1; }
}

for mode in "$@"; do case $mode in
installed)
	quietly cmake --install "$build" --prefix "$work/first"
	mv "$work/first" "$work/moved"
	lib=$(dirname "$(find "$work/moved" -name libkvrun.so)")
	export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib"
	flags="-std=c99 -pedantic -Wall -Wextra -Wstrict-prototypes -Werror"
	# shellcheck disable=SC2046,SC2086  # words of flags
	cc $flags "$here/generate.c" -o "$work/shared" $(pkg-config --cflags --libs kvrun)
	check_output "$work/shared"
	say "C99 by pkg-config: ok"
	# shellcheck disable=SC2046,SC2086
	cc $flags "$here/generate.c" -o "$work/static" $(pkg-config --cflags kvrun) "$lib/libkvrun.a" \
		$(pkg-config --static --libs kvrun | sed 's/-lkvrun//')
	LD_LIBRARY_PATH='' check_output "$work/static"
	say "C99 by pkg-config, static: ok"
	# Names of C++, of compilers and of kvrun; of others there are none, which may be an application's own.
	foreign=$(nm --defined-only "$lib/libkvrun.a" |
		awk '$2 ~ /^[A-Z]$/ && $3 !~ /^(kvrun_|_Z|__|DW[.]ref[.])/ { print $3 }')
	[ -z "$foreign" ] || { say "libkvrun.a defines $(echo "$foreign" | head)"; exit 1; }
	# shellcheck disable=SC2046,SC2086
	cc $flags "$here/vulkan.c" -o "$work/vulkan" $(pkg-config --cflags kvrun) "$lib/libkvrun.a" -lvulkan \
		$(pkg-config --static --libs kvrun | sed 's/-lkvrun//')
	LD_LIBRARY_PATH='' "$work/vulkan"
	say "an application of Vulkan, static: ok"
	quietly cmake -S "$here" -B "$work/by-package" -DCMAKE_PREFIX_PATH="$work/moved"
	quietly cmake --build "$work/by-package"
	"$work/by-package/list" | grep -q '^cpu: '
	check_output "$work/by-package/generate"
	say "C++ by find_package: ok"
	quietly cmake -S "$here" -B "$work/by-static" -DCMAKE_PREFIX_PATH="$work/moved" -DKVRUN_STATIC=ON
	quietly cmake --build "$work/by-static"
	LD_LIBRARY_PATH='' check_output "$work/by-static/generate"
	say "C++ by find_package, static: ok"
	# without the static library, as packages of distributions are; a project of an old CMake
	rm "$lib/libkvrun.a"
	quietly cmake -S "$here" -B "$work/by-shared" -DCMAKE_PREFIX_PATH="$work/moved"
	mkdir "$work/old"
	printf '%s\n' 'cmake_minimum_required(VERSION 3.0)' 'project(old CXX)' 'find_package(kvrun 0.1 REQUIRED)' \
		>"$work/old/CMakeLists.txt"
	quietly cmake -S "$work/old" -B "$work/old/build" -DCMAKE_PREFIX_PATH="$work/moved" \
		-DCMAKE_POLICY_VERSION_MINIMUM=3.5 # of CMake 4, which knows no older projects
	say "find_package without the static library: ok"
	python3 "$here/use.py" "$lib/libkvrun.so.1" "$model" | grep -qx ok
	say "Python by ctypes: ok"
	if [ -x "$work/moved/bin/kvrun" ]; then
		LD_LIBRARY_PATH='' "$work/moved/bin/kvrun" devices >/dev/null
		say "the installed program: ok"
	fi
	# of who keeps own files to oneself
	(umask 077 && quietly cpack -G TGZ --config "$build/CPackConfig.cmake" -B "$work/pack")
	closed=$(tar tvf "$work/pack"/*.tar.gz | awk '!/^(-r.....r|drwxr.xr.x|l)/')
	[ -z "$closed" ] || { say "failed: in a package others may not read $closed"; exit 1; }
	say "a package: ok"
	;;
subdirectory | whole)
	# Compiles the lowest library again and looks for the inputs of everything else; `whole` compiles it all: without
	# optimisation, in batches of files and with the shaders of the other build, in a tenth of the time. Each file alone
	# is what the presets dev and debug compile, and tools/dev/nightly.sh mutate. Shaders are compiled the same wherever
	# the source lies, unless a script means the outermost project.
	if (cd "$source" && grep -rnE 'CMAKE_(SOURCE|BINARY)_DIR' \
		--include=CMakeLists.txt --include='*.cmake' CMakeLists.txt backends engine models shaders tools); then
		say "failed: these lines name folders of the outermost project"
		exit 1
	fi
	consumer=$work/by-subdirectory
	quietly cmake -S "$here" -B "$consumer" -G "$(cached CMAKE_GENERATOR)" -DKVRUN_SOURCE="$source" \
		-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=64 \
		-DKVRUN_SHADERS_OF="$build"
	if [ "$mode" = whole ]; then
		quietly cmake --build "$consumer" -j2 --target list generate
		"$consumer/list" | grep -q '^cpu: '
	else
		quietly cmake --build "$consumer" --target list generate -- -n
		quietly cmake --build "$consumer" -j2 --target kvrun_core
	fi
	say "C++ by add_subdirectory: ok"
	;;
paths)
	# Nothing is built: folders of installation other than the usual ones, and a build folder with a space.
	other="$work/a build"
	quietly cmake -S "$source" -B "$other" -G "$(cached CMAKE_GENERATOR)" -DKVRUN_BUILD_TESTS=OFF -DKVRUN_CUDA=OFF \
		-DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/opt/prefix -DCMAKE_INSTALL_LIBDIR=/opt/libraries \
		-DCMAKE_INSTALL_LIBEXECDIR=lib/kvrun -DSKBUILD=ON -DSKBUILD_METADATA_DIR=/metadata
	grep -q 'KVRUN_PROBE_FOLDER=[^ ]*\.\./lib/kvrun[\\"]' "$other/compile_commands.json" ||
		{ say "failed: kvrun looks for kvrun-probe elsewhere"; exit 1; }
	got=$(PKG_CONFIG_PATH=$other pkg-config --cflags --libs kvrun | xargs)
	[ "$got" = "-I/opt/prefix/include -L/opt/libraries -lkvrun" ] || { say "failed: pkg-config says $got"; exit 1; }
	if grep NEW_RPATH "$other/tools/desktop/cmake_install.cmake" | grep -v '"/opt/libraries"'; then
		say "failed: kvrun-desktop looks for the library there"
		exit 1
	fi
	wheel=$other/tools/python/cmake_install.cmake
	if [ -e "$wheel" ] && grep -q _native "$wheel" && ! grep -q '"/metadata/licenses".*LICENSE' "$wheel"; then
		say "failed: a wheel has no licence"
		exit 1
	fi
	# Every file that is looked for is there, so installation begins at once.
	sed -n 's/.*foreach(file IN ITEMS "\(.*\)").*/\1/p' "$other/cmake_install.cmake" | sed 's/" "/\n/g' >"$work/files"
	[ "$(wc -l <"$work/files")" -ge 4 ] || { say "failed: files of '$other' are not quoted"; exit 1; }
	while read -r file; do mkdir -p "$(dirname "$file")" && : >"$file"; done <"$work/files"
	DESTDIR=$work/root timeout 60 cmake --install "$other" >"$work/log" 2>&1 || true # the files are empty
	if grep -q 'is missing' "$work/log"; then
		say "failed: installation from '$other' builds: $(head -n 1 "$work/log")"
		exit 1
	fi
	say "other paths: ok"
	;;
*) echo "unknown mode $mode" >&2; exit 2 ;;
esac; done
