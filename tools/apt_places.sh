# apt_places FOLDER LIST SOURCES: writes the places that this system's own packages come from into FOLDER, as parts of
# apt's sources: lines of .list files changed by the sed script LIST, .sources files by SOURCES. Read by other scripts.
apt_places() {
	local file
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
		[ -r "$file" ] || continue
		case $file in
		*.list) { grep -E '^deb .*(debian|ubuntu)' "$file" || true; } | sed "$2" >"$1/$(basename "$file")" ;;
		*.sources)
			if grep -qE '^URIs:.*(debian|ubuntu)' "$file"; then sed "$3" "$file" >"$1/$(basename "$file")"; fi ;;
		esac
	done
}
