#!/usr/bin/env bash
# Builds kvrun for Windows and runs it under Wine, on the processor and on this machine's Vulkan driver (lavapipe), and
# compares its answers with those of the Linux build. Prints a table; the exit code is 1 where something differs.
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
wine=$(command -v wine64 || command -v wine || echo /usr/lib/wine/wine64)
work=$(mktemp -d)
export WINEPREFIX=${KVRUN_WINE_PREFIX:-$work/prefix} WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml=
export KVRUN_CACHE_DIR=$work/linux-cache

# Without a display Wine has no Vulkan instance.
Xvfb -displayfd 3 -screen 0 640x480x24 -nolisten tcp 3>"$work/display" 2>/dev/null &
display=$!
cleanup() {
	"${wine%wine*}wineserver" -k 2>/dev/null || /usr/lib/wine/wineserver -k 2>/dev/null
	kill "$display" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT
for _ in $(seq 50); do
	[ -s "$work/display" ] && break
	sleep 0.1
done
export DISPLAY=:$(cat "$work/display")

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
echo
if [ $bad -eq 0 ]; then echo "windows_check: all the same"; else echo "windows_check: $bad differ"; fi
[ $bad -eq 0 ]
