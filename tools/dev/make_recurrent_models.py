#!/usr/bin/env python3
"""Writes tiny random checkpoints with recurrent layers, with logits of HF transformers, like make_family_models.py.

make_recurrent_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
"""
import torch
import transformers as hf

from make_family_models import base, main


def changed(part, edit):
    """A wrong program: parameters whose name ends so are edited."""
    def apply(model):
        found = [p for n, p in model.named_parameters() if n.endswith(part)]
        assert found, part
        for p in found:
            edit(p)
    return apply


def without_history(p):
    p[..., :-1].zero_()


def without_gate(model):
    """A wrong program: the output of attention has no gate."""
    for m in model.modules():
        if hasattr(m, "q_proj"):
            rows = m.q_proj.weight.unflatten(0, (-1, 2, m.head_dim))
            rows[:, 1].zero_()
            m.o_proj.weight *= 2  # sigmoid(0) is one half


def without_norm_gate(model):
    for m in model.modules():
        if type(m).__name__.endswith("RMSNormGated"):
            m.forward = lambda x, gate, m=m: m.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)


def models():
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    sections = rope | {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    shape = dict(num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4)
    experts = dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=24)
    wrong = {"all channels rotated": {"partial_rotary_factor": 1.0},
             "no history": changed("conv1d.weight", without_history),
             "no decay": changed("A_log", lambda p: p.fill_(-30.0)),
             "no gate of attention": without_gate, "no gate of the norm": without_norm_gate}
    halves = {"beta of one half": changed("in_proj_b.weight", lambda p: p.zero_()),
              "decay of the bias alone": changed("in_proj_a.weight", lambda p: p.zero_())}
    return {
        "qwen3next": (hf.Qwen3NextConfig(**base(
            **shape, **experts, rope_parameters=rope, linear_key_head_dim=8, linear_value_head_dim=8,
            linear_conv_kernel_dim=4)), wrong),
        "qwen35": (hf.Qwen3_5TextConfig(**base(
            **shape, rope_parameters=sections, linear_key_head_dim=16, linear_value_head_dim=16,
            linear_conv_kernel_dim=4, tie_word_embeddings=False)), wrong | halves),
        "qwen35moe": (hf.Qwen3_5MoeTextConfig(**base(
            **shape, **experts, rope_parameters=sections, linear_key_head_dim=8, linear_value_head_dim=8,
            linear_conv_kernel_dim=3)), wrong | halves),
    }


if __name__ == "__main__":
    main(models)
