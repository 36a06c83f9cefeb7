#!/usr/bin/env python3
"""Writes tiny random checkpoints of mixtures of experts, with logits of HF transformers, like make_family_models.py.

make_expert_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
"""
import math

import torch
import transformers as hf

from arctic import arctic, norms_exchanged, write_file as write_arctic
from make_family_models import WINDOW, base, each_layer, layers, main, norms_first
from make_tiny_models import LLAMA3


def routers(model):
    """Modules that choose experts: they return (logits, weights, indices)."""
    return [m for m in model.modules() if type(m).__name__.lower().endswith(("router", "gating", "v1gate"))]


def weighed(function, normalise=False, scale=1.0, bias=False):
    """A wrong program: other weights for the same choice."""
    def edit(model):
        found = routers(model)
        assert found
        for router in found:
            def forward(x, *more, router=router, right=router.forward):
                logits, _, indices = right(x, *more)
                p = function(logits)
                if bias:
                    p = p + (more[0] if more else router.e_score_correction_bias)
                w = p.gather(1, indices)
                if normalise:
                    w = w / w.sum(dim=-1, keepdim=True)
                return logits, w * scale, indices
            router.forward = forward
    return edit


def softmax(x):
    return torch.softmax(x, dim=-1)


def zeroed(part):
    """A wrong program: parameters and buffers whose name contains this part are zero."""
    def edit(model):
        found = [p for n, p in [*model.named_parameters(), *model.named_buffers()] if part in n]
        assert found, part
        for p in found:
            p.zero_()
    return edit


def weighed_outputs(model):
    """A wrong program: weights multiply outputs of experts."""
    for m in model.modules():
        if hasattr(m, "experts"):
            def forward(x, m=m):
                x = x.reshape(-1, x.shape[-1])
                scores, logits = m.router(x)
                out = m.experts(x.repeat(scores.shape[1], 1)).reshape(scores.shape[1], *x.shape)
                return m.shared_expert(x) + (out * scores.T[..., None]).sum(dim=0), logits
            m.forward = forward


def softmax_scores(model):
    """A wrong program: Llama 4's scores by softmax."""
    for router in routers(model):
        def forward(x, right=router.forward):
            scores, logits = right(x)
            return torch.where(scores > 0, softmax(logits), scores), logits
        router.forward = forward


def unnormalised(model):
    """A wrong program: AFMoE's weights without division by their sum."""
    for router in routers(model):
        def forward(x, bias, router=router, right=router.forward):
            logits, _, indices = right(x, bias)
            return logits, torch.sigmoid(logits).gather(1, indices) * router.route_scale, indices
        router.forward = forward


def open_gates(model):
    for layer in model.model.layers:
        layer.self_attn.gate_proj.forward = lambda x, n=layer.self_attn.gate_proj.out_features: torch.full(
            (*x.shape[:-1], n), 20.0)


def rotated_everywhere(model):
    for layer in model.model.layers:
        layer.self_attn.is_local_attention = True


def cohere(**changes):
    """The first layer is dense, attends to all tokens and has positions."""
    return base(num_hidden_layers=5, head_dim=16, layer_norm_eps=1e-3, logit_scale=0.5, sliding_window=WINDOW,
                first_k_dense_replace=1, intermediate_size=16, prefix_dense_intermediate_size=40, num_experts=6,
                num_experts_per_tok=2, expert_selection_fn="sigmoid", rms_norm_eps=None) | changes


def no_forced_rope(model):
    model.model.layers[0].self_attn.force_rope = False


def forced_rope(model):
    model.model.layers[-1].self_attn.force_rope = True


def layer_norms(model):
    for norm in [layer.input_layernorm for layer in model.model.layers] + [model.model.norm]:
        norm.forward = lambda x, norm=norm: norm.weight * torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-3)


def without_shared_gate(model):
    for m in model.modules():
        if hasattr(m, "shared_expert_gate"):
            m.shared_expert_gate.forward = lambda x: torch.full((*x.shape[:-1], 1), 20.0)


def without_sinks(model):
    for n, p in model.named_parameters():
        if n.endswith("sinks"):
            p.fill_(-1e4)


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 32}


LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.3, 1.6, 2.0],
            "long_factor": [1.0, 2.0, 3.0, 4.0], "short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 32}


def unscaled_in_windows():
    return {"full_attention": {k: v for k, v in YARN.items() if k != "truncate"},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}


def smallthinker(**changes):
    return hf.SmolLM3Config(**base(moe_num_primary_experts=8, moe_num_active_primary_experts=3, moe_ffn_hidden_size=16,
                                   moe_primary_router_apply_softmax=False, tie_word_embeddings=False) | changes)


def late(layer):
    """A wrong program: the router reads what the experts do."""
    layer.mlp.forward = lambda x, m=layer.mlp: (setattr(m, "stream", x), type(m).forward(m, x))[1]


def late_limit(layer):
    """A wrong program: the limit is of silu(gate)."""
    layer.mlp.experts.of_gate = lambda gate: torch.nn.functional.silu(gate).clamp(max=1.0)


def silu_experts(layer):
    for expert in layer.mlp.experts:
        expert.act_fn = torch.nn.SiLU()


def two_ropes(theta):
    """Of layers without and with a window, whose base is theta."""
    return {kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 1 / 3}
            for kind, base in (("full_attention", 50000.0), ("sliding_attention", theta))}


def models():
    half = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    granite = dict(embedding_multiplier=6.0, residual_multiplier=0.4, logits_scaling=4.0, attention_multiplier=0.5,
                   num_local_experts=6, num_experts_per_tok=2, intermediate_size=16)
    return {
        # Prompts are three windows long.
        "smallthinker": (smallthinker(
            num_hidden_layers=5, no_rope_layers=[0, 1, 1, 1, 0], use_sliding_window=True, sliding_window=WINDOW,
            layer_types=["full_attention"] + layers(4)),
            {"router reads what experts do": each_layer(late), "SiLU": each_layer(silu_experts),
             "one expert": {"moe_num_active_primary_experts": 1}, "no window": {"sliding_window": 256},
             "softmax": {"moe_primary_router_apply_softmax": True}, "RoPE everywhere": {"no_rope_layers": [1] * 5}}),
        "smallthinker_softmax": (smallthinker(no_rope_layers=[1, 1], moe_primary_router_apply_softmax=True),
                                 {"router reads what experts do": each_layer(late),
                                  "sigmoid": {"moe_primary_router_apply_softmax": False}}),
        "arctic": (arctic(**base(num_local_experts=5, num_experts_per_tok=2, intermediate_size=24)), {
            "one expert": {"num_experts_per_tok": 1}, "experts behind attention": {"experts_at_input": False},
            "norms exchanged": norms_exchanged, "no MLP": zeroed("residual_mlp.down_proj"),
            "no experts": zeroed("experts.down_proj"), "weights of another sum": weighed(softmax)}),
        "mixtral": (hf.MixtralConfig(**base(num_local_experts=5, num_experts_per_tok=2, intermediate_size=24)),
                    {"one expert": {"num_experts_per_tok": 1}, "three experts": {"num_experts_per_tok": 3},
                     "weights as they are": weighed(softmax), "sigmoid": weighed(torch.sigmoid, True)}),
        "qwen2moe": (hf.Qwen2MoeConfig(**base(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16,
                                              shared_expert_intermediate_size=24)),
                     {"two experts": {"num_experts_per_tok": 2}, "normalised weights": weighed(softmax, True),
                      "no shared expert": zeroed("shared_expert.down_proj"),
                      "no gate of the shared expert": without_shared_gate}),
        "qwen3moe": (hf.Qwen3MoeConfig(**base(head_dim=16, num_experts=8, num_local_experts=8, num_experts_per_tok=3,
                                              moe_intermediate_size=16, norm_topk_prob=True)),
                     {"two experts": {"num_experts_per_tok": 2}, "weights as they are": weighed(softmax)}),
        "olmoe": (hf.OlmoeConfig(**base(num_experts=6, num_experts_per_tok=2, intermediate_size=16, rms_norm_eps=1e-5,
                                        tie_word_embeddings=False)),
                  {"one expert": {"num_experts_per_tok": 1}, "normalised weights": weighed(softmax, True)}),
        "granitemoe": (hf.GraniteMoeConfig(**base(**granite)),
                       {"one expert": {"num_experts_per_tok": 1}, "residual scale": {"residual_multiplier": 1.0}}),
        "granitemoe_shared": (hf.GraniteMoeSharedConfig(**base(**granite, shared_intermediate_size=24)),
                              {"no shared expert": zeroed("shared_mlp.output_linear")}),
        # Granite's layers without its scales are what Ling computes; CHECKPOINTS makes the published form.
        "bailingmoe": (hf.GraniteMoeSharedConfig(**base(
            num_local_experts=6, num_experts_per_tok=2, intermediate_size=16, shared_intermediate_size=32,
            tie_word_embeddings=False, embedding_multiplier=1.0, residual_multiplier=1.0, logits_scaling=1.0,
            attention_multiplier=8 ** -0.5)),
            {"one expert": {"num_experts_per_tok": 1}, "no shared expert": zeroed("shared_mlp.output_linear")}),
        # Qwen 2's mixture without biases and without the shared expert's gate is what DeepSeek 1 computes.
        "deepseek": (hf.Qwen2MoeConfig(**base(
            num_hidden_layers=3, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16,
            shared_expert_intermediate_size=32, mlp_only_layers=[0], qkv_bias=False, plain_shared_expert=True,
            tie_word_embeddings=False)),
            {"two experts": {"num_experts_per_tok": 2}, "normalised weights": weighed(softmax, True),
             "no shared expert": zeroed("shared_expert.down_proj")}),
        # Prompts are three windows long.
        "granite_swa_moe": (hf.GraniteMoeSWAConfig(**base(
            **granite, num_hidden_layers=4, head_dim=8, shared_intermediate_size=24, sliding_window=WINDOW,
            layer_types=layers(4)[::-1])),
            {"one expert": {"num_experts_per_tok": 1}, "no shared expert": zeroed("shared_mlp.output_linear"),
             "no window": {"sliding_window": 256}, "no sinks": without_sinks, "weights as they are": weighed(softmax)}),
        "ernie4_5_moe": (hf.Ernie4_5_MoeConfig(**base(
            num_hidden_layers=3, intermediate_size=32, moe_num_experts=6, moe_k=2, moe_intermediate_size=16,
            moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=2)),
            {"one expert": {"moe_k": 1, "num_experts_per_tok": 1},
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "weights as they are": weighed(softmax), "no shared expert": zeroed("shared_experts.down_proj")}),
        "glm4moe": (hf.Glm4MoeConfig(**base(
            num_hidden_layers=3, head_dim=16, partial_rotary_factor=0.5, rope_parameters=half, attention_bias=True,
            use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1,
            routed_scaling_factor=1.5, norm_topk_prob=True, first_k_dense_replace=1, num_nextn_predict_layers=1)),
            {"two experts": {"num_experts_per_tok": 2}, "weights as they are": {"norm_topk_prob": False},
             "scale of weights": {"routed_scaling_factor": 1.0}, "softmax": weighed(softmax, True, 1.5),
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "bias in weights": weighed(torch.sigmoid, True, 1.5, bias=True),
             "no shared expert": zeroed("shared_experts.down_proj")}),
        # Prompts are three windows long.
        "afmoe": (hf.AfmoeConfig(**base(
            num_hidden_layers=4, head_dim=16, num_dense_layers=1, num_experts=8, num_experts_per_tok=3,
            num_shared_experts=2, moe_intermediate_size=16, route_scale=1.7, mup_enabled=True, sliding_window=WINDOW,
            layer_types=layers(4), tie_word_embeddings=False)),
            {"no window": {"sliding_window": 256}, "two experts": {"num_experts_per_tok": 2},
             "plain embedding": {"mup_enabled": False}, "scale of weights": {"route_scale": 1.0},
             "weights as they are": unnormalised, "no bias of the choice": zeroed("expert_bias"),
             "no shared expert": zeroed("shared_experts.down_proj"), "no gate of attention": open_gates,
             "RoPE everywhere": rotated_everywhere}),
        # Prompts are three windows long.
        "cohere2moe": (hf.Cohere2MoeConfig(**cohere(num_shared_experts=1)),
                       {"logit scale": {"logit_scale": 1.0}, "one expert": {"num_experts_per_tok": 1},
                        "no window": {"sliding_window": 256}, "weights as they are": {"norm_topk_prob": False},
                        "softmax": {"expert_selection_fn": "softmax"},
                        "no shared expert": zeroed("shared_experts.down"),
                        "sum with the shared expert": {"shared_expert_combination_strategy": "sum"},
                        "first layer without positions": no_forced_rope, "last layer with positions": forced_rope}),
        "cohere2moe_rms": (hf.Cohere2MoeConfig(**cohere(norm_topk_prob=False, rms_norm_eps=2e-2)),
                           {"LayerNorm": layer_norms, "epsilon of LayerNorm": {"rms_norm_eps": 1e-3},
                            "normalised weights": {"norm_topk_prob": True}}),
        "dots1": (hf.Dots1Config(**base(
            num_hidden_layers=3, head_dim=16, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
            n_shared_experts=2, routed_scaling_factor=2.0, norm_topk_prob=True, first_k_dense_replace=1, n_group=4,
            topk_group=2, sliding_window=None, layer_types=["full_attention"] * 3)),
            {"all groups": {"topk_group": 4}, "scale of weights": {"routed_scaling_factor": 1.0},
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "no shared expert": zeroed("shared_experts.down_proj")}),
        "hunyuan_moe": (hf.HunYuanMoEV1Config(**base(
            head_dim=16, num_experts=6, moe_topk=[2, 2], intermediate_size=24, moe_intermediate_size=[24, 24],
            num_shared_expert=[1, 1])),
            {"one expert": {"moe_topk": [1, 1]}, "weights as they are": weighed(softmax),
             "no shared expert": zeroed("shared_mlp.down_proj"), "norms before RoPE": norms_first}),
        "hy_v3": (hf.HYV3Config(**base(
            num_hidden_layers=3, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
            router_scaling_factor=1.7, tie_word_embeddings=False)),
            {"one expert": {"num_experts_per_tok": 1}, "scale of weights": {"router_scaling_factor": 1.0},
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "no shared expert": zeroed("shared_experts.down_proj")}),
        # GLM 4.5's layers are what Ling 2 computes; CHECKPOINTS makes the published form.
        "bailingmoe2": (hf.Glm4MoeConfig(**base(
            num_hidden_layers=3, head_dim=8, partial_rotary_factor=0.5, rope_parameters=half, attention_bias=False,
            use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1,
            routed_scaling_factor=1.5, norm_topk_prob=True, first_k_dense_replace=1, n_group=4, topk_group=2,
            tie_word_embeddings=False)),
            {"two experts": {"num_experts_per_tok": 2}, "weights as they are": {"norm_topk_prob": False},
             "scale of weights": {"routed_scaling_factor": 1.0}, "all groups": {"topk_group": 4},
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "no shared expert": zeroed("shared_experts.down_proj")}),
        # Prompts are three windows long.
        "mellum": (hf.MellumConfig(**base(
            num_hidden_layers=4, head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16,
            sliding_window=WINDOW, layer_types=layers(4), rope_parameters=unscaled_in_windows(),
            tie_word_embeddings=False)),
            {"no window": {"sliding_window": 256}, "two experts": {"num_experts_per_tok": 2},
             "weights as they are": weighed(softmax)}),
        # Mellum computes this with other positions and limits. Published models have a limit of 7.
        "maple": (hf.MellumConfig(**base(
            num_hidden_layers=4, head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16,
            sliding_window=WINDOW, layer_types=layers(2) * 2, expert_limit=1.0, nope_on_global_attention=True,
            rope_parameters={kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in set(layers(2))},
            tie_word_embeddings=False)),
            {"no window": {"sliding_window": 256}, "two experts": {"num_experts_per_tok": 2}, "no limit": {
                "expert_limit": 0}, "RoPE everywhere": {"nope_on_global_attention": False},
             "limit behind silu": each_layer(late_limit), "weights as they are": weighed(softmax)}),
        "exaone_moe": (hf.ExaoneMoeConfig(**base(
            num_hidden_layers=4, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
            num_shared_experts=1, routed_scaling_factor=1.2, first_k_dense_replace=1, sliding_window=WINDOW,
            sliding_window_pattern=4, layer_types=layers(4), tie_word_embeddings=False)),
            {"no window": {"sliding_window": 256}, "one expert": {"num_experts_per_tok": 1},
             "scale of weights": {"routed_scaling_factor": 1.0}, "weights as they are": {"norm_topk_prob": False},
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "no shared expert": zeroed("shared_experts.down_proj")}),
        # Values of a head have fewer channels than keys; layers with a window have twice the KV heads.
        "mimo2": (hf.MiMoV2FlashConfig(**base(
            num_hidden_layers=4, head_dim=24, v_head_dim=16, num_attention_heads=4, num_key_value_heads=1,
            n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=16, sliding_window=WINDOW,
            attention_value_scale=0.6, layer_types=["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"],
            mlp_layer_types=["dense"] + ["sparse"] * 3, tie_word_embeddings=False,
            rope_parameters=two_ropes(1000.0))),
            {"no window": {"sliding_window": 256}, "one expert": {"num_experts_per_tok": 1},
             "weights as they are": {"norm_topk_prob": False}, "scale of values": {"attention_value_scale": 1.0},
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "no sinks": lambda m: [a.sinks.fill_(-40.0) for a in m.modules() if getattr(a, "sinks", None) is not None],
             "one base of RoPE": {"rope_parameters": two_ropes(50000.0)}}),
        "minimax_m2": (hf.MiniMaxM2Config(**base(
            num_hidden_layers=3, head_dim=16, rope_parameters=half, rotary_dim=8, scoring_func="sigmoid",
            num_local_experts=8, num_experts_per_tok=3, intermediate_size=16, tie_word_embeddings=False)),
            {"two experts": {"num_experts_per_tok": 2}, "softmax": weighed(softmax, True),
             "no bias of the choice": zeroed("e_score_correction_bias"),
             "bias in weights": weighed(torch.sigmoid, True, bias=True),
             "weights as they are": weighed(torch.sigmoid), "all channels rotated": {"partial_rotary_factor": 1.0}}),
        # transformers 5 always uses the short factors: the prompt is within the original context.
        "phimoe.short": (hf.PhimoeConfig(**base(
            num_local_experts=6, num_experts_per_tok=2, intermediate_size=24, attention_bias=True, lm_head_bias=True,
            tie_word_embeddings=False, rope_parameters=LONGROPE, max_position_embeddings=4096)),
            {"softmax of the chosen": weighed(softmax, True), "softmax of all": weighed(softmax),
             "weights of 1": weighed(torch.ones_like),
             "no factors": {"rope_parameters": LONGROPE | {"short_factor": [1.0] * 4}},
             "factor of phi3": {"rope_parameters": LONGROPE | {"short_mscale": (1 + math.log(128, 32)) ** 0.5}}}),
        # Prompts are three chunks long.
        "llama4": (hf.Llama4TextConfig(**base(
            num_hidden_layers=4, head_dim=8, intermediate_size=24, intermediate_size_mlp=40, num_local_experts=6,
            num_experts_per_tok=1, interleave_moe_layer_step=2, attention_chunk_size=WINDOW, floor_scale=WINDOW,
            attn_scale=0.5, tie_word_embeddings=False, rope_parameters=LLAMA3)),
            {"no chunks": {"attention_chunk_size": 256}, "RoPE everywhere": {"no_rope_layers": [1] * 4},
             "no norm of heads": {"use_qk_norm": False}, "no temperature": {"attn_temperature_tuning": False},
             "later temperature": {"floor_scale": WINDOW + 1}, "weights on outputs": weighed_outputs,
             "softmax": softmax_scores, "two experts": {"num_experts_per_tok": 2},
             "factors of RoPE": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
             "no shared expert": zeroed("shared_expert.down_proj")}),
        # transformers and llama.cpp compute this; no published model uses more than one expert.
        "llama4_pair": (hf.Llama4TextConfig(**base(
            num_hidden_layers=2, head_dim=8, intermediate_size=24, intermediate_size_mlp=40, num_local_experts=6,
            num_experts_per_tok=2, interleave_moe_layer_step=1, attention_chunk_size=256, floor_scale=8192,
            tie_word_embeddings=False)),
            {"weights on outputs": weighed_outputs, "softmax": softmax_scores,
             "one expert": {"num_experts_per_tok": 1}, "three experts": {"num_experts_per_tok": 3}}),
        # Prompts are three windows long.
        "gpt_oss": (hf.GptOssConfig(**base(
            num_hidden_layers=4, head_dim=16, num_local_experts=6, num_experts_per_tok=3, intermediate_size=24,
            sliding_window=WINDOW, layer_types=layers(2) * 2, rope_parameters=YARN, tie_word_embeddings=False)),
            {"no window": {"sliding_window": 256}, "windows in the other layers": {"layer_types": layers(2)[::-1] * 2},
             "two experts": {"num_experts_per_tok": 2}, "softmax over all": weighed(softmax),
             "no sinks": without_sinks, "no clamp": {"swiglu_limit": 1e9},
             "no yarn": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
             "yarn between whole pairs": {"rope_parameters": YARN | {"truncate": True}}}),
    }


if __name__ == "__main__":
    # GGUF files of Llama 4 have no keys for these; kvrun reads them if they are there.
    main(models, {"qwen2moe": {"fuse_gate_up_exps": True},
                  "arctic": {"write": write_arctic},
                  "maple": {"keys": {"swiglu_clamp_exp": [1.0] * 4}},
                  "llama4": {"keys": {"attention.sliding_window": WINDOW, "attention.temperature_length": WINDOW,
                                      "attention.temperature_scale": 0.5}}})
