# Sourced by scripts that measure a program: choose_driver, random_model.
# shellcheck shell=bash disable=SC2154 # root and python are the script's
me=$(basename "$0" .sh)
# shellcheck source=tools/environment.sh
. "$root/tools/environment.sh"

# choose_driver MANIFEST: for the Vulkan loader, from now on. Empty: lavapipe; any: leaves the environment as it is.
choose_driver() {
	driver=$1
	if [ -z "$driver" ]; then
		for driver in /usr/share/vulkan/icd.d/lvp_icd*.json; do break; done
		[ -e "$driver" ] || { echo "$me: no lavapipe here; install mesa-vulkan-drivers or give --driver" >&2; exit 4; }
	fi
	[ "$driver" = any ] || export VK_DRIVER_FILES="$driver" VK_ICD_FILENAMES="$driver" # the second for older loaders
}

check_program() { # FILE
	[ -x "$1" ] || { echo "$me: $1 is not there; build it or give --kvrun" >&2; exit 2; }
}

# random_model FOLDER NAME: makes FOLDER/NAME.gguf unless it is there, through a temporary name.
random_model() {
	[ ! -e "$1/$2.gguf" ] || return 0
	local maker=${KVRUN_SHARED:-$root/../shared}/peer/random_model.py shape
	[ -e "$maker" ] || { echo "$me: $maker is missing; set KVRUN_SHARED or put $2.gguf into $1" >&2; exit 3; }
	case $2 in
	small) shape=(576 30 9 3 64 1536 8192 32768 Q8_0) ;;
	mid) shape=(1536 16 12 4 128 6144 32768 32768 Q8_0) ;;
	deep) shape=(1024 4 16 8 128 2048 4096 131072 F16) ;;
	esac
	echo "$me: making $1/$2.gguf" >&2
	mkdir -p "$1"
	"$python" "$maker" "$1/$2.part" "${shape[@]}"
	mv "$1/$2.part" "$1/$2.gguf"
}
