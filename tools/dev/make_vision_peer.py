#!/usr/bin/env python3
"""What llama.cpp makes of prompts with images: writes tests/golden/vision/peer.json.

make_vision_peer.py PEER
PEER is a folder with Debian and llama.cpp (../shared/peer/setup.sh makes one; needs root for chroot). Needs numpy,
pillow and gguf. For each encoder of tests/golden/vision and each size of an image: the number of tokens of the prompt
(image, then "abc"), and the likeliest tokens behind it with their log probabilities, of llama-server on the CPU with an
f32 cache. mlp and internvl have no probabilities: llama.cpp 0.7.0 puts their class token behind the patches, but keeps
its position in front, so each patch has the position of its neighbour; kvrun's rows are those of transformers. Images
for Qwen's encoders keep their shape: llama.cpp adds a border where Qwen's own processor stretches. Those for resampler
do, too, and have no numbers. kimik25 is left out: llama.cpp leaves out a part of the text before an image; without it,
the probabilities were the same.
"""
import base64
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
from PIL import Image

from peer_server import PeerServer

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/vision"
SIZES = {"mlp": [(16, 16), (40, 17), (9, 30)], "idefics3": [(16, 16), (50, 20), (20, 50), (300, 10), (37, 37)],
         "pixtral": [(16, 24), (40, 40), (100, 30), (7, 5), (30, 200)],
         "internvl": [(16, 16), (12, 9), (40, 20), (20, 50), (100, 30), (33, 33)],
         "qwen2vl_merger": [(40, 16), (64, 24), (16, 8), (8, 64)],
         "qwen2.5vl_merger": [(168, 140), (112, 112), (84, 280)],
         "qwen3vl_merger": [(40, 16), (64, 24), (16, 8), (8, 64)],
         "lfm2": [(64, 64), (80, 64), (40, 144)], "glm4v": [(40, 16), (64, 24), (16, 32)],
         "glm_ocr": [(40, 16), (64, 24), (16, 32)], "paddleocr": [(40, 16), (64, 24), (16, 32)],
         "hunyuanvl": [(40, 16), (64, 24), (16, 32), (40, 8)],
         "dots_ocr": [(40, 16), (64, 24), (16, 32)], "exaone4_5": [(40, 16), (64, 24), (24, 40)],
         "glm5v": [(40, 16), (64, 24), (16, 32)], "phi4": [(40, 12), (64, 24), (16, 32)],
         "resampler": [(16, 16), (33, 33), (100, 30)],
         "minicpmv4_6": [(16, 16), (9, 14), (40, 20), (20, 50), (33, 33), (100, 30)]}
# As in tests/device/test_images.cpp: the text model of golden/tiny, its new architecture, axes of positions.
WITH_LINES = {"qwen2vl_merger": ("qwen2", "qwen2vl", [2, 1, 1, 0]),
              "qwen2.5vl_merger": ("qwen2", "qwen2vl", [2, 1, 1, 0]),
              "qwen3vl_merger": ("qwen3", "qwen3vl", [6, 5, 5, 0]),
              "glm4v": ("glm4", "glm4", [2, 1, 1, 0]), "glm_ocr": ("glm4", "glm4", [2, 1, 1, 0]),
              "paddleocr": ("ernie4_5", "paddleocr", [2, 1, 1, 0]),
              # llama.cpp gives all text the image number 0, so no channels turn by it.
              "hunyuanvl": ("hunyuan_vl", "hunyuan_vl", [5, 1, 2, 0])}
CONTROLS = {285: "<|vision_start|>", 286: "<|vision_end|>"}
PADDLE_CONTROLS = {285: "<|IMAGE_START|>", 286: "<|IMAGE_END|>"}
GLM_CONTROLS = {285: "<|begin_of_image|>", 286: "<|end_of_image|>"}
HUNYUAN_CONTROLS = {285: "<｜hy_place▁holder▁no▁100｜>", 286: "<｜hy_place▁holder▁no▁101｜>"}
CLASS_TOKEN = "mlp", "internvl"
WIDE = ("resampler",)
PORT, LIKELIEST = 8099, 10
# The token that is sampled, which changes no probabilities: its text is whole characters, and probabilities of tokens
# whose text is not are left out.
WHOLE = 261


def test_image(width, height):
    """The same as in make_vision_models.py."""
    y, x, c = np.indices((height, width, 3))
    return (x * 7 + y * 13 + c * 50 + x * y % 31 * 3 & 255).astype(np.uint8)


def write_text_model(path, text, arch, axes):
    """A model of golden/tiny as one of another architecture, with control tokens."""
    reader = gguf.GGUFReader(GOLDEN.parent / "tiny" / f"{text}.gguf")
    old = reader.fields["general.architecture"].contents()
    controls = {"glm4": GLM_CONTROLS, "paddleocr": PADDLE_CONTROLS, "hunyuan_vl": HUNYUAN_CONTROLS}.get(arch, CONTROLS)
    w = gguf.GGUFWriter(path, arch)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", f"{old}.rope.dimension_sections"):
            continue
        value, kind = field.contents(), field.types[0]
        if key == "tokenizer.ggml.tokens":
            value = [controls.get(i, t) for i, t in enumerate(value)]
        if key == "tokenizer.ggml.token_type":
            value = [3 if i in controls else t for i, t in enumerate(value)]
        key = key.replace(old + ".", arch + ".") if key.startswith(old + ".") else key
        w.add_key_value(key, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    w.add_array(f"{arch}.rope.dimension_sections", axes)
    if arch == "qwen3vl":
        w.add_uint32("qwen3vl.n_deepstack_layers", 1)
    for t in reader.tensors:
        data = t.data
        if arch == "glm4" and ("attn_q." in t.name or "attn_k." in t.name):  # pairs (i, i + 4) of heads of 16
            heads = data.reshape(-1, 16, *data.shape[1:])
            data = np.concatenate([heads[:, 0:8:2], heads[:, 1:8:2], heads[:, 8:]], axis=1).reshape(data.shape)
        w.add_tensor(t.name, data, raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def answers(peer, folder, name):
    model = f"{folder}/text256.gguf" if name in WIDE else f"{folder}/text.gguf"
    if name in WITH_LINES:
        model = f"{folder}/text-of-{name}.gguf"
        write_text_model(peer + model, *WITH_LINES[name])
    options = ["-m", model, "--mmproj", f"{folder}/{name}.gguf", "--no-warmup", "-c", "1024", "-ngl", "0",
               "--no-mmproj-offload", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
    with PeerServer(peer, options, PORT) as server:
        marker = server.image_marker()
        for width, height in SIZES[name]:
            png = io.BytesIO()
            Image.fromarray(test_image(width, height)).save(png, "png")
            prompt = {"prompt_string": marker + "abc", "multimodal_data": [base64.b64encode(png.getvalue()).decode()]}
            r = server.ask("/completion", {"prompt": prompt, "n_predict": 2, "ignore_eos": True, "temperature": 0,
                                           "n_probs": LIKELIEST, "logit_bias": [[WHOLE, 1000]],
                                           "cache_prompt": False})
            row = {"width": width, "height": height, "prompt": r["tokens_evaluated"], "tokens": [], "logprobs": []}
            for t in r["completion_probabilities"][0]["top_logprobs"] if name not in CLASS_TOKEN else []:
                row["tokens"].append(t["id"])
                row["logprobs"].append(round(t["logprob"], 4))
            yield row


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    peer = sys.argv[1]
    folder = Path(peer) / "tmp/kvrun-vision"
    shutil.copytree(GOLDEN, folder, dirs_exist_ok=True)
    try:
        out = {name: list(answers(peer, "/tmp/kvrun-vision", name)) for name in SIZES}
    finally:
        shutil.rmtree(folder)
    version = subprocess.run(["dpkg-query", f"--admindir={peer}/var/lib/dpkg", "-W", "-f=${Version}",
                              "llama.cpp-tools"], stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = [f"  {json.dumps(n)}: [\n" + ",\n".join(f"    {json.dumps(r)}" for r in rows) + "\n  ]"
             for n, rows in out.items()]
    (GOLDEN / "peer.json").write_text("{\n" + ",\n".join([f'  "version": {json.dumps(version)}'] + lines) + "\n}\n")


if __name__ == "__main__":
    main()
