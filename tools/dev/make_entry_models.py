#!/usr/bin/env python3
"""Writes tiny random checkpoints of DeepSeek V4, with the logits of HF transformers: files as of make_family_models.py.

make_entry_models.py [-v] OUT_DIR [NAME...]
Needs transformers, torch (the CPU is enough), numpy and gguf from PyPI; downloads no model.

Names of tensors and keys are those of llama.cpp's converter. Of several prompts the one is taken whose entries of
blocks are chosen by the clearest scores. The script fails if a trait of the family hardly changes the logits; -v prints
by how much.
"""
import copy
import os
import sys
import zlib

import gguf
import numpy as np
import torch
import transformers as hf
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

from make_tiny_models import TOLERANCE, logits, relative, vocabulary

VOCAB = 260  # control tokens and bytes
LAYERS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}


def config(kinds, top_k, **changes):
    names = dict(zip("wsl", LAYERS))
    return hf.DeepseekV4Config(**dict(
        vocab_size=VOCAB, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=len(kinds), num_attention_heads=4,
        head_dim=32, q_lora_rank=24, qk_rope_head_dim=16, num_experts_per_tok=2, n_routed_experts=4,
        max_position_embeddings=512, layer_types=[names[k] for k in kinds], hc_sinkhorn_iters=4, hc_eps=1e-4,
        mlp_layer_types=["hash_moe"] + ["moe"] * (len(kinds) - 1), swiglu_limit=1.0, sliding_window=24, o_groups=2,
        o_lora_rank=16, index_n_heads=2, index_head_dim=64, index_topk=top_k, rms_norm_eps=1e-3,
        rope_parameters=dict(YARN), bos_token_id=1, eos_token_id=2, pad_token_id=0) | changes)


def models():  # name -> (config, tokens of the prompt, smallest gap between scores)
    return {"deepseek4": (config("wsl", 64), 280, 5e-4), "deepseek4_sparse": (config("sw", 4), 40, 3e-3)}


def build(c, seed):
    """A model with random weights that are exact in F16."""
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(c, attn_implementation="eager").float().eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in sorted(list(model.named_parameters()) + list(model.named_buffers())):
            if "inv_freq" in name:
                continue
            if name.endswith("tid2eid"):
                rows = [rng.permutation(c.n_routed_experts)[:c.num_experts_per_tok] for _ in range(c.vocab_size)]
                p.copy_(torch.from_numpy(np.stack(rows)))
                continue
            if "norm" in name:
                a = 1.0 + 0.3 * rng.standard_normal(p.shape)
            elif name.endswith(("base", "bias", "sinks")):
                a = 0.5 * rng.standard_normal(p.shape)
            elif name.endswith("scale"):
                a = 1.0 + 0.2 * rng.standard_normal(p.shape)
            elif "embed_tokens" in name:
                a = 0.3 * rng.standard_normal(p.shape)
            else:
                size = 1.0 if "lm_head" in name else 0.35 if "o_a_proj" in name or "down_proj" in name else 0.7
                a = size * rng.standard_normal(p.shape) / np.sqrt(p.shape[-1])
            p.copy_(torch.from_numpy(a.astype(np.float16).astype(np.float32)))
    return model


NAMES = {
    "model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output",
    "model.hc_head.hc_fn": "output_hc_fn", "model.hc_head.hc_base": "output_hc_base",
    "model.hc_head.hc_scale": "output_hc_scale",
    "input_layernorm.weight": "attn_norm", "post_attention_layernorm.weight": "ffn_norm",
    "self_attn.q_a_proj.weight": "attn_q_a", "self_attn.q_a_norm.weight": "attn_q_a_norm",
    "self_attn.q_b_proj.weight": "attn_q_b", "self_attn.kv_proj.weight": "attn_kv",
    "self_attn.kv_norm.weight": "attn_kv_a_norm", "self_attn.sinks": "attn_sinks",
    "self_attn.o_a_proj.weight": "attn_output_a", "self_attn.o_b_proj.weight": "attn_output_b",
    "self_attn.compressor.kv_proj.weight": "attn_compressor_kv",
    "self_attn.compressor.gate_proj.weight": "attn_compressor_gate",
    "self_attn.compressor.position_bias": "attn_compressor_ape",
    "self_attn.compressor.kv_norm.weight": "attn_compressor_norm",
    "self_attn.compressor.indexer.kv_proj.weight": "indexer_compressor_kv",
    "self_attn.compressor.indexer.gate_proj.weight": "indexer_compressor_gate",
    "self_attn.compressor.indexer.position_bias": "indexer_compressor_ape",
    "self_attn.compressor.indexer.kv_norm.weight": "indexer_compressor_norm",
    "self_attn.compressor.indexer.q_b_proj.weight": "indexer.attn_q_b",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "indexer.proj",
    "mlp.gate.weight": "ffn_gate_inp", "mlp.gate.tid2eid": "ffn_gate_tid2eid",
    "mlp.experts.down_proj": "ffn_down_exps", "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp", "mlp.shared_experts.down_proj.weight": "ffn_down_shexp",
    **{f"{part}_hc.{what}": f"hc_{part}_{what}" for part in ("attn", "ffn") for what in ("fn", "base", "scale")}}


def tensors(model):
    """(GGUF name, array) of every weight."""
    for name, p in model.state_dict().items():
        if "inv_freq" in name:
            continue
        a, block = p.detach().numpy(), ""
        if name.startswith("model.layers."):
            _, _, layer, name = name.split(".", 3)
            block = f"blk.{layer}."
        if name == "mlp.gate.e_score_correction_bias":
            yield f"{block}exp_probs_b.bias", a
        elif name == "mlp.experts.gate_up_proj":
            gate, up = np.split(a, 2, axis=1)
            yield f"{block}ffn_gate_exps.weight", gate
            yield f"{block}ffn_up_exps.weight", up
        else:
            yield f"{block}{NAMES[name]}.weight", a


def write_gguf(path, model):
    c = model.config
    w = gguf.GGUFWriter(path, "deepseek4")
    w.add_name("tiny random checkpoint")
    w.add_file_type(1)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(1)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_freq_base(c.rope_theta)
    w.add_rope_dimension_count(c.qk_rope_head_dim)
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(YARN["factor"])
    w.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_q_lora_rank(c.q_lora_rank)
    w.add_sliding_window(c.sliding_window)
    w.add_vocab_size(c.vocab_size)
    w.add_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_count(c.n_routed_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(c.norm_topk_prob)
    for key, value in {
            "expert_gating_func": 4, "hash_layer_count": c.mlp_layer_types.count("hash_moe"),
            "attention.indexer.head_count": c.index_n_heads, "attention.indexer.key_length": c.index_head_dim,
            "attention.indexer.top_k": c.index_topk, "attention.output_group_count": c.o_groups,
            "attention.output_lora_rank": c.o_lora_rank, "hyper_connection.count": c.hc_mult,
            "hyper_connection.sinkhorn_iterations": c.hc_sinkhorn_iters,
            "embedding_length_out": c.hidden_size * c.hc_mult}.items():
        w.add_uint32(f"deepseek4.{key}", value)
    w.add_float32("deepseek4.attention.compress_rope_freq_base", c.compress_rope_theta)
    w.add_float32("deepseek4.hyper_connection.epsilon", c.hc_eps)
    w.add_array("deepseek4.attention.compress_ratios", [LAYERS[kind] for kind in c.layer_types])
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        w.add_array(f"deepseek4.{key}", [c.swiglu_limit] * c.num_hidden_layers)
    tokens, scores, types = vocabulary()
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens[:VOCAB])
    w.add_token_scores(scores[:VOCAB])
    w.add_token_types(types[:VOCAB])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(True)
    for name, a in tensors(model):
        if a.dtype == np.int64:
            w.add_tensor(name, a.astype(np.int32))
        else:
            matrix = a.ndim > 1 and not name.endswith("ape.weight")
            w.add_tensor(name, np.ascontiguousarray(a, np.float16 if matrix else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def modules(model, kind):
    return [m for m in model.modules() if isinstance(m, kind)]


def gap_of(model, tokens):
    """The smallest gap, relative to the largest score of a layer, between what is chosen and what is not."""
    gaps = []

    def look(m, args, scores):
        most, block = model.config.index_topk, LAYERS["compressed_sparse_attention"]
        for t, row in enumerate(scores[0]):
            whole = (t + 1) // block
            if whole > most:
                ranks = row[:whole].sort(descending=True).values
                gaps.append(float((ranks[most - 1] - ranks[most]) / scores.abs().max()))
    hooks = [m.register_forward_hook(look) for m in modules(model, v4.DeepseekV4IndexerScorer)]
    logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return min(gaps)


def clear_prompt(model, n, seed, least, tries=3000):
    best, found = 0, None
    for i in range(tries):
        rng = np.random.default_rng(seed + i)
        tokens = np.concatenate([[1], rng.integers(3, VOCAB, n - 1)]).astype(np.int32)
        gap = gap_of(model, tokens)
        if gap > best:
            best, found = gap, tokens
        if best > least:
            print(f"entries are chosen by a gap of {best:.1e}")
            return found
    raise SystemExit(f"no clear choice; the largest gap is {best:.1e}")


def halved(model, tokens):
    """Logits with keys and values stored as f16, the only difference that a correct program may show."""
    plain = v4.eager_attention_forward
    v4.eager_attention_forward = lambda m, q, k, v, *args, **kw: plain(m, q, k.half().float(), v.half().float(), *args,
                                                                       **kw)
    out = logits(model, tokens)
    v4.eager_attention_forward = plain
    return out


def mistakes():
    """description -> edit(model) of what the tests must notice."""
    def each(kind, edit):
        return lambda model: [edit(m) for m in modules(model, kind)]

    def fill(name, value):
        def edit(model):
            for key, p in list(model.named_parameters()) + list(model.named_buffers()):
                if key.endswith(name):
                    p.fill_(value)
        return edit

    def attribute(kind, **values):
        return each(kind, lambda m: [setattr(m, *item) for item in values.items()])

    def not_turned_back(a):
        def forward(hidden, position_embeddings, *args, plain=a.forward, **kw):
            turn, calls = v4.apply_rotary_pos_emb, []

            def other(x, cos, sin, **kw):
                calls.append(0)
                return x if len(calls) == last else turn(x, cos, sin, **kw)
            last = {None: 3, v4.DeepseekV4HCACompressor: 4}.get(a.compressor and type(a.compressor), 6)
            v4.apply_rotary_pos_emb = other
            try:
                return plain(hidden, position_embeddings=position_embeddings, *args, **kw)
            finally:
                v4.apply_rotary_pos_emb = turn
        a.forward = forward

    def one_rope(model):
        for m in modules(model, v4.DeepseekV4RotaryEmbedding):
            m.compress_inv_freq = m.main_inv_freq

    def no_entries(a):
        a.compressor = None

    def first_by_scores(model):
        for m in modules(model, v4.DeepseekV4HashRouter):
            m.tid2eid.copy_(m.tid2eid.roll(1, dims=0))
    return {
        "no sinks": fill("sinks", -40.0), "places in blocks": fill("compressor.position_bias", 0.0),
        "places of the indexer": fill("indexer.position_bias", 0.0), "experts of other tokens": first_by_scores,
        "no bias of the choice of experts": fill("e_score_correction_bias", 0.0),
        "not turned back": each(v4.DeepseekV4Attention, not_turned_back), "one RoPE": one_rope,
        "no entries": each(v4.DeepseekV4Attention, no_entries), "all entries": attribute(
            v4.DeepseekV4Indexer, index_topk=1 << 20),
        "fewer entries": each(v4.DeepseekV4Indexer, lambda m: setattr(m, "index_topk", m.index_topk - 2)),
        "no gates of entries": fill("compressor.gate_proj.weight", 0.0),
        "one round": attribute(v4.DeepseekV4HyperConnection, hc_sinkhorn_iters=1),
        "first stream at the end": lambda model: setattr(model.model.hc_head, "forward", lambda x: x[:, :, 0]),
        "no limits": attribute((v4.DeepseekV4MLP, v4.DeepseekV4Experts), limit=100.0),
        "no norm of queries": each(v4.DeepseekV4Attention, lambda a: setattr(a, "q_b_norm", torch.nn.Identity())),
        "no shared expert": fill("shared_experts.down_proj.weight", 0.0),
    }


def main():
    args = [a for a in sys.argv[1:] if a != "-v"]
    verbose = "-v" in sys.argv
    if not args or args[0].startswith("-"):
        sys.exit(__doc__.strip())
    out, wanted = args[0], args[1:]
    torch.set_num_threads(1)
    for name, (c, n, least) in models().items():
        if wanted and name not in wanted:
            continue
        seed = zlib.crc32(name.encode())
        model = build(c, seed)
        tokens = clear_prompt(model, n, seed + 1, least)
        expected = logits(model, tokens)
        rounding = relative(halved(model, tokens), expected)
        if rounding > 0.3 * TOLERANCE:
            sys.exit(f"{name}: f16 keys and values move the logits by {rounding:.2e}; choose calmer weights")
        for what, edit in mistakes().items():
            mutant = copy.deepcopy(model)
            with torch.no_grad():
                edit(mutant)
            moved = relative(logits(mutant, tokens), expected)
            if verbose:
                print(f"    {what}: {moved:.1e}")
            if moved < 5 * TOLERANCE and name == "deepseek4_sparse" and what not in ("no bias of the choice of experts",):
                sys.exit(f"{name}: '{what}' moves the logits by {moved:.2e} only; a program that gets it wrong would pass")
        write_gguf(f"{out}/{name}.gguf", model)
        np.save(f"{out}/{name}.tokens.npy", tokens)
        np.save(f"{out}/{name}.logits.npy", expected)
        print(f"{name}: f16 KV moves the logits by {rounding:.1e}; {os.path.getsize(f'{out}/{name}.gguf')} bytes")


if __name__ == "__main__":
    main()
