#!/usr/bin/env python3
"""Writes tiny random checkpoints whose attention has a gate for each head or channel, with the logits of HF
transformers: as make_family_models.py.

make_gate_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
"""
import torch
import transformers as hf

from make_expert_models import YARN, softmax, weighed, zeroed
from make_family_models import WINDOW, base, each_attention, each_layer, main
from text_models import alone, spark

FULL_FIRST = ["full_attention"] + ["sliding_attention"] * 3


def open_gates(part):
    """A wrong program: no gate."""
    def change(a):
        gate = getattr(a, part)
        gate.forward = lambda x: torch.full((*x.shape[:-1], gate.out_features), 20.0)
    return each_attention(change)


def other_function(a):
    """A wrong program: sigmoid where softplus is meant."""
    gate = a.g_proj
    gate.forward = lambda x, right=gate.forward: torch.sigmoid(right(x)).expm1().log()


def first_head_gates(a):
    """A wrong program: the gate of the first head for all of them."""
    gate = a.g_proj
    gate.forward = lambda x, right=gate.forward: right(x)[..., :1].expand(*x.shape[:-1], gate.out_features)


def unlimited(experts):
    def change(layer):
        part = layer.mlp.experts if experts and hasattr(layer.mlp, "experts") else \
            getattr(layer.mlp, "shared_experts", layer.mlp)
        part.limit = float("inf")
    return each_layer(change)


def unnormed_embedding(model):
    model.model.embed_tokens.embed_norm = torch.nn.Identity()


def ropes(full, share, window, other=1.0, **scaling):
    return {"full_attention": {"rope_type": "default", "rope_theta": full, "partial_rotary_factor": share} | scaling,
            "sliding_attention": {"rope_type": "default", "rope_theta": window, "partial_rotary_factor": other}}


def laguna(**changes):
    return hf.LagunaConfig(**base(
        num_hidden_layers=4, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
        shared_expert_intermediate_size=24, moe_routed_scaling_factor=1.7, tie_word_embeddings=False,
        mlp_layer_types=["dense"] + ["sparse"] * 3) | changes)


def models():
    yarn = {k: v for k, v in YARN.items() if k not in ("truncate", "rope_theta")}
    mixture = {"two experts": {"num_experts_per_tok": 2},
               "no bias of the choice": zeroed("e_score_correction_bias"),
               "no shared expert": zeroed("shared_experts.down_proj")}
    return {
        # Prompts are three windows long.
        "laguna": (laguna(gating=True, num_attention_heads_per_layer=[4, 8, 8, 8], layer_types=FULL_FIRST,
                          sliding_window=WINDOW, rope_parameters=ropes(5e5, 0.5, 1e2, **yarn)),
                   mixture | {"no window": {"sliding_window": 256}, "no gate": open_gates("g_proj"),
                              "sigmoid": each_attention(other_function),
                              "gate of the first head": each_attention(first_head_gates),
                              "no YaRN": {"rope_parameters": ropes(5e5, 0.5, 1e2)},
                              "one base of RoPE": {"rope_parameters": ropes(5e5, 0.5, 5e5, **yarn)},
                              "scale of weights": {"moe_routed_scaling_factor": 1.0}}),
        "laguna_channels": (laguna(
            num_hidden_layers=2, gating="per-element", num_attention_heads_per_layer=[4, 4],
            layer_types=["full_attention"] * 2, sliding_window=0, mlp_layer_types=["dense", "sparse"],
            rope_parameters={"full_attention": ropes(1e4, 1.0, 1e4)["full_attention"]}),
            mixture | {"no gate": open_gates("g_proj"), "sigmoid": each_attention(other_function)}),
        # Prompts are three windows long.
        "muse_glimmer": (alone(hf.MuseGlimmerTextConfig(**base(
            num_hidden_layers=4, head_dim=16, sliding_window=WINDOW, tie_word_embeddings=False, qk_scale_factor=1.5,
            output_multiplier=0.4, final_logit_softcapping=3.0, post_norm_eps=1e-8))),
            {"no window": {"sliding_window": 256}, "no gate": open_gates("gate_proj"),
             "no softcap": {"final_logit_softcapping": 1e6}, "logit scale": {"output_multiplier": 1.0},
             "scale of queries": {"qk_scale_factor": 1.0}, "RoPE everywhere": {"layer_rope_theta": [1e4] * 4},
             "one epsilon": {"post_norm_eps": 1e-3}, "plain embedding": unnormed_embedding}),
        "spark2_5": (spark(laguna(
            gating=True, num_attention_heads_per_layer=[4] * 4, mlp_layer_types=["dense"] * 4,
            layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=WINDOW,
            hidden_act="gelu_pytorch_tanh", rope_parameters=ropes(1e6, 0.5, 1e2))),
            {"no window": {"sliding_window": 256}, "no gate": open_gates("g_proj"), "SiLU": {"hidden_act": "silu"},
             "gate of the first head": each_attention(first_head_gates),
             "one base of RoPE": {"rope_parameters": ropes(1e6, 0.5, 1e6)}}),
        # Prompts are three windows long.
        "step35": (alone(hf.models.step3p7.configuration_step3p7.Step3p7TextConfig(**base(
            num_hidden_layers=4, head_dim=16, num_sliding_attention_heads=8, layer_types=FULL_FIRST,
            mlp_layer_types=["dense"] + ["sparse"] * 3, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=16, share_expert_dim=24, moe_router_scaling_factor=1.7, sliding_window=WINDOW,
            swiglu_limits=[0.0, 0.0, 0.05, 0.1], swiglu_limits_shared=[0.0, 0.1, 0.0, 0.05],
            tie_word_embeddings=False, rope_parameters=ropes(1e6, 0.5, 1e2)))),
            mixture | {"no window": {"sliding_window": 256}, "no gate": open_gates("g_proj"),
                       "gate of the first head": each_attention(first_head_gates),
                       "one base of RoPE": {"rope_parameters": ropes(1e6, 0.5, 1e6)},
                       "all channels rotated": {"rope_parameters": ropes(1e6, 1.0, 1e2)},
                       "no limit of experts": unlimited(True), "no limit of the shared expert": unlimited(False),
                       "softmax": weighed(softmax, True),
                       "scale of weights": {"moe_router_scaling_factor": 1.0}}),
    }


if __name__ == "__main__":
    main(models)
