#!/usr/bin/env bash
# Builds kvrun for Windows and runs it under Wine, on the processor and on this machine's Vulkan driver (lavapipe), and
# compares its answers with those of the Linux build; tries the zip and the installer. Prints a table; the exit code is
# 1 where something differs. tools/dev/windows_tests.sh runs the test programs.
#   tools/dev/windows_check.sh [--no-build] [LINUX_PROGRAM]         LINUX_PROGRAM [build/kvrun]
# What works there and what Wine cannot show: tools/windows.md
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/environment.sh
windows=${KVRUN_WINDOWS_BUILD:-build-windows}
if [ "${1:-}" = --no-build ]; then
	shift
else
	tools/packages.sh windows && cmake --preset windows >/dev/null && cmake --build --preset windows || exit 1
fi
linux=${1:-build/kvrun}
for need in "$linux" "$windows/kvrun.exe"; do
	[ -x "$need" ] || [ -e "$need" ] || { echo "error: there is no $need; build it first" >&2; exit 2; }
done
source tools/dev/wine.sh

model=models/bundled/recall-4m-f16.gguf
text=models/bundled/record40.txt
bad=0
row() { printf '| %-34s | %-10s | %-9s | %s\n' "$@"; }
# Without speeds, the last column of tables, and without perplexity's decimals: the C libraries' exp() differ by a bit.
strip() { tr -d '\r' | grep -v '^#' | sed -E '/^\|/{s/\|[^|]*\|$/|/; s/([0-9]+)\.[0-9]+/\1/}' || true; }
# The same command on both systems, its standard output compared: name, device, standard input, arguments.
compare() {
	local name=$1 device=$2 input=$3 a b code start=$SECONDS
	shift 3
	a=$(KVRUN_DEVICE=$device "$linux" "$@" <"$input" 2>/dev/null | strip)
	b=$(KVRUN_DEVICE=$device KVRUN_CACHE_DIR=$work/wine-cache timeout 900 "$wine" "$windows/kvrun.exe" "$@" \
		<"$input" 2>"$work/err")
	code=$?
	b=$(strip <<<"$b")
	if [ $code -eq 0 ] && [ -n "$b" ] && [ "$a" = "$b" ]; then
		row "$name" "$device" same "$((SECONDS - start)) s"
	else
		bad=$((bad + 1))
		row "$name" "$device" DIFFERS "exit code $code: $(tail -n 1 "$work/err")"
		diff <(echo "$a") <(echo "$b") | head -n 6
	fi
}
answers() { # the same questions over HTTP: name, the program
	local out=$work/$1.serve pid port
	KVRUN_DEVICE=cpu KVRUN_CACHE_DIR=$work/$1-cache "${@:2}" serve "$model" --port 0 \
		--sessions "$work/$1-sessions" >"$out" 2>/dev/null &
	pid=$!
	for _ in $(seq 600); do
		port=$(tr -d '\r' <"$out" | sed -n 's/^listening on .*:\([0-9]*\)$/\1/p')
		[ -n "$port" ] && break
		sleep 0.1
	done
	python3 - "${port:-0}" "$text" <<-'PY'
		import json, sys, urllib.request
		port, text = sys.argv[1], open(sys.argv[2]).read().rstrip("\n")
		def ask(path, body):
		    url, headers = f"http://127.0.0.1:{port}{path}", {"Content-Type": "application/json"}
		    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
		    return json.load(urllib.request.urlopen(request, timeout=300))
		a = ask("/v1/completions", {"prompt": text, "max_tokens": 8, "temperature": 0, "session": "kept"})
		print(repr(a["choices"][0]["text"]), a["usage"]["prompt_tokens"], a["usage"]["completion_tokens"])
		print(ask("/tokenize", {"content": "Grüße, 世界"})["tokens"])
		kept = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/sessions"))
		print(json.dumps(kept).count('"kept"'), "kept")
	PY
	kill "$pid" 2>/dev/null
	wait "$pid" 2>/dev/null
}
row what device result ''
row ---------------------------------- ---------- --------- ---
"$wine" "$windows/kvrun.exe" devices 2>/dev/null | tr -d '\r' >"$work/devices"
if grep -qi llvmpipe "$work/devices"; then
	row 'kvrun devices' lavapipe found ''
else
	bad=$((bad + 1))
	row 'kvrun devices' lavapipe 'NOT FOUND' "$(head -n 2 "$work/devices" | tail -n 1)"
fi
printf 'Gr\303\274\303\237e, \344\270\226\347\225\214\n' >"$work/utf8"
compare tokenize cpu "$work/utf8" tokenize "$model"
compare 'plan kivi2' cpu /dev/null plan "$model" --kv kivi2 -c 2k --memory 1G
for device in cpu llvmpipe; do
	for kv in fp16 kivi2 turbo3/2; do
		compare "run $kv" $device /dev/null run "$model" -f "$text" -n 8 --temp 0 --kv $kv
	done
	compare 'chat, piped' $device "$work/utf8" chat "$model" --chat-template chatml -n 8 --temp 0
	compare 'eval' $device /dev/null eval "$model" -f "$text" --kv fp16,kivi2
done
cp "$model" "$work/模型 é.gguf"
compare 'a file with a UTF-8 name' cpu /dev/null run "$work/模型 é.gguf" -p 'line 1' -n 4 --temp 0
a=$(answers linux "$linux")
b=$(answers wine "$wine" "$windows/kvrun.exe")
if [ -n "$a" ] && [ "$a" = "$b" ]; then
	row serve cpu same ''
else
	bad=$((bad + 1))
	row serve cpu DIFFERS ''
	diff <(echo "$a") <(echo "$b")
fi

result() { # what, whether it is good, details, device
	if [ "$2" = 0 ]; then
		row "$1" "${4:-cpu}" works "$3"
	else
		bad=$((bad + 1))
		row "$1" "${4:-cpu}" FAILS "$3"
	fi
}
export KVRUN_CACHE_DIR=$work/wine-cache
# kvrun.dll from a program in C: on lavapipe the bits of Linux' libkvrun.so in logits and session files, and each
# continues with the other's file.
bits=$work/bits
library_bits() {
	mkdir "$bits" && cp "$windows/kvrun.dll" "$windows/kvrun-probe.exe" "$bits/" &&
		cc -std=c11 -O1 -I. -o "$bits/linux" tools/dev/session_bits.c -L"$(dirname "$linux")/lib" -lkvrun \
			-Wl,-rpath,"$(realpath "$(dirname "$linux")/lib")" -Wl,--allow-shlib-undefined &&
		x86_64-w64-mingw32-gcc-posix -std=c11 -O1 -I. -o "$bits/bits.exe" tools/dev/session_bits.c \
			"$windows/lib/libkvrun.dll.a" || return 1
	local kv
	for kv in fp16 kivi2 turbo3/2 zipcache; do
		KVRUN_CACHE_DIR=$work/linux-cache "$bits/linux" "$model" "$text" "$kv" llvmpipe "$bits/a" "$bits/a.kvs" &&
			"$wine" "$bits/bits.exe" "$model" "$text" "$kv" llvmpipe "$bits/b" "$bits/b.kvs" &&
			"$bits/linux" "$model" --restore "$bits/b.kvs" llvmpipe "$bits/c" &&
			"$wine" "$bits/bits.exe" "$model" --restore "$bits/a.kvs" llvmpipe "$bits/d" &&
			[ -s "$bits/a" ] && [ -s "$bits/c" ] && cmp "$bits/a" "$bits/b" && cmp "$bits/a.kvs" "$bits/b.kvs" &&
			cmp "$bits/c" "$bits/d" || return 1
	done
}
library_bits >"$work/library" 2>&1
result 'kvrun.dll from C, bits' $? "$(tail -n 1 "$work/library")" llvmpipe
# Files of a hub on this machine, cut in the middle once: the whole file comes, and kvrun list knows it.
PYTHONPATH=tests/hub python3 -B - "$wine" "$windows/kvrun.exe" "$work" >"$work/pull" 2>&1 <<-'PY'
	import os, pathlib, subprocess, sys
	from hub_server import Hub, Repo
	wine, program, work = sys.argv[1:]
	whole = pathlib.Path("tests/golden/tiny/llama_q4_0.gguf").read_bytes()
	repo = Repo({"Tiny-Q4_0.gguf": whole})
	repo.cut = [6000]
	hub = Hub({"User/Tiny-GGUF": repo})
	env = dict(os.environ, HF_ENDPOINT=hub.address, HF_HUB_CACHE=work + "/hub é", KVRUN_DEVICE="cpu")
	run = lambda *words: subprocess.run([wine, program, *words], env=env, capture_output=True, text=True, timeout=600)
	pulled = run("pull", "User/Tiny-GGUF")
	files = [p for p in pathlib.Path(work, "hub é").glob("models--*/snapshots/*/*.gguf")]
	assert pulled.returncode == 0 and len(files) == 1 and files[0].read_bytes() == whole, (pulled, files)
	assert any(r.startswith("bytes=6000-") for r in hub.transfers()), hub.transfers()
	listed = run("list", "--json")
	assert "User/Tiny-GGUF:Q4_0" in listed.stdout, listed
	repo.hashes["Tiny-Q4_0.gguf"] = "0" * 64
	env["HF_HUB_CACHE"] = work + "/hub2"
	refused = run("pull", "User/Tiny-GGUF")
	assert refused.returncode == 3 and "another content" in refused.stderr, refused
	print(f"{len(whole)} bytes in {len(hub.transfers())} transfers")
PY
result 'pull, list' $? "$(tail -n 1 "$work/pull")"
"$wine" "$windows/kvrun.exe" doctor >"$work/doctor" 2>&1
code=$?
grep -q 'vulkan-1.dll, Vulkan 1\.[3-9]' "$work/doctor" && grep -q 'TdrDelay' "$work/doctor" && [ $code -eq 0 ]
result doctor $? "$(tail -n 1 "$work/doctor" | tr -d '\r')"
"$wine" "$windows/kvrun.exe" compare -m "$model" --device cpu --stages tokens --quick --anonymous -o "$work/compared" \
	>"$work/compare" 2>&1
code=$?
[ $code -eq 0 ] && [ -s "$work/compared/report.html" ] && [ -s "$work/compared/parts/tokens.cpu.json" ]
result 'compare, a process per job' $? "exit code $code"

# The installer: kvrun runs from its folder and by PATH; afterwards nothing of it is left.
in_registry() { "$wine" reg query "$@" 2>/dev/null | tr -d '\r'; }
if setup=$(tools/windows_package.sh "$windows" 2>"$work/err"); then
	sizes=$(tr '\t' ' ' <<<"$setup" | paste -sd, -)
	"$wine" "$(ls "$windows"/kvrun-*-setup.exe)" /S 2>/dev/null
	place=$(in_registry 'HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\kvrun' /v InstallLocation |
		sed -n 's/.*REG_SZ *//p')
	folder=$WINEPREFIX/dosdevices/c:${place#C:}
	folder=${folder//\\//}
	menu=$(find "$WINEPREFIX" -name 'kvrun command line.lnk' | wc -l)
	said=$("$wine" cmd /c "kvrun tokenize $model" <"$work/utf8" 2>"$work/err" | strip)
	[ -n "$said" ] && [ "$said" = "$(KVRUN_DEVICE=cpu "$linux" tokenize "$model" <"$work/utf8" | strip)" ] &&
		[ "$menu" = 1 ] && in_registry 'HKCU\Environment' /v Path | grep -qF "$place"
	result 'installed, by PATH' $? "$sizes"
	"$wine" "$place\\uninstall.exe" /S 2>/dev/null
	for _ in $(seq 100); do
		[ -e "$folder" ] || break
		sleep 0.1
	done
	[ -n "$place" ] && [ ! -e "$folder" ] && ! in_registry 'HKCU\Environment' /v Path | grep -qF kvrun &&
		! in_registry 'HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\kvrun' | grep -q kvrun &&
		[ -z "$(find "$WINEPREFIX" -iname '*kvrun*' | head -n 1)" ]
	result 'removed' $? "$(find "$WINEPREFIX" -iname '*kvrun*' | head -n 1)"
else
	result 'zip, installer' 1 "$(tail -n 1 "$work/err")"
fi
echo
if [ $bad -eq 0 ]; then echo "windows_check: all the same"; else echo "windows_check: $bad differ"; fi
[ $bad -eq 0 ]
