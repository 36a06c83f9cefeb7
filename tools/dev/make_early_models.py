#!/usr/bin/env python3
"""Writes tiny random checkpoints of families of 2019 to 2024, with logits of HF transformers.

make_early_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
Arguments, files and checks are those of make_family_models.py. gpt2, starcoder, olmo and dbrx are transformers' own;
Qwen, Baichuan, XVERSE, Orion and CodeShell, which it has not, are computed by families that do the same.
"""
import torch
import transformers as hf

from checkpoint_names import CHECKPOINTS, fused_qkv, renamed
from make_family_models import VOCAB, base, filled, main


def gpt(**changes):
    return dict(vocab_size=VOCAB, n_positions=256, n_ctx=256, n_embd=32, n_layer=2, n_head=4, n_inner=128,
                layer_norm_epsilon=1e-3, bos_token_id=1, eos_token_id=2, pad_token_id=0) | changes


def dbrx(clip, **experts):
    return hf.DbrxConfig(
        d_model=32, n_heads=4, n_layers=2, max_seq_len=256, vocab_size=VOCAB, tie_word_embeddings=False,
        attn_config=dict(clip_qkv=clip, kv_n_heads=2, rope_theta=10000.0),
        ffn_config=dict(ffn_hidden_size=40, moe_num_experts=6, moe_top_k=2, moe_normalize_expert_weights=1.0) | experts)


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
