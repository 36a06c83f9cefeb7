#!/usr/bin/env python3
"""Time that an image takes in kvrun and in llama.cpp, on the same driver: writes rows of tools/results/peer_images.csv.

image_time.py KVRUN [PEER]
PEER is a folder with Debian and llama.cpp (../shared/peer/setup.sh; needs root for chroot). Needs gguf, numpy, pillow.
The encoder has LAYERS layers of InternViT-300M (1024 channels, 16 heads, 4096 in the MLP; random weights, f16) and
reads 1024 patches of 448 x 448 pixels; the model is golden/vision/text.gguf, which costs nothing beside it. kvrun runs
on KVRUN_DEVICE [llvmpipe], llama.cpp on lavapipe through Vulkan and on its CPU code. Times are seconds of a prompt with
the image, the least of ROUNDS; the first one, which compiles kernels, does not count.
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import gguf
import numpy as np
from PIL import Image

from peer_server import PeerServer

LAYERS, ROUNDS, PORT = 4, 3, 8098
DIM, HIDDEN, HEADS, PATCH, SIZE, OUT = 1024, 4096, 16, 14, 448, 32
TEXT = os.path.join(os.path.dirname(__file__), "../../tests/golden/vision/text.gguf")


def write_encoder(path):
    w, rng = gguf.GGUFWriter(path, "clip"), np.random.default_rng(0)
    w.add_bool("clip.has_vision_encoder", True)
    w.add_bool("clip.use_gelu", True)
    w.add_string("clip.projector_type", "internvl")
    for key, value in {"image_size": SIZE, "patch_size": PATCH, "embedding_length": DIM, "feed_forward_length": HIDDEN,
                       "block_count": LAYERS, "projection_dim": OUT, "attention.head_count": HEADS,
                       "projector.scale_factor": 2}.items():
        w.add_uint32("clip.vision." + key, value)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    w.add_array("clip.vision.image_mean", [0.5] * 3)
    w.add_array("clip.vision.image_std", [0.25] * 3)

    def matrix(name, *shape, kind=np.float16):
        w.add_tensor(name + ".weight", (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(kind))
        w.add_tensor(name + ".bias", np.zeros(shape[0], np.float32))

    def norm(name, n):
        w.add_tensor(name + ".weight", np.ones(n, np.float32))
        w.add_tensor(name + ".bias", np.zeros(n, np.float32))
    matrix("v.patch_embd", DIM, 3, PATCH, PATCH, kind=np.float32)
    w.add_tensor("v.class_embd", np.zeros(DIM, np.float32))
    w.add_tensor("v.position_embd.weight", (0.02 * rng.standard_normal((1025, DIM))).astype(np.float32))
    for layer in range(LAYERS):
        at = f"v.blk.{layer}."
        for name in "ln1", "ln2":
            norm(at + name, DIM)
            w.add_tensor(f"{at}ls{name[-1]}.weight", np.full(DIM, 0.1, np.float32))
        for name in "attn_q", "attn_k", "attn_v", "attn_out":
            matrix(at + name, DIM, DIM)
        matrix(at + "ffn_up", HIDDEN, DIM)
        matrix(at + "ffn_down", DIM, HIDDEN)
    norm("mm.model.mlp.0", 4 * DIM)
    matrix("mm.model.mlp.1", OUT, 4 * DIM)
    matrix("mm.model.mlp.3", OUT, OUT)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_text(path):
    """The model with a context that the image's 256 rows fit into."""
    shutil.copy(TEXT, path)
    reader = gguf.GGUFReader(path, "r+")
    field = reader.fields["llama.context_length"]
    field.parts[field.data[0]][0] = 4096
    reader.data.flush()


def kvrun(program, folder):
    times = []
    for _ in range(ROUNDS + 1):
        run = [program, "run", "-m", f"{folder}/text.gguf", "--mmproj", f"{folder}/encoder.gguf", "--image",
               f"{folder}/image.png", "-p", "x", "-n", "1", "-c", "1024", "--json", "--device",
               os.environ.get("KVRUN_DEVICE", "llvmpipe")]
        out = json.loads(subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
        times.append(out["timings"]["prefill_s"])
    return min(times[1:])


def peer(root, folder, *options):
    inside = folder.removeprefix(root)
    options = ["-m", f"{inside}/text.gguf", "--mmproj", f"{inside}/encoder.gguf", "-c", "1024", "-ngl", "99", *options]
    driver = "VK_LOADER_DRIVERS_SELECT=*lvp*", "GGML_VK_VISIBLE_DEVICES=0", "XDG_RUNTIME_DIR=/tmp"
    with open(f"{folder}/image.png", "rb") as f:
        image = base64.b64encode(f.read()).decode()
    times = []
    with PeerServer(root, options, PORT, driver) as server:
        marker = server.image_marker()
        for i in range(ROUNDS + 1):
            began = time.monotonic()
            server.ask("/completion", {"prompt": {"prompt_string": marker + "x" * (i + 1), "multimodal_data": [image]},
                                       "n_predict": 1, "cache_prompt": False})
            times.append(time.monotonic() - began)
    return min(times[1:])


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip())
    root = os.path.realpath(sys.argv[2]) if len(sys.argv) == 3 else ""
    with tempfile.TemporaryDirectory(dir=(root + "/tmp") if root else None) as folder:
        write_encoder(f"{folder}/encoder.gguf")
        write_text(f"{folder}/text.gguf")
        pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
        Image.fromarray(pixels).save(f"{folder}/image.png")
        print(f"kvrun,{kvrun(sys.argv[1], folder):.2f}")
        if root:
            print(f"llama.cpp Vulkan,{peer(root, folder):.2f}")
            print(f"llama.cpp CPU,{peer(root, folder, '--no-mmproj-offload'):.2f}")


if __name__ == "__main__":
    main()
