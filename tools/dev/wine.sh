# Sourced by scripts that run Windows programs under Wine: $wine, a folder $work that goes with the script, a display.
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

