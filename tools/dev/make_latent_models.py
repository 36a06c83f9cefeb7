#!/usr/bin/env python3
"""Writes tiny random checkpoints with latent attention, with the logits of HF transformers: as make_family_models.py.

make_latent_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
"""
import torch
import transformers as hf

from make_expert_models import zeroed
from make_family_models import base, each_attention, main  # first: it says where gguf is
from text_models import plm
from index_models import another_choice, choices, clear_choice, own_choice

# Prompts are three original contexts long.
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 8}
MINICPM_ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.3, 1.6, 2.0],
                "long_factor": [1.0, 2.0, 3.0, 4.0], "original_max_position_embeddings": 256}
# What the models have by default, and the converter's files do not say.
EPS = 1e-6


def plain_latent(a):
    a.kv_a_layernorm.forward = lambda x: x


def plain_queries(a):
    a.q_a_layernorm.forward = lambda x: x


def one_part_less(first):
    """A program whose scores lack what the latent gives, or the rotated key."""
    def change(a):
        q = a.q_proj if getattr(a, "q_proj", None) is not None else a.q_b_proj
        rows = q.weight.unflatten(0, (-1, a.qk_nope_head_dim + a.qk_rope_head_dim))
        (rows[:, :a.qk_nope_head_dim] if first else rows[:, a.qk_nope_head_dim:]).zero_()
    return change


def swapped(a):
    """A program that takes values for keys and keys for values; of equal width."""
    parts = a.kv_b_proj.weight.unflatten(0, (-1, 2, a.v_head_dim))
    parts.copy_(parts.flip(1).clone())


def other_scale(a):
    a.scaling = (a.qk_nope_head_dim + a.qk_rope_head_dim) ** -0.5


def untempered(a):
    a.config.rope_parameters["llama_4_scaling_beta"] = 0.0


def models():
    shape = dict(num_hidden_layers=2, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                 v_head_dim=24, rms_norm_eps=EPS, tie_word_embeddings=False, head_dim=8)
    experts = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=2,
                   first_k_dense_replace=1)
    wrong = {"latent without norm": each_attention(plain_latent), "no latent in scores": each_attention(one_part_less(True)),
             "no rotated key in scores": each_attention(one_part_less(False))}
    mixture = {"no shared expert": zeroed("shared_experts.down_proj"), "two experts": {"num_experts_per_tok": 2}}
    # llama.cpp turns 64 channels of an indexer at a time.
    index = dict(index_topk=8, index_head_dim=64, index_n_heads=4)
    scale = {"scale without YaRN": each_attention(other_scale)}
    norm = {"queries without norm": each_attention(plain_queries)}
    return {
        "deepseek2_lite": (hf.DeepseekV2Config(**base(
            **shape, **experts, q_lora_rank=None, rope_parameters=YARN, topk_method="greedy", routed_scaling_factor=1.5,
            norm_topk_prob=False, scoring_func="softmax")),
            wrong | mixture | scale | {"scale of weights": {"routed_scaling_factor": 1.0}}),
        "deepseek2_v2": (hf.DeepseekV2Config(**base(
            **shape | {"v_head_dim": 16}, **experts, q_lora_rank=40, topk_method="group_limited_greedy", n_group=4,
            topk_group=2, routed_scaling_factor=2.0, norm_topk_prob=False)),
            wrong | mixture | norm | {"all groups": {"topk_group": 4},
                                      "values and keys exchanged": each_attention(swapped)}),
        "deepseek2_v3": (hf.DeepseekV3Config(**base(
            **shape, **experts, q_lora_rank=40, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, n_group=4,
            topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func="sigmoid")),
            wrong | mixture | norm | scale | {"all groups": {"topk_group": 4},
                                              "no bias of the choice": zeroed("e_score_correction_bias"),
                                              "weights as they are": {"norm_topk_prob": False}}),
        "deepseek2_glm": (hf.Glm4MoeLiteConfig(**base(
            **shape, **experts, q_lora_rank=40, n_group=1, topk_group=1, routed_scaling_factor=1.8, norm_topk_prob=True,
            num_nextn_predict_layers=1)),
            wrong | mixture | norm | {"no bias of the choice": zeroed("e_score_correction_bias"),
                                      "weights as they are": {"norm_topk_prob": False}}),
        "mistral4": (hf.Mistral4Config(**base(
            **shape | {"kv_lora_rank": 64, "head_dim": 24}, **experts | {"first_k_dense_replace": 0}, q_lora_rank=40,
            n_group=1, topk_group=1, norm_topk_prob=True,
            rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
                                    "partial_rotary_factor": 1 / 3})),
            wrong | mixture | norm | scale | {"weights as they are": {"norm_topk_prob": False},
                                              "no temperature": each_attention(untempered)}),
        # The converter writes no scales; they are those of the published model.
        "minicpm3": (hf.MiniCPM3Config(**base(
            num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=16,
            qk_rope_head_dim=8, v_head_dim=8, rms_norm_eps=EPS, scale_emb=12, scale_depth=1.4, dim_model_base=256,
            rope_parameters=MINICPM_ROPE)),
            wrong | norm | {"embedding scale": {"scale_emb": 1}, "residual scale": {"scale_depth": 2.0},
                            "logit scale": {"dim_model_base": 32},
                            "no factors of RoPE": {"rope_parameters": MINICPM_ROPE | {"short_factor": [1.0] * 4}}}),
        # Prompts are longer than what an indexer chooses.
        "deepseek32": (hf.DeepseekV32Config(**base(
            **shape, **experts, **index, q_lora_rank=40, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
            n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func="sigmoid")),
            wrong | mixture | norm | scale | choices | {
                "pairs of neighbours": another_choice(pairs=True),
                "no bias of the choice of experts": zeroed("e_score_correction_bias")}),
        "glm_dsa": (hf.GlmMoeDsaConfig(**base(
            **shape | {"num_hidden_layers": 4}, **experts, **index | {"index_n_heads": 8}, q_lora_rank=40, n_group=1,
            topk_group=1, routed_scaling_factor=1.8, indexer_types=["full", "shared", "full", "shared"],
            norm_topk_prob=True)),
            wrong | mixture | norm | choices | {
                "pairs of halves": another_choice(pairs=False), "no shared choice": own_choice,
                "no bias of the choice of experts": zeroed("e_score_correction_bias")}),
        "plm": (plm(hf.DeepseekV2Config(**base(
            **shape | {"v_head_dim": 16, "tie_word_embeddings": True}, q_lora_rank=None, first_k_dense_replace=2))),
            wrong | {"SiLU": {"plain_act": "silu"}, "values and keys exchanged": each_attention(swapped)}),
        # As wide as real ones: one latent of 512, a rotated key of 64.
        "deepseek2_wide": (hf.DeepseekV3Config(**base(
            **shape | dict(num_hidden_layers=1, kv_lora_rank=512, qk_nope_head_dim=32, qk_rope_head_dim=64,
                           v_head_dim=16, head_dim=64, num_key_value_heads=3),
            **experts, q_lora_rank=None, num_attention_heads=3)), wrong),
    }


if __name__ == "__main__":
    # The converter does not write how queries are scaled by position.
    main(models, {"mistral4": {"keys": {"attention.temperature_scale": 0.5, "attention.temperature_length": 8}}},
         {"deepseek32": clear_choice(20), "glm_dsa": clear_choice(20, 1000)})
