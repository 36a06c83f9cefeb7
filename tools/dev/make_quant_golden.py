#!/usr/bin/env python3
"""Writes expectations for block formats: raw blocks with floats from gguf, and tiny quantised models with their logits.

make_quant_golden.py OUT_DIR [quant | MODEL...]
make_quant_golden.py OUT_DIR ggml PROGRAM
OUT_DIR is tests/golden: the script fills quant/ and tiny/, or quant/ alone, or writes models of tiny/. quant/ needs
the packages numpy and gguf; tiny/ needs those of make_tiny_models.py, which must lie in the same folder.

quant/TYPE.bin holds raw blocks, quant/TYPE.npy the f32 gguf.quants.dequantize gives for them. tiny/llama_TYPE.* are
models whose matrices have that type; their logits come from transformers on the dequantised weights.
Types without a definition in python's gguf (FROM_GGML) are written by the second form: PROGRAM is peer_blocks.c, built
and run where GGML is, as `PROGRAM TYPE_NUMBER < blocks > floats`.
"""
import os
import shlex
import subprocess
import sys

import gguf
import numpy as np

QUANT_ONLY = len(sys.argv) == 3 and sys.argv[2] == "quant" or len(sys.argv) == 4 and sys.argv[2] == "ggml"
if not QUANT_ONLY:
    import torch
    import transformers as hf

    import make_tiny_models as tiny

Q = gguf.GGMLQuantizationType
# Positions of a block's f16 scales. New types go to the end, because blocks are drawn in this order.
SCALES_AT = {Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.F16: [], Q.BF16: [],
             Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.IQ4_NL: [0],
             Q.IQ4_XS: [0], Q.MXFP4: [], Q.TQ1_0: [52], Q.TQ2_0: [64], Q.IQ3_S: [0], Q.IQ3_XXS: [0], Q.IQ2_S: [0],
             Q.IQ2_XS: [0], Q.IQ2_XXS: [0], Q.IQ1_M: [], Q.IQ1_S: [0], Q.NVFP4: []}
# name -> (type number, elements of a block, elements of GGML's block); all begin with an f16 scale. A block of Q2_0_128
# is two of GGML's with the same scale.
FROM_GGML = {"Q1_0": (41, 128, 128), "Q2_0": (42, 64, 64), "Q2_0_128": (42, 128, 64)}
# Zeros, smallest and largest subnormal, smallest normal, largest half, with both signs.
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00]


def random_blocks(qtype, rng):
    """(blocks, bytes per block) of random bytes, including every special scale, without infinities and NaN."""
    if qtype in (Q.F16, Q.BF16):
        a = rng.integers(0, 1 << 16, 1024).astype(np.uint16)
        exponent = 0x7C00 if qtype == Q.F16 else 0x7F80
        a[(a & exponent) == exponent] &= 0x80FF
        a[:len(SPECIAL)] = SPECIAL
        return a.view(np.uint8).reshape(1, -1)
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    n = 48 if elements == 32 else 128 if qtype == Q.NVFP4 else 24
    b = rng.integers(0, 256, (n, size)).astype(np.uint8)
    for which, at in enumerate(SCALES_AT[qtype]):
        scales = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
        for i, s in enumerate(SPECIAL):
            scales[i] = s if which == 0 else SPECIAL[(5 * i + 3) % len(SPECIAL)]
        b[:, at:at + 2] = scales.view(np.uint8).reshape(n, 2)
    if qtype == Q.MXFP4:  # larger exponents would give infinities
        b[:, 0] = rng.integers(0, 253, n)
        b[:4, 0] = [0, 1, 2, 252]
    if qtype == Q.NVFP4:  # every scale, among them both NaN codes, twice: in two places of a block
        b[:64, :4] = np.arange(256).reshape(64, 4)
        b[64:, :4] = np.arange(256).reshape(64, 4)[:, ::-1]
    if qtype == Q.IQ1_M:  # every second of the last 8 bytes has a nibble of d
        scales = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
        scales[:len(SPECIAL)] = SPECIAL
        for i in range(4):
            b[:, 49 + 2 * i] = b[:, 49 + 2 * i] & 15 | (scales >> 4 * i & 15) << 4
    return b


def write_blocks(out):
    rng = np.random.default_rng(11)
    for qtype in SCALES_AT:
        b = random_blocks(qtype, rng)
        values = gguf.quants.dequantize(b.reshape(-1) if b.shape[0] == 1 else b, qtype).reshape(-1).astype(np.float32)
        assert np.isfinite(values).all()
        b.tofile(f"{out}/{qtype.name}.bin")
        np.save(f"{out}/{qtype.name}.npy", values)
        print(f"{qtype.name}: {b.size} bytes, {values.size} values")


def write_ggml_blocks(out, program):
    for name, (number, elements, part) in FROM_GGML.items():
        rng, bits, n = np.random.default_rng(number + elements), 1 if name == "Q1_0" else 2, 48
        codes = rng.integers(0, 256, (n, elements * bits // 8)).astype(np.uint8)
        scales = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
        scales[:len(SPECIAL)] = SPECIAL
        halves = scales.view(np.uint8).reshape(n, 2)
        parts = codes.reshape(n * elements // part, -1)
        of_ggml = np.concatenate([halves.repeat(elements // part, axis=0), parts], axis=1)
        run = subprocess.run([*shlex.split(program), str(number)], input=of_ggml.tobytes(), stdout=subprocess.PIPE,
                             check=True)
        values = np.frombuffer(run.stdout, np.float32)
        assert values.size == n * elements and np.isfinite(values).all()
        np.concatenate([halves, codes], axis=1).tofile(f"{out}/{name}.bin")
        np.save(f"{out}/{name}.npy", values)
        print(f"{name}: {n} blocks, {values.size} values")


# ---- models

def pack_k_scales(sc, m):
    """12 bytes from 8 six-bit scales and 8 six-bit minimums."""
    low = np.concatenate([sc[..., :4] | (sc[..., 4:] >> 4 << 6), m[..., :4] | (m[..., 4:] >> 4 << 6)], axis=-1)
    return np.concatenate([low, (sc[..., 4:] & 15) | ((m[..., 4:] & 15) << 4)], axis=-1).astype(np.uint8)


def random_k_matrix(qtype, rows, cols, std, rng):
    """Random valid blocks of a K type, with mean 0 and about this deviation; gguf has no quantiser for them."""
    size = gguf.GGML_QUANT_SIZES[qtype][1]
    b = rng.integers(0, 256, (rows, cols // 256, size)).astype(np.uint8)
    half = lambda x: np.asarray(x, np.float16).view(np.uint8).reshape(*np.shape(x), 2)
    spread = 1.0 + 0.2 * rng.random((rows, cols // 256))
    if qtype == Q.Q6_K:
        scale = rng.integers(20, 64, (rows, cols // 256, 16)) * rng.choice([-1, 1], (rows, cols // 256, 16))
        b[..., 192:208] = scale.astype(np.int8).view(np.uint8)
        b[..., 208:210] = half(spread * std / (18.5 * 43))
        return b.reshape(rows, -1)
    middle = 7.5 if qtype == Q.Q4_K else 15.5
    sc = rng.integers(20, 60, (rows, cols // 256, 8))
    m = np.clip(sc + rng.integers(-2, 3, sc.shape), 0, 63)
    d = spread * std / (0.6 * middle * 41)
    b[..., 0:2], b[..., 2:4], b[..., 4:16] = half(d), half(d * middle), pack_k_scales(sc, m)
    return b.reshape(rows, -1)


def nvfp4_matrix(a):
    """(blocks, factor of the matrix) nearest to these elements; gguf has no quantiser for them."""
    factor = np.float32(np.abs(a).max() / (6 * 448))
    x = a.reshape(*a.shape[:-1], -1, 16) / factor
    scale = gguf.quants.NVFP4.fp32_to_ue4m3(np.abs(x).max(axis=-1) / 6)
    half = gguf.quants.NVFP4.ue4m3_to_fp32(scale)[..., None, None]
    codes = np.abs(x[..., None] - half * np.array(gguf.quants.NVFP4.kvalues)).argmin(axis=-1).astype(np.uint8)
    quads = (codes[..., :8] | codes[..., 8:] << 4).reshape(*a.shape[:-1], -1, 32)
    blocks = np.concatenate([scale.astype(np.uint8).reshape(*a.shape[:-1], -1, 4), quads], axis=-1)
    return blocks.reshape(*a.shape[:-1], -1), factor


def quantised(qtype, a, rng):
    if qtype in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
        return random_k_matrix(qtype, *a.shape, float(a.std()), rng)
    return gguf.quants.quantize(np.ascontiguousarray(a), qtype)


def large(**more):
    """Rows of 256 elements, as K types need; a shared kv head and few rows keep the file small."""
    return tiny.base(vocab_size=262, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=8,
                     num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=tiny.rope(), **more)


def small(**more):
    return tiny.base(hidden_size=64, intermediate_size=96, rope_parameters=tiny.rope(), **more)


F = gguf.LlamaFileType
# name -> (GGUF architecture, HF config, file type, type of each matrix: part of the name -> type, "" for the others)
def models():
    return {
        "llama_f16": ("llama", hf.LlamaConfig(**small()), F.MOSTLY_F16, {"": Q.F16}),
        "llama_bf16": ("llama", hf.LlamaConfig(**small()), F.MOSTLY_BF16, {"": Q.BF16}),
        "llama_q8_0": ("llama", hf.LlamaConfig(**small()), F.MOSTLY_Q8_0, {"": Q.Q8_0}),
        "llama_q4_0": ("llama", hf.LlamaConfig(**small()), F.MOSTLY_Q4_0, {"": Q.Q4_0}),
        "phi3_q4_0": ("phi3", hf.Phi3Config(**small()), F.MOSTLY_Q4_0, {"output": Q.Q8_0, "": Q.Q4_0}),
        "qwen2_q8_0": ("qwen2", hf.Qwen2Config(**small()), F.MOSTLY_Q8_0, {"": Q.Q8_0}),
        "llama_q4_k": ("llama", hf.LlamaConfig(**large()), F.MOSTLY_Q4_K_M,
                       {"token_embd": Q.Q6_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "": Q.Q4_K}),
        "llama_q5_k": ("llama", hf.LlamaConfig(**large()), F.MOSTLY_Q5_K_S, {"": Q.Q5_K}),
        "llama_q6_k": ("llama", hf.LlamaConfig(**large()), F.MOSTLY_Q6_K,
                       {"attn_output": Q.Q4_0, "ffn_gate": Q.Q4_0, "ffn_up": Q.Q4_0, "": Q.Q6_K}),
        # Each matrix has a factor of its own, in a tensor of its own.
        "llama_q_nvfp4": ("llama", hf.LlamaConfig(**large()), F.MOSTLY_NVFP4, {"token_embd": Q.Q8_0, "": Q.NVFP4}),
    }


def write_model(out, name, arch, config, file_type, types):
    seed = sum(name.encode())
    # A tied output favours the input token by the size of its embedding, which must not hide what the layers add.
    embedding = 0.2 if config.hidden_size < 256 else 0.05
    model, rng, blocks, factors = tiny.build(config, seed, embedding), np.random.default_rng(seed), {}, {}
    parameters = dict(model.named_parameters())
    for tensor, a, heads, hf_name in list(tiny.tensors(arch, model)):
        if a.ndim != 2:
            continue
        qtype = next(t for part, t in types.items() if part in tensor)
        raw, factor = nvfp4_matrix(a) if qtype == Q.NVFP4 else (quantised(qtype, a, rng), None)
        values = gguf.quants.dequantize(raw, qtype).astype(np.float32).reshape(a.shape)
        if factor is not None:
            values *= factor
            factors[tensor.replace(".weight", ".scale")] = np.array([factor])
        if heads:  # back to HF's order of rows
            values = values.reshape(heads, -1, 2, a.shape[1]).swapaxes(1, 2).reshape(a.shape)
        with torch.no_grad():
            parameters[hf_name].copy_(torch.from_numpy(np.ascontiguousarray(values)))
        blocks[tensor] = (raw, qtype)
    tokens = tiny.prompt(tiny.PROMPT, seed + 1) % config.vocab_size
    expected = tiny.logits(model, tokens)
    rounding = tiny.check_rounding(name, model, tokens, expected)
    tiny.write_gguf(f"{out}/{name}.gguf", arch, model, file_type, blocks, factors)
    np.save(f"{out}/{name}.tokens.npy", tokens)
    np.save(f"{out}/{name}.logits.npy", expected)
    tiny.check_sizes([f"{out}/{name}.gguf", f"{out}/{name}.logits.npy"])
    print(f"{name}: f16 KV moves the logits by {rounding:.1e}; {os.path.getsize(f'{out}/{name}.gguf')} bytes")


def main():
    wanted = sys.argv[2:]
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    for folder in ("quant", "tiny"):
        os.makedirs(f"{sys.argv[1]}/{folder}", exist_ok=True)
    if wanted[:1] == ["ggml"]:
        return write_ggml_blocks(f"{sys.argv[1]}/quant", wanted[1])
    if QUANT_ONLY or not wanted:
        write_blocks(f"{sys.argv[1]}/quant")
    if QUANT_ONLY:
        return
    torch.set_num_threads(1)
    for name, spec in models().items():
        if wanted and name not in wanted:
            continue
        write_model(f"{sys.argv[1]}/tiny", name, *spec)


if __name__ == "__main__":
    main()
