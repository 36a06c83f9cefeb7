#!/usr/bin/env bash
# kvrun's two commands on another release of Debian or Ubuntu, in a chroot: tools/try.sh, and with a TESTS-REGEX also
# tools/test.sh -R TESTS-REGEX, which builds everything. A second run of a SUITE builds only what changed.
#   tools/dev/distro_check.sh SUITE [TESTS-REGEX]         SUITE: trixie, forky, noble, ...; as root
# Needs debootstrap and rsync. Packages come from the place of this system's own; Ubuntu's must be at the same host.
# KVRUN_DISTRO_ROOT: folder of the chroot [build-distro/SUITE]. KVRUN_DISTRO_TRUST=1: also takes package lists that are
# signed with a key this system does not have (package ubuntu-keyring or debian-archive-keyring), or that have expired.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tools/apt_places.sh
usage="usage: tools/dev/distro_check.sh SUITE [TESTS-REGEX]"
if [ $# -lt 1 ] || [ $# -gt 2 ]; then echo "$usage" >&2; exit 2; fi
suite=$1
if [ "$(id -u)" != 0 ]; then echo "error: a chroot needs root; run this with sudo" >&2; exit 2; fi
for tool in debootstrap rsync; do
	command -v $tool >/dev/null || { echo "error: there is no $tool; install the package $tool" >&2; exit 2; }
done
root=$(realpath -m "${KVRUN_DISTRO_ROOT:-build-distro/$suite}")

make_chroot() {
	local places uri kind components script unsigned=()
	places=$(mktemp -d)
	apt_places "$places" '' ''
	uri=$(cat "$places"/* | grep -oE 'https?://[^ ]+/(debian|ubuntu)/?( |$)' | head -n 1 | tr -d ' ') || true
	rm -r "$places"
	if [ -z "$uri" ]; then echo "error: this system's apt names no place of Debian or Ubuntu" >&2; exit 1; fi
	case $suite in
	bookworm | trixie | forky | sid | testing | stable | unstable) kind=debian components=main script=sid ;;
	*) kind=ubuntu components=main,universe script=gutsy ;; # that script is for all of Ubuntu's releases
	esac
	if [ -n "${KVRUN_DISTRO_TRUST:-}" ]; then unsigned=(--no-check-gpg); fi
	uri=${uri%/}
	debootstrap "${unsigned[@]}" --variant=minbase --components="$components" --include=ca-certificates "$suite" \
		"$root" "${uri%/*}/$kind" "/usr/share/debootstrap/scripts/$script"
	if [ -n "${KVRUN_DISTRO_TRUST:-}" ]; then
		echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/99kvrun-expired"
	fi
	touch "$root/complete"
}
if [ ! -e "$root/complete" ]; then make_chroot; fi

# What git knows, changes that are not committed included. Only files that differ get new times: ninja builds these.
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$sources"
mkdir -p "$root"/srv/{kvrun,shared} "$root/dev/shm"
rsync -rlp --checksum --delete --exclude /build "$sources/" "$root/srv/kvrun/"
rm -rf "$sources"
for file in resolv.conf hosts pip.conf ssl/certs/ca-certificates.crt; do # how this machine reaches the network
	if [ -r "/etc/$file" ]; then cp -L "/etc/$file" "$root/etc/$file"; fi
done

commands="tools/try.sh"
if [ $# -eq 2 ]; then commands+=" && tools/test.sh -R '${2//\'/}'"; fi
keep=() # of the environment
for name in http_proxy https_proxy no_proxy KVRUN_TRY_FETCH KVRUN_PRESET KVRUN_TEST_EVERY CMAKE_BUILD_PARALLEL_LEVEL; do
	if [ -n "${!name:-}" ]; then keep+=("$name=${!name}"); fi
done
shared=$(realpath -m "${KVRUN_SHARED:-../shared}")
# mounts of this one process, which end with it
exec unshare --mount --pid --fork bash -c '
	set -e
	root=$1 shared=$2
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmpfs "$root/dev/shm"
	if [ -d "$shared" ]; then mount --bind "$shared" "$root/srv/shared"; fi
	shift 2
	exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"' \
	distro_check "$root" "$shared" "${keep[@]}" bash -c "cd /srv/kvrun && $commands"
