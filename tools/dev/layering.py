#!/usr/bin/env python3
"""Fails if an include points upwards: lower layers must not depend on higher ones.

engine/README.md shows the table: a layer may include itself and the layers listed for it. The first match counts.
"""
import os, re, sys

LAYERS = [  # path prefix, layer, layers it may include besides its own
    ("engine/core/json_reader.h", "json_reader.h", []),
    ("engine/core/system/", "system", []),
    ("engine/core/", "core", ["json_reader.h", "shared", "system"]),
    ("shaders/shared/", "shared", []),
    ("engine/kv_host/", "kv_host", ["core", "shared"]),
    ("backends/cpu/", "cpu", ["core", "system", "shared", "kv_host", "backend", "registry.h"]),
    ("backends/vulkan/", "vulkan", ["core", "system", "shared", "kv_host", "backend", "shaders", "registry.h"]),
    ("backends/cuda/", "cuda", ["core", "shared", "kv_host", "backend", "registry.h"]),
    ("backends/registry.h", "registry.h", ["core", "backend"]),
    ("backends/split_devices.", "registry.h", ["core", "backend"]),
    ("backends/read_rates.", "registry.h", ["core", "system", "backend"]),
    ("backends/registry.cpp", "registry", ["core", "system", "backend", "registry.h", "cpu", "cuda", "vulkan"]),
    ("backends/", "backend", ["core", "system", "shared", "kv_host"]),
    ("models/", "models", ["core", "system", "json_reader.h", "shared", "backend"]),
    ("engine/kv_device/", "kv_device", ["core", "system", "shared", "kv_host", "backend"]),
    ("engine/run/", "run", ["core", "system", "shared", "kv_host", "backend", "registry.h", "models", "kv_device"]),
    ("engine/kvrun.h", "kvrun.h", []),
    ("engine/", "api", ["kvrun.h", "core", "json_reader.h", "shared", "kv_host", "backend", "registry.h", "models",
                        "kv_device", "run"]),
    ("shaders/", "shaders", ["shared"]),
    ("tools/answer/", "answer", ["kvrun.h", "system", "top"]),  # the product through its C API, as the next ones
    ("tools/serve/", "serve", ["kvrun.h", "json_reader.h", "system", "answer", "top"]),
    ("tools/chat/", "chat", ["kvrun.h", "system", "answer", "top"]),
    ("tools/cmd_chat.cpp", "chat", ["kvrun.h", "system", "answer", "top"]),
    ("tools/desktop/", "desktop", ["kvrun.h", "answer", "top"]),
    ("tools/", "top", None),  # None: anything
    ("tests/", "top", None),
]
DEVICE_HEADERS = {"vulkan": re.compile(r"^(volk\.h|vulkan/)"),
                  "cuda": re.compile(r"^cuda")}  # visible to their backend only
# Headers of POSIX, Linux, the GNU C library or Windows: engine/core/system/ puts them behind headers of its own.
SYSTEM_HEADERS = re.compile(r"^(sys/|arpa/|linux/|netinet/|(csignal|dirent|dlfcn|execinfo|fcntl|grp|histedit|io|langinfo"
                            r"|netdb|poll|psapi|pthread|pwd|sched|shellapi|signal|spawn|syslog|termios|ucontext"
                            r"|unistd|windows|winsock2|winioctl|ws2tcpip)(\.h)?$)")
SYSTEM_ALLOWED = {  # files that Windows has another of, or not yet; tests run where they are written for
    "tools/chat/editor_libedit.cpp", "tools/chat/external_editor.cpp", "tools/doctor_posix.cpp",
    "tools/compare/job_posix.cpp", "tools/crash.cpp", "tools/desktop/engine.cpp",
    "tools/desktop/gui/main.cpp"
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)


def layer_of(path):
    for prefix, layer, may in LAYERS:
        if path.startswith(prefix):
            return layer, may
    return None, None


def problems(path, text, exists):
    """A line for every include of `path` that points upwards or to a missing file."""
    layer, may = layer_of(path)
    if layer is None:
        return [f"{path}: belongs to no layer of tools/dev/layering.py"]
    out = []
    anywhere = layer == "system" or path in SYSTEM_ALLOWED or path.startswith("tests/")
    for quote, name in INCLUDE.findall(text):
        if SYSTEM_HEADERS.match(name) and not anywhere:
            out.append(f"{path}: <{name}> is for engine/core/system/ only, which has the same for Windows")
        for backend, headers in DEVICE_HEADERS.items():
            if headers.match(name) and layer not in (backend, "top"):
                out.append(f"{path}: <{name}> is for backends/{backend} only")
        if quote == "<" and layer_of(name)[0] is None:
            continue
        near = os.path.normpath(os.path.join(os.path.dirname(path), name))
        target = next((p for p in (name, "shaders/" + name, near) if exists(p)), None)
        if target is None:
            if quote == '"' and not name.endswith(".inc"):  # generated files end in .inc
                out.append(f'{path}: "{name}" is no file of this project; includes are written from its root')
            continue
        other, _ = layer_of(target)
        if may is not None and other != layer and other not in may:
            out.append(f"{path} ({layer}) includes {target} ({other}), a layer it must not know")
    return out


def self_test():
    files = {"engine/core/a.h", "models/m.h", "backends/backend.h", "backends/cpu/c.h", "shaders/shared/kv_page.h"}
    bad = lambda path, text: problems(path, text, files.__contains__)
    assert bad("engine/core/a.h", '#include "models/m.h"')
    assert bad("engine/kv_host/x.cpp", '  #  include "backends/backend.h"')
    assert bad("backends/vulkan/v.cpp", '#include "backends/cpu/c.h"')
    assert bad("backends/ops.h", '#include "backends/cpu/c.h"')
    assert bad("engine/kv_device/c.cpp", '#include "models/m.h"')
    assert bad("models/m.cpp", '#include <vulkan/vulkan.h>')
    assert bad("backends/vulkan/v.cpp", '#include <cuda_runtime.h>')
    assert bad("backends/cuda/c.cu", '#include "backends/cpu/c.h"')
    assert bad("models/m.cpp", '#include "nowhere.h"')
    assert bad("elsewhere/x.cpp", "")
    assert bad("engine/core/a.cpp", "#include <unistd.h>") and bad("tools/t.cpp", "#include <windows.h>")
    assert not bad("engine/core/system/a.cpp", "#include <unistd.h>") and not bad("tests/t.cpp", "#include <fcntl.h>")
    assert not bad("engine/run/r.cpp", '#include "models/m.h"\n#include <vector>\n#include "engine/core/a.h"')
    assert not bad("backends/vulkan/v.cpp", '#include <volk.h>\n#include "shared/kv_page.h"')
    assert not bad("backends/cuda/c.cu", '#include <cuda_fp16.h>\n#include "shared/kv_page.h"')
    assert bad("tools/serve/s.cpp", '#include "engine/core/a.h"')
    assert bad("tools/chat/c.cpp", '#include "engine/core/a.h"')
    assert bad("tools/desktop/d.cpp", '#include "engine/core/a.h"')
    assert not bad("tools/t.cpp", '#include "backends/cpu/c.h"')


def main(root):
    self_test()
    found, looked = [], 0
    exists = lambda p: os.path.isfile(os.path.join(root, p))
    for top in ("engine", "shaders", "backends", "models", "tools", "tests"):
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                if not name.endswith((".h", ".hpp", ".cpp", ".c", ".cu", ".cuh")):
                    continue
                path = os.path.relpath(os.path.join(folder, name), root)
                looked += 1
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    found += problems(path, f.read(), exists)
    for line in found:
        print(line)
    print(f"layering: {looked} files, {len(found)} includes that point the wrong way")
    return 1 if found or not looked else 0


if __name__ == "__main__":
    sys.exit(
        main(sys.argv[1] if len(sys.argv) >
             1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")))
