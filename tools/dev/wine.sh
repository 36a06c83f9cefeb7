# Sourced by scripts that run Windows programs under Wine: $wine, $server, a folder $work that goes with the script, a
# display.
wine=$(command -v wine64 || command -v wine || echo /usr/lib/wine/wine64)
server=$(command -v "${wine%wine*}wineserver" || echo /usr/lib/wine/wineserver)
work=$(mktemp -d)
export WINEPREFIX=${KVRUN_WINE_PREFIX:-$work/prefix} WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml=
export KVRUN_CACHE_DIR=$work/linux-cache

# Without a display Wine has no Vulkan instance. A server that starts anew when its last client leaves (which is what
# Xvfb does without -noreset) has no display for the client that comes just then.
Xvfb -displayfd 3 -screen 0 640x480x24 -nolisten tcp -noreset 3>"$work/display" 2>/dev/null &
display=$!
cleanup() {
	"$server" -k 2>/dev/null
	kill "$display" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT
for _ in $(seq 600); do
	[ -s "$work/display" ] && break
	sleep 0.1
done
if [ ! -s "$work/display" ]; then
	echo "error: Xvfb has no display after 60 s; install package xvfb, or end other X servers" >&2
	exit 1
fi
export DISPLAY=:$(cat "$work/display")

# A new prefix is set up by programs in the background; until they end, Wine may find no display and so no Vulkan.
timeout 120 "$wine" wineboot --init >/dev/null 2>&1 || true
timeout 60 "$server" -w || true

