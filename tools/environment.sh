# Sourced by scripts: sets variables that drivers and builds expect and that a bare shell may lack.
if [ -z "${XDG_RUNTIME_DIR:-}" ]; then # Mesa complains without one
	export XDG_RUNTIME_DIR="${TMPDIR:-/tmp}/kvrun-runtime-$(id -u)"
	mkdir -p -m 700 "$XDG_RUNTIME_DIR"
fi
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
