#!/usr/bin/env python3
"""Writes tiny random checkpoints with recurrent layers, with logits of HF transformers, like make_family_models.py.

make_recurrent_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
"""
import torch
import transformers as hf

import kimi_k3
from make_family_models import PROMPT, base, main
from stream_models import choices, clear_choice, ngrams, streams, with_resets


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


def each_conv(change):
    """A wrong program: layers with a short convolution between two gates compute something else."""
    def edit(model):
        for m in model.modules():
            if type(m).__name__.endswith("ShortConv"):
                m.forward = lambda hidden_states, m=m, **_: change(m, hidden_states)
    return edit


def convolve(m, h, activation=lambda x: x, gate=lambda x: x, first=lambda x: x):
    b, c, x = m.in_proj(h).transpose(-1, -2).chunk(3, dim=-2)
    y = gate(c) * activation(m.conv(first(b) * x)[..., :h.shape[1]])
    return m.out_proj(y.transpose(-1, -2))


def each_mamba(change):
    """A wrong program: change(layer) of each state-space layer."""
    return lambda model: [change(m) for m in model.modules() if hasattr(m, "A_log") and hasattr(m, "D")]


def rolled(first, rows, by):
    """A wrong program: these rows of the projection are exchanged."""
    def change(m):
        part = m.in_proj.weight[first:first + rows]
        part.copy_(part.roll(by, dims=0))
    return each_mamba(change)


def norm_first(m):
    """A wrong program: the gate multiplies what the norm gives."""
    plain = m.norm.forward
    m.norm.forward = lambda x, gate=None: plain(x) * torch.nn.functional.silu(gate)


def ungated(m):
    plain = m.norm.forward
    m.norm.forward = lambda x, gate=None: plain(x)


def one_norm(m):
    m.norm.group_size = m.norm.weight.numel()


scans = {"no history": changed("conv1d.weight", without_history),
         "no bias of the convolution": changed("conv1d.bias", lambda p: p.zero_()),
         "no decay": changed("A_log", lambda p: p.fill_(-30.0)),
         "rates of other heads": changed("A_log", lambda p: p.copy_(p.roll(1))),
         "no skip": changed(".D", lambda p: p.zero_()), "no bias of the steps": changed("dt_bias", lambda p: p.zero_()),
         "norm before the gate": each_mamba(norm_first), "no gate": each_mamba(ungated)}


def selective(model):
    """The layers that scan selectively (Mamba 1)."""
    return [m for m in model.modules() if hasattr(m, "x_proj")]


def each_selective(change):
    return lambda model: [change(m) for m in selective(model)]


def b_and_c_exchanged(m):
    at = m.time_step_rank
    m.x_proj.weight[at:].copy_(m.x_proj.weight[at:].roll(m.ssm_state_size, dims=0))


def values_gate(m):
    """A wrong program: the halves of the projection are exchanged."""
    m.in_proj.weight.copy_(m.in_proj.weight.roll(m.intermediate_size, dims=0))


selections = {"no history": changed("conv1d.weight", without_history),
              "no bias of the convolution": changed("conv1d.bias", lambda p: p.zero_()),
              "no decay": changed("A_log", lambda p: p.fill_(-30.0)),
              "rates of other channels": changed("A_log", lambda p: p.copy_(p.roll(1, dims=0))),
              "rates of other rows": changed("A_log", lambda p: p.copy_(p.roll(1, dims=1))),
              "no skip": changed(".D", lambda p: p.zero_()),
              "no bias of the steps": changed("dt_proj.bias", lambda p: p.zero_()),
              "steps of the bias alone": changed("dt_proj.weight", lambda p: p.zero_()),
              "B and C exchanged": each_selective(b_and_c_exchanged),
              "values and gate exchanged": each_selective(values_gate)}


def without_step_norms(m):
    for norm in (m.dt_layernorm, m.b_layernorm, m.c_layernorm):
        norm.forward = lambda x: x


def each_kimi(change):
    """A wrong program: change(layer) of each layer of Kimi delta attention."""
    return lambda model: [change(m) for m in model.modules() if hasattr(m, "forget_gate")]


def one_decay(m):
    """All channels of a head decay as their mean does."""
    plain = m.forget_gate.forward
    m.forget_gate.forward = lambda h: (lambda g: g.mean(-1, keepdim=True).expand_as(g))(plain(h))


def exchanged(m):
    """Channels of keys decay at each other's rates."""
    plain = m.forget_gate.forward
    m.forget_gate.forward = lambda h: plain(h).roll(1, dims=-1)


def silu_gate(m):
    m.o_norm.activation = "silu"


def conv_third(i):
    """A wrong program: the convolution of queries, keys or values sees the current token alone."""
    return each_kimi(lambda m: without_history(m.conv1d.weight[i * m.qkv_dim:(i + 1) * m.qkv_dim]))


def rotated(model):
    """A wrong program: latent attention rotates; here by an angle of 1 for each position, the first pair alone."""
    for m in model.modules():
        if hasattr(m, "kv_a_proj_with_mqa"):
            def turn(x, first):
                at = torch.arange(x.shape[-2], dtype=x.dtype)
                a, b = x[..., first].clone(), x[..., first + 1].clone()
                x = x.clone()
                x[..., first], x[..., first + 1] = a * at.cos() - b * at.sin(), a * at.sin() + b * at.cos()
                return x
            plain_q, plain_kv, nope = m.q_proj.forward, m.kv_a_proj_with_mqa.forward, m.qk_nope_head_dim
            m.q_proj.forward = lambda h, f=plain_q, m=m: turn(
                f(h).unflatten(-1, (-1, m.qk_head_dim)).transpose(1, 2), m.qk_nope_head_dim).transpose(1, 2).flatten(-2)
            m.kv_a_proj_with_mqa.forward = lambda h, f=plain_kv, m=m: turn(f(h), m.kv_lora_rank)


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
    hyper = dict(head_dim=16, linear_key_head_dim=8, linear_value_head_dim=8, linear_conv_kernel_dim=4,
                 rope_parameters=sections, hc_count=4, hc_lowrank=16, indexer_n_heads=2, indexer_kv_heads=1,
                 indexer_head_dim=16, indexer_budget=64, indexer_compress_ratio=4, output_gate_type="sigmoid")
    grams = dict(ple_layer_ids=[2], ngram_size=3, heads_per_ngram=2, ple_conv_kernel_size=4, ngram_vocab_size_base=89,
                 split_ngram_parts=2, make_ngram_vocab_size_divisible_by=8)
    hyper_wrong = wrong | halves | streams | {
        "no history": changed("linear_attn.conv1d.weight", without_history), "one expert": {"num_experts_per_tok": 1}}
    # the file's last layer is recurrent
    mixed = dict(num_hidden_layers=4, norm_eps=1e-3, conv_L_cache=3,
                 layer_types=["conv", "full_attention", "conv", "conv"])
    convs = {"no history": changed("conv.conv.weight", without_history),
             "taps from the newest": changed("conv.conv.weight", lambda p: p.copy_(p.flip(-1))),
             "gates exchanged": changed("in_proj.weight", lambda p: p.copy_(p.roll(32, dims=0))),
             "silu of the sums": each_conv(lambda m, h: convolve(m, h, activation=torch.nn.functional.silu)),
             "no first gate": each_conv(lambda m, h: convolve(m, h, first=torch.ones_like)),
             "no second gate": each_conv(lambda m, h: convolve(m, h, gate=torch.ones_like)),
             "sigmoid of the second gate": each_conv(lambda m, h: convolve(m, h, gate=torch.sigmoid))}
    granite = base(num_hidden_layers=4, embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=4.0,
                   attention_multiplier=0.7, layer_types=["mamba", "attention", "mamba", "mamba"], mamba_n_heads=8,
                   mamba_d_head=8, mamba_d_conv=4, mamba_expand=2, position_embedding_type=None)
    scales = {"embedding scale": {"embedding_multiplier": 1.0}, "residual scale": {"residual_multiplier": 1.0},
              "logit scale": {"logits_scaling": 1.0}, "attention scale": {"attention_multiplier": 8 ** -0.5}}
    nemotron = {k: v for k, v in base(layer_norm_epsilon=1e-3, mamba_num_heads=8, mamba_head_dim=8, expand=2,
                                      head_dim=16,
                                      conv_kernel=4, time_step_min=1e-12, tie_word_embeddings=False).items()
                if k not in ("num_hidden_layers", "rms_norm_eps")}
    nemotron_moe = nemotron | dict(n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=16,
                                   moe_shared_expert_intermediate_size=24, routed_scaling_factor=2.5)
    part = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    falcon = base(num_hidden_layers=2, head_dim=8, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_d_state=16,
                  mamba_n_groups=2, mamba_d_conv=4, tie_word_embeddings=False, lm_head_multiplier=0.5,
                  embedding_multiplier=2.0, mlp_multipliers=[0.5, 2.0], key_multiplier=0.25,
                  attention_out_multiplier=2.0, attention_in_multiplier=0.5, ssm_multipliers=[0.5, 2.0, 4.0, 0.5, 2.0],
                  ssm_in_multiplier=2.0, ssm_out_multiplier=0.5)  # products with weights stay exact in f16
    factors = {f"no {k}": {k: [1.0] * len(v) if isinstance(v, list) else 1.0}
               for k, v in falcon.items() if "multiplier" in k}
    kimi = dict(num_hidden_layers=4, num_key_value_heads=4, tie_word_embeddings=False, kv_lora_rank=32,
                qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24, num_local_experts=6, num_experts_per_tok=3,
                moe_intermediate_size=16, n_shared_experts=1, linear_head_dim=16, linear_num_heads=4,
                linear_conv_kernel_dim=4, routed_scaling_factor=2.446, rms_norm_eps=1e-6,
                layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"])
    deltas = {"one decay for a head": each_kimi(one_decay), "decays of other channels": each_kimi(exchanged),
              "no decay": changed("A_log", lambda p: p.fill_(-30.0)),
              "rates of other heads": changed("A_log", lambda p: p.copy_(p.roll(1, dims=2))),
              "no bias of the decays": changed("dt_bias", lambda p: p.zero_()),
              "beta of one half": changed("b_proj.weight", lambda p: p.zero_()),
              "decays of the bias alone": changed("f_b_proj.weight", lambda p: p.zero_()),
              "no gate": changed("g_b_proj.weight", lambda p: p.zero_()), "SiLU of the gate": each_kimi(silu_gate),
              "queries without history": conv_third(0), "keys without history": conv_third(1),
              "values without history": conv_third(2), "rotated": rotated,
              "one expert": {"num_experts_per_tok": 1}, "weights unscaled": {"routed_scaling_factor": 1.0},
              "weights of another sum": {"norm_topk_prob": False},
              "no bias of the choice": lambda m: [
                  b.zero_() for n, b in m.named_buffers() if "correction_bias" in n]}
    ling = {k: v for k, v in kimi.items() if not k.startswith("linear_") and k != "layer_types"} | dict(
        head_dim=16, layer_group_size=2, kda_lower_bound=-2.0, q_lora_rank=40, n_group=2, topk_group=1,
        num_experts_per_tok=2, first_k_dense_replace=1, routed_scaling_factor=1.7, short_conv_kernel_size=4)
    bounded = {k: v for k, v in deltas.items() if k not in (
        "one decay for a head", "decays of other channels", "rates of other heads", "decays of the bias alone",
        "no gate", "SiLU of the gate", "rotated", "no decay")} | {
        "decays of the bias alone": changed("f_proj.weight", lambda p: p.zero_()),
        "rates of other heads": changed("A_log", lambda p: p.copy_(p.roll(1, dims=0))),
        "another bound": lambda m: [setattr(x, "lower_bound", -1.0) for x in m.modules() if hasattr(x, "lower_bound")],
        "no bound": lambda m: [setattr(x, "safe_gate", False) for x in m.modules() if hasattr(x, "safe_gate")],
        "no gates": changed("g_proj.weight", lambda p: p.zero_()), "all groups": {"topk_group": 2}}
    mamba = {k: v for k, v in base(num_hidden_layers=3, layer_norm_epsilon=1e-3, state_size=16, conv_kernel=4, expand=2,
                                   time_step_rank=8, tie_word_embeddings=False).items()
             if k not in ("rms_norm_eps", "rope_parameters", "num_attention_heads", "num_key_value_heads",
                          "intermediate_size")}
    jamba = {k: v for k, v in base(num_hidden_layers=4, attn_layer_period=4, attn_layer_offset=1, mamba_d_state=16,
                                   mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=8, tie_word_embeddings=False).items()
             if k != "rope_parameters"}
    return {
        "mamba": (hf.MambaConfig(**mamba), selections),
        "falcon_mamba": (hf.FalconMambaConfig(**mamba | {
            "layer_norm_epsilon": 1e-5, "mixer_rms_eps": 1e-6, "state_size": 8}), selections | {
            "no norms of steps": each_selective(without_step_norms)}),
        # Every other layer is a mixture.
        "jamba": (hf.JambaConfig(**jamba, num_experts=6, num_experts_per_tok=2, expert_layer_period=2,
                                 expert_layer_offset=1), selections | {
            "one expert": {"num_experts_per_tok": 1}, "no norms of steps": each_selective(without_step_norms),
            "no attention": changed("o_proj.weight", lambda p: p.zero_())}),
        "jamba_dense": (hf.JambaConfig(**jamba | {"num_hidden_layers": 2}, num_experts=1, num_experts_per_tok=1), {
            "no attention": changed("o_proj.weight", lambda p: p.zero_())}),
        "bailingmoe3": (hf.BailingHybridConfig(**base(**ling)), bounded),
        "kimi_linear": (hf.KimiLinearConfig(**{k: v for k, v in base(**kimi).items() if k != "rope_parameters"}),
                        deltas),
        # Two blocks of two layers.
        "kimi_k3": (kimi_k3.kimi_k3(2, 24, **{k: v for k, v in base(**kimi | dict(
            q_lora_rank=40, linear_head_dim=8, num_local_experts=5, num_experts_per_tok=2,
            mlp_layer_types=["dense"] + ["sparse"] * 3)).items() if k != "rope_parameters"}),
            {k: v for k, v in deltas.items() if k not in (
                "no gate", "no decay", "rotated", "weights unscaled", "weights of another sum")} | kimi_k3.wrong | {
                "no gate of states": changed("g_b_proj.weight", lambda p: p.zero_())}),
        "falcon_h1": (hf.FalconH1Config(**falcon), {k: v for k, v in scans.items() if "gate" not in k} | factors | {
            "no attention": changed("o_proj.weight", lambda p: p.zero_()), "groups exchanged": rolled(96, 32, 16)}),
        "falcon_h1_norm": (hf.FalconH1Config(**falcon, mamba_rms_norm=True, mamba_norm_before_gate=False), {
            "no state": changed("out_proj.weight", lambda p: p.zero_())}),
        "nemotron_h": (hf.NemotronHConfig(**nemotron, ssm_state_size=16, n_groups=4,
                                          layers_block_type=[part[p] for p in "MM-*-M-"]), scans | {
            "SiLU": {"mlp_hidden_act": "silu"}, "one norm for all groups": each_mamba(one_norm),
            "groups exchanged": rolled(128, 64, 16)}),
        "nemotron_h_moe": (hf.NemotronHConfig(**nemotron_moe, ssm_state_size=24, n_groups=2,
                                              layers_block_type=[part[p] for p in "ME*EME"]), scans | {
            "SiLU": {"mlp_hidden_act": "silu"}, "one expert": {"num_experts_per_tok": 1},
            "weights unscaled": {"routed_scaling_factor": 1.0}, "weights of another sum": {"norm_topk_prob": False},
            "no bias of the choice": lambda m: [b.zero_() for n, b in m.named_buffers() if "correction_bias" in n]}),
        "nemotron_h_latent": (hf.NemotronHConfig(**nemotron_moe, ssm_state_size=16, n_groups=2, moe_latent_size=24,
                                                 layers_block_type=[part[p] for p in "ME*E"]), {
            "one expert": {"num_experts_per_tok": 1}, "weights unscaled": {"routed_scaling_factor": 1.0},
            "channels of latents exchanged": changed("fc1_latent_proj.weight", lambda p: p.copy_(p.roll(1, dims=0))),
            "no experts": changed("fc2_latent_proj.weight", lambda p: p.zero_()),
            "no shared expert": changed("shared_experts.down_proj.weight", lambda p: p.zero_())}),
        "granitehybrid": (hf.GraniteMoeHybridConfig(**granite | dict(
            num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=40, mamba_d_state=16,
            mamba_n_groups=2)), scans | scales | {
                "B and C exchanged": rolled(128, 64, 32), "groups exchanged": rolled(128, 32, 16),
                "one norm for all groups": each_mamba(one_norm)}),
        "granitehybrid_moe": (hf.GraniteMoeHybridConfig(**granite | dict(
            num_local_experts=6, num_experts_per_tok=3, intermediate_size=16, shared_intermediate_size=24,
            mamba_d_state=24, mamba_n_groups=1)), scans | scales | {
                "one expert": {"num_experts_per_tok": 1}, "B and C exchanged": rolled(128, 48, 24)}),
        "mamba2": (hf.Mamba2Config(**{k: v for k, v in base(
            num_hidden_layers=3, layer_norm_epsilon=1e-3, num_heads=8, head_dim=8, state_size=16, n_groups=2,
            conv_kernel=4, expand=2, tie_word_embeddings=False, chunk_size=8).items()
            if k not in ("rms_norm_eps", "rope_parameters", "num_attention_heads", "num_key_value_heads",
                         "intermediate_size")}),
            scans | {"B and C exchanged": rolled(128, 64, 32), "groups exchanged": rolled(128, 32, 16),
                     "one norm for all groups": each_mamba(one_norm)}),
        "lfm2": (hf.Lfm2Config(**base(**mixed, block_auto_adjust_ff_dim=False)), convs),
        "lfm2moe": (hf.Lfm2MoeConfig(**base(
            **mixed | {"conv_L_cache": 4}, num_dense_layers=1, num_experts=6, num_experts_per_tok=3,
            moe_intermediate_size=16)),
            convs | {"no bias of the choice": lambda m: [
                        l.feed_forward.expert_bias.zero_() for l in m.model.layers[1:]],
                     "one expert": {"num_experts_per_tok": 1}, "weights of another sum": {"norm_topk_prob": False}}),
        "qwen3next": (hf.Qwen3NextConfig(**base(
            **shape, **experts, rope_parameters=rope, linear_key_head_dim=8, linear_value_head_dim=8,
            linear_conv_kernel_dim=4)), wrong),
        "qwen35": (hf.Qwen3_5TextConfig(**base(
            **shape, rope_parameters=sections, linear_key_head_dim=16, linear_value_head_dim=16,
            linear_conv_kernel_dim=4, tie_word_embeddings=False)), wrong | halves),
        "qwen35moe": (hf.Qwen3_5MoeTextConfig(**base(
            **shape, **experts, rope_parameters=sections, linear_key_head_dim=8, linear_value_head_dim=8,
            linear_conv_kernel_dim=3)), wrong | halves),
        # The first two choose all tokens of their prompts.
        "qwen4exp": (hf.Qwen4ExpTextConfig(**base(**shape | experts | hyper | grams)), hyper_wrong | ngrams),
        "qwen4exp_plain": (hf.Qwen4ExpTextConfig(**base(**shape | experts | hyper | dict(
            num_hidden_layers=5, layer_types=["linear_attention", "indexed_attention"] * 2 + ["linear_attention"],
            hc_count=2, hc_lowrank=12, num_experts=5, num_attention_heads=6, num_key_value_heads=3,
            linear_num_key_heads=3, linear_num_value_heads=3, tie_word_embeddings=False))), hyper_wrong),
        "qwen4exp_sparse": (hf.Qwen4ExpTextConfig(**base(**shape | experts | hyper | grams | {"indexer_budget": 8})),
                            hyper_wrong | ngrams | choices),
    }


if __name__ == "__main__":
    main(models, {"kimi_k3": {"write": kimi_k3.write_file}}, {"qwen4exp": with_resets(PROMPT, (6, 14, 15)),
                          "qwen4exp_sparse": clear_choice(with_resets(40, (9, 20, 21, 33)))})
