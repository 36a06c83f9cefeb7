#!/usr/bin/env python3
"""Writes tiny random vision encoders of each projector type, with the rows that HF transformers makes of an image.

make_vision_models.py OUT_DIR [NAME...]
Needs transformers, torch (the CPU is enough), numpy, gguf and pillow from PyPI; downloads no model.

Files per encoder, beside the model golden/tiny/llama.gguf (gemma3: gemma3.gguf), whose residual stream has DIM
channels: NAME.gguf (F32, architecture clip), NAME.pixels.npy (height, width, 3) u8, a tile; NAME.rows.npy (rows, DIM)
f32, what the encoder makes of it. mlp.logits.npy (T, vocab) f32: of the prompt BEFORE, the rows, AFTER;
gemma3.logits.npy, and each other one: of BEFORE, the rows, the first two of AFTER, the rows, AFTER. qwen4exp.logits.npy
is of the encoder qwen35. The tests allow 1e-3 of the largest value; the script fails if a trait of an encoder changes
the rows by less than five times that.
GELU is its approximation with tanh everywhere, as in llama.cpp; transformers takes the exact one where a published
config says "gelu".

text.gguf is the same model with control tokens around images in its vocabulary, for make_vision_peer.py; text256.gguf
another one with a residual stream of 256 channels.
resize.FILTER.npy (n, m, 3) u8: the test image of SIZE with another size, by Pillow, which takes the horizontal
direction first for these; before version 13 it always did. tile.png, tile.webp, tile.jpg: mlp.pixels.npy as a file,
the first two without loss.
"""
import os
import sys
import zlib

import numpy as np
import torch
import transformers as hf
from PIL import Image

import make_tiny_models as tiny
import vision_encoders_clip as clip
import vision_encoders_free as free
import vision_encoders_minicpm as minicpm
import vision_encoders_new as new
import vision_encoders_qwen as qwen
from vision_encoder import AFTER, BEFORE, DEVIATION, MEAN, TOLERANCE, difference

SLICE_TOKENS = ["<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"]  # of MiniCPM-V
SIZE = 37, 23  # width and height of the image that is resized
ENCODERS = [*clip.ENCODERS, *qwen.ENCODERS, *free.ENCODERS, *new.ENCODERS, *minicpm.ENCODERS]


def pixel_values(pixels):
    x = (torch.from_numpy(pixels.astype(np.float32)) / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    return x.permute(2, 0, 1)[None].float()


def text_model():
    """That of golden/tiny/llama.gguf."""
    return tiny.build(tiny.models()["llama"][1], zlib.crc32(b"llama"))


def write_text_model(path):
    tokens, scores, types = tiny.vocabulary()
    names = ["<fake_token_around_image>", "<global-img>", "[IMG_END]", "<img>", "</img>"]
    names += [f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)]
    for at, (name, kind) in enumerate([(n, 3) for n in names] + [("\n\n", 4)], tiny.VOCAB - 15):
        tokens[at], scores[at], types[at] = name.encode(), 0.0, kind
    for at, name in zip([262, *range(tiny.VOCAB - 5, tiny.VOCAB)], SLICE_TOKENS):
        tokens[at], scores[at], types[at] = name.encode(), 0.0, 3
    write_text(path, tokens, scores, types, text_model())


def wide_text_model():
    """For encoders whose rows have heads of 128 channels."""
    config = hf.LlamaConfig(**tiny.base(hidden_size=256, intermediate_size=32, num_hidden_layers=1,
                                        num_attention_heads=4, num_key_value_heads=1, head_dim=16))
    return tiny.build(config, zlib.crc32(b"text256"))


def write_wide_text_model(path):
    tokens, scores, types = tiny.vocabulary()
    for at, name in enumerate(SLICE_TOKENS, tiny.VOCAB - 15):
        tokens[at], scores[at], types[at] = name.encode(), 0.0, 3
    write_text(path, tokens, scores, types, wide_text_model())


def write_text(path, tokens, scores, types, model):
    newline = tokens.index(b"<0x0A>")  # as a token that is found in any text, as in vocabularies of byte-level BPE
    tokens[newline], types[newline] = b"\n", 4
    original, tiny.vocabulary = tiny.vocabulary, lambda: (tokens, scores, types)
    tiny.write_gguf(path, "llama", model)
    tiny.vocabulary = original


def test_image(width, height):
    """The same as in tests/device/test_images.cpp."""
    y, x, c = np.indices((height, width, 3))
    return (x * 7 + y * 13 + c * 50 + x * y % 31 * 3 & 255).astype(np.uint8)


def write_resized(out):
    image = Image.fromarray(test_image(*SIZE))
    for name, size, how in [("bilinear", (20, 50), Image.BILINEAR), ("bicubic", (15, 61), Image.BICUBIC),
                            ("lanczos", (16, 16), Image.LANCZOS)]:
        np.save(f"{out}/resize.{name}.npy", np.asarray(image.resize(size, how)))


def prompt_logits(rows):
    """Of golden/tiny/llama.gguf."""
    model = text_model()
    with torch.no_grad():
        embed = model.get_input_embeddings()
        parts = [embed(torch.tensor(BEFORE)), rows, embed(torch.tensor(AFTER))]
        return model(inputs_embeds=torch.cat(parts)[None], use_cache=False).logits[0].float().numpy()


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    out, wanted = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    if not wanted:
        write_text_model(f"{out}/text.gguf")
        write_wide_text_model(f"{out}/text256.gguf")
        write_resized(out)
    for kind in ENCODERS:
        if wanted and kind.name not in wanted:
            continue
        config, mistakes = kind.configs()
        encoder = kind(config)
        pixels = np.random.default_rng(7).integers(0, 256, (*kind.size, 3)).astype(np.uint8)
        with torch.no_grad():
            rows = encoder.rows(pixel_values(pixels))
            changes = {}
            for what, mistake in mistakes.items():
                wrong = kind.configs()[0]
                mistake(wrong)
                changes[what] = difference(kind(wrong).rows(pixel_values(pixels)), rows)
                if changes[what] < 5 * TOLERANCE:
                    sys.exit(f"{kind.name}: {what} changes the rows by {changes[what]:.1e} only")
            flipped = encoder.rows(pixel_values(np.ascontiguousarray(pixels.transpose(1, 0, 2))))
            if flipped.shape == rows.shape and difference(flipped, rows) < 5 * TOLERANCE:
                sys.exit(f"{kind.name}: rows and columns of the image may be exchanged")
        if not kind.of:
            encoder.file(f"{out}/{kind.name}.gguf")
            np.save(f"{out}/{kind.name}.pixels.npy", pixels)
            np.save(f"{out}/{kind.name}.rows.npy", rows.numpy())
        if kind is clip.Llava:
            image = Image.fromarray(pixels)
            image.save(f"{out}/tile.png")
            image.save(f"{out}/tile.webp", lossless=True)
            image.save(f"{out}/tile.jpg", quality=95, subsampling=0)
        if kind is clip.Llava:
            np.save(f"{out}/mlp.logits.npy", prompt_logits(rows))
        if kind.with_logits:
            np.save(f"{out}/{kind.name}.logits.npy", encoder.logits(pixel_values(pixels)))
        size = f"as {kind.of.name}" if kind.of else f"{os.path.getsize(f'{out}/{kind.name}.gguf')} bytes"
        print(f"{kind.name}: {tuple(rows.shape)} rows, {size}"
              + "".join(f", {w} {c:.1e}" for w, c in changes.items()))


if __name__ == "__main__":
    main()
