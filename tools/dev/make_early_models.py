#!/usr/bin/env python3
"""Writes tiny random checkpoints of families of 2019 to 2024, and of Talkie, with logits of HF transformers.

make_early_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
Arguments, files and checks are those of make_family_models.py. gpt2, starcoder, olmo and dbrx are transformers' own;
Qwen, Baichuan, XVERSE, Orion and CodeShell, which it has not, are computed by families that do the same.
"""
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers as hf

from checkpoint_names import CHECKPOINTS, fused_qkv, renamed
from make_family_models import VOCAB, base, filled, main
from text_models import EDITS


EPS = torch.finfo(torch.float32).eps  # what Talkie's norms have


def gpt(**changes):
    return dict(vocab_size=VOCAB, n_positions=256, n_ctx=256, n_embd=32, n_layer=2, n_head=4, n_inner=128,
                layer_norm_epsilon=1e-3, bos_token_id=1, eos_token_id=2, pad_token_id=0) | changes


def dbrx(clip, **experts):
    return hf.DbrxConfig(
        d_model=32, n_heads=4, n_layers=2, max_seq_len=256, vocab_size=VOCAB, tie_word_embeddings=False,
        attn_config=dict(clip_qkv=clip, kv_n_heads=2, rope_theta=10000.0),
        ffn_config=dict(ffn_hidden_size=40, moe_num_experts=6, moe_top_k=2, moe_normalize_expert_weights=1.0) | experts)


class Talkie(torch.nn.Module):
    """Talkie's equations: norms have no weights; q and k are normed behind RoPE, and heads of q have gains; so have the
    outputs of attention and MLP; behind each layer the normed embedding is added, times a number."""

    def __init__(self, llama):
        super().__init__()
        self.config = config = llama.config
        self.llama = llama
        for norm in [m for m in self.llama.modules() if isinstance(m, hf.models.llama.modeling_llama.LlamaRMSNorm)]:
            del norm.weight
            norm.weight = 1.0
        n, heads = config.num_hidden_layers, config.num_attention_heads
        self.head_gain = torch.nn.Parameter(torch.zeros(n, heads))
        self.attn_gain, self.mlp_gain, self.skip = (torch.nn.Parameter(torch.zeros(n)) for _ in range(3))
        self.logit_gain = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, use_cache=False):
        c, m = self.config, self.llama.model
        norm = partial(torch.nn.functional.rms_norm, eps=c.rms_norm_eps)
        x = first = norm(m.embed_tokens(input_ids), [c.hidden_size])
        t = x.shape[1]
        cos, sin = m.rotary_emb(x, torch.arange(t)[None])
        mask = torch.full((t, t), -torch.inf).triu(1)
        for l, layer in enumerate(m.layers):
            h, a = norm(x, [c.hidden_size]), layer.self_attn
            q, k, v = (p(h).unflatten(-1, (-1, c.head_dim)).transpose(1, 2) for p in (a.q_proj, a.k_proj, a.v_proj))
            q, k = hf.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
            q = norm(q, [c.head_dim]) * (self.head_gain[l][:, None, None] if c.gains else 1)
            k = norm(k, [c.head_dim])
            groups = q.shape[1] // k.shape[1]
            if c._attn_implementation == "f16_kv":  # check_rounding()
                k, v = k.half().float(), v.half().float()
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            p = torch.softmax(q @ k.transpose(2, 3) / c.head_dim ** 0.5 + mask, -1)
            x = x + a.o_proj((p @ v).transpose(1, 2).flatten(2)) * self.attn_gain[l]
            x = x + layer.mlp(norm(x, [c.hidden_size])) * self.mlp_gain[l]
            x = x + first * self.skip[l]
        out = self.llama.lm_head(norm(x, [c.hidden_size])) * self.logit_gain
        return SimpleNamespace(logits=out)

    def save_pretrained(self, folder):
        from safetensors.torch import save_file
        tensors = {}
        for name, t in self.state_dict().items():
            if (part := re.fullmatch(r"llama\.model\.layers\.(\d+)\.(\w+)\.(\w+)_proj\.weight", name)):
                names = dict(q="attn.attn_query", k="attn.attn_key", v="attn.attn_value", o="attn.attn_resid",
                             gate="mlp.mlp_gate", up="mlp.mlp_linear", down="mlp.mlp_resid")
                if part[3] in "qk":  # published models turn the other way
                    t = t.unflatten(0, (-1, 2, self.config.head_dim // 2)) * torch.tensor([1.0, -1.0])[:, None, None]
                    t = t.flatten(0, 2)
                tensors[f"model.blocks.{part[1]}.{names[part[3]]}.weight"] = t.contiguous()
        for l in range(self.config.num_hidden_layers):
            block = f"model.blocks.{l}."
            tensors |= {block + "attn.head_gain.head_g": self.head_gain[l].clone(),
                        block + "attn_gain.a_g": self.attn_gain[l:l + 1].clone(),
                        block + "mlp_gain.a_g": self.mlp_gain[l:l + 1].clone(),
                        block + "embed_skip.a_g": self.skip[l:l + 1].clone()}
        tensors |= {"model.embed.weight": self.llama.model.embed_tokens.weight.clone(),
                    "lm_head": self.llama.lm_head.weight.clone(), "lm_head_gain.w_g": self.logit_gain.clone()}
        save_file(tensors, Path(folder, "model.safetensors"), {"format": "pt"})
        saved = self.config.to_dict() | {"architectures": ["TalkieForCausalLM"]}
        Path(folder, "config.json").write_text(json.dumps(saved, default=str))


def later(model):
    """The rows of positions, one late."""
    table = model.transformer.wpe.weight
    table.copy_(table.roll(-1, 0))


def unlimited(model):
    """No limit of q, k and v."""
    for module in model.modules():
        if hasattr(module, "clip_qkv"):
            module.clip_qkv = 1e6
        elif hasattr(getattr(module, "config", None), "clip_qkv"):
            module.config.clip_qkv = None


def dense_weights(model):
    for layer in model.transformer.blocks:
        layer.ffn.moe_normalize_expert_weights = None


def models():
    stable = base(layer_norm_eps=1e-3, tie_word_embeddings=False,
                  rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0})
    talkie = hf.LlamaConfig(**base(head_dim=8, tie_word_embeddings=False, rms_norm_eps=EPS, gains=True))
    heads = base(num_key_value_heads=4, tie_word_embeddings=False)
    return {
        "gpt2": (hf.GPT2Config(**gpt()), {"exact GELU": {"activation_function": "relu"}, "positions": later,
                                          "no positions": filled("wpe", 0.0)}),
        "starcoder": (hf.GPTBigCodeConfig(**gpt(multi_query=True, tie_word_embeddings=False)),
                      {"ReLU": {"activation_function": "relu"}, "positions": later}),
        "qwen": (hf.Qwen2Config(**heads), {}),
        "baichuan": (hf.LlamaConfig(**heads), {}),
        "xverse": (hf.LlamaConfig(**base(tie_word_embeddings=False)), {}),
        "orion": (hf.StableLmConfig(**stable), {"half of the channels rotated": {"partial_rotary_factor": 0.5}}),
        "codeshell": (hf.Starcoder2Config(**base(intermediate_size=128, norm_epsilon=1e-3, sliding_window=None,
                                                 use_bias=True, tie_word_embeddings=False)),
                      {"SiLU": {"hidden_act": "silu"}}),
        "olmo": (hf.OlmoConfig(**base(clip_qkv=0.5, tie_word_embeddings=False)), {"no limit": unlimited}),
        "olmo_unlimited": (hf.OlmoConfig(**base(clip_qkv=None)), {"a limit": {"clip_qkv": 0.5}}),
        "talkie": (talkie, {
            "no gains of heads": {"gains": False}, "no gain of attention": filled("attn_gain", 1.0),
            "no gain of MLPs": filled("mlp_gain", 1.0), "no embedding behind layers": filled("skip", 0.0),
            "no gain of logits": filled("logit_gain", 1.0)}),
        "dbrx": (dbrx(0.5), {"no limit": unlimited, "weights of all experts": dense_weights}),
    }


BLOCKS = {"model.embed_tokens": "transformer.wte", "model.layers": "transformer.h", "model.norm": "transformer.ln_f",
          "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj"}


def packed(tensors, name):
    """Weights and biases of q, k and v in one tensor."""
    for kind in ("weight", "bias"):
        for q in [n for n in tensors if n.endswith(f"self_attn.q_proj.{kind}")]:
            parts = [tensors.pop(q.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
            tensors[q.replace("self_attn.q_proj", name)] = torch.cat(parts)
    return tensors


def qwen_names(tensors):
    return renamed(packed(tensors, "attn.c_attn"), BLOCKS | {
        "mlp.up_proj": "mlp.w1", "mlp.gate_proj": "mlp.w2", "mlp.down_proj": "mlp.c_proj"})


EDITS["gains"] = Talkie
CHECKPOINTS.update({
    "qwen": ({"architectures": ["QWenLMHeadModel"], "intermediate_size": 80}, qwen_names),
    "baichuan": ({"architectures": ["BaichuanForCausalLM"]}, lambda t: fused_qkv(t, "self_attn.W_pack")),
    "xverse": ({"architectures": ["XverseForCausalLM"]}, lambda tensors: tensors),
    "orion": ({"architectures": ["OrionForCausalLM"], "rms_norm_eps": 1e-3}, lambda tensors: tensors),
    "codeshell": ({"architectures": ["CodeShellForCausalLM"], "n_positions": 256, "n_embd": 32, "n_head": 4,
                   "num_query_groups": 2, "layer_norm_epsilon": 1e-3},
                  lambda t: renamed(packed(t, "attn.c_attn"), BLOCKS)),
})


if __name__ == "__main__":
    from conversion import TextModel
    from conversion.baichuan import BaichuanModel
    unpack = BaichuanModel.modify_tensors

    def modify(self, tensor, name, layer):  # that of llama.cpp calls itself for all other tensors (2026-10-01)
        return unpack(self, tensor, name, layer) if "W_pack" in name else \
            TextModel.modify_tensors(self, tensor, name, layer)
    BaichuanModel.modify_tensors = modify
    main(models)
