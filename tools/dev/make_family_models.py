#!/usr/bin/env python3
"""Writes tiny random checkpoints of families supported by llama.cpp's converter, with logits of HF transformers.

make_family_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
LLAMA_CPP_DIR: llama.cpp's source with convert_hf_to_gguf.py and conversion/, such as vendor/llama.cpp of the source
package of llama-cpp-python (pip download --no-binary :all: --no-deps llama-cpp-python). Needs transformers, torch (the
CPU is enough), numpy and safetensors from PyPI; downloads no model.

Files per model, as in make_tiny_models.py: NAME.gguf (weights that are exact in F16, the vocabulary of 300 entries),
NAME.tokens.npy (T) i32 and NAME.logits.npy (T, vocab) f32. The converter makes the GGUF file from the checkpoint,
except for its vocabulary. The script fails if a trait of the family hardly changes the logits; -v prints by how much.
"""
import copy
import json
import os
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers as hf

LLAMA_CPP = Path(next((a for a in sys.argv[1:] if not a.startswith("-")), "."))
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]  # before make_tiny_models imports gguf

from horizon import horizon, write_file as write_horizon
from checkpoint_names import CHECKPOINTS, kimi_checkpoint, publish
from make_tiny_models import LLAMA3, TOLERANCE, VOCAB, check_rounding, logits, prompt, relative, vocabulary
from stream_models import loud_weights, loudness
from text_models import alone, from_config, plain_embedding

PROMPT = 24
# Published models have the names of layer types that the converter reads: model type -> transformers' name -> theirs
LAYER_NAMES = {"granitemoehybrid": {"full_attention": "attention", "linear_attention": "mamba"},
               "qwen4_exp_text": {"indexed_attention": "full_attention"}}

def base(**changes):
    """The common shape; eps is large relative to the embeddings, so that a wrong eps shows."""
    return dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-3, bos_token_id=1, eos_token_id=2,
                pad_token_id=0, tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0}) | changes


# name -> (config, mistakes: description -> attributes of the config that make the mistake)
def models():
    half = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    neox = base(intermediate_size=128, num_attention_heads=2, layer_norm_eps=1e-3, tie_word_embeddings=False,
                rotary_pct=0.5, rope_parameters=half)
    falcon = base(ffn_hidden_size=128, num_key_value_heads=None, layer_norm_epsilon=1e-3, tie_word_embeddings=False,
                  alibi=False, bias=False, parallel_attn=True)
    return {
        "smollm3": (hf.SmolLM3Config(**base(num_hidden_layers=4)), {"RoPE everywhere": {"no_rope_layers": [1] * 4}}),
        "granite": (hf.GraniteConfig(**base(embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=4.0,
                                            attention_multiplier=0.7)),
                    {"embedding scale": {"embedding_multiplier": 1.0}, "residual scale": {"residual_multiplier": 1.0},
                     "logit scale": {"logits_scaling": 1.0}, "attention scale": {"attention_multiplier": 8 ** -0.5}}),
        # Prompts are three windows long. Attention to all tokens has no positions.
        "granite_swa": (hf.GraniteSWAConfig(**base(
            num_hidden_layers=4, embedding_multiplier=6.0, residual_multiplier=0.3, logits_scaling=4.0,
            attention_multiplier=0.7, sliding_window=WINDOW, layer_types=layers(4)[::-1],
            layer_rope_theta=[0.0, 1e4, 1e4, 1e4])),
            {"no window": {"sliding_window": 256}, "RoPE everywhere": {"layer_rope_theta": [1e4] * 4},
             "no sinks": filled("sinks", -1e4), "residual scale": {"residual_multiplier": 1.0}}),
        # Llama computes these rounds of layers.
        "nanbeige": (hf.LlamaConfig(**base(head_dim=16, num_loops=2, skip_loop_final_norm=False)),
                     {"one round": {"num_loops": 1}, "no norm between rounds": {"skip_loop_final_norm": True}}),
        "nanbeige_plain": (hf.LlamaConfig(**base(num_loops=3, skip_loop_final_norm=True, tie_word_embeddings=False)),
                           {"two rounds": {"num_loops": 2}, "norm between rounds": {"skip_loop_final_norm": False}}),
        # Hunyuan with other pairs of channels; CHECKPOINTS orders them.
        "maincoder": (hf.HunYuanDenseV1Config(**base(head_dim=16)), {"norms before RoPE": norms_first}),
        # transformers has neither; these compute the same. CHECKPOINTS makes the published form of them.
        "minicpm": (hf.GraniteConfig(**base(embedding_multiplier=6.0, residual_multiplier=0.5, logits_scaling=4.0,
                                            attention_multiplier=8 ** -0.5)),
                    {"embedding scale": {"embedding_multiplier": 1.0}, "residual scale": {"residual_multiplier": 1.0},
                     "logit scale": {"logits_scaling": 1.0}}),
        "exaone": (hf.LlamaConfig(**base(head_dim=8, tie_word_embeddings=False, rope_parameters=LLAMA3)),
                   {"factors of RoPE": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}),
        "olmo2": (hf.Olmo2Config(**base(tie_word_embeddings=False)), {}),
        "glm4": (hf.Glm4Config(**base(head_dim=16, partial_rotary_factor=0.5, rope_parameters=half,
                                      attention_bias=True)), {"all channels rotated": {"partial_rotary_factor": 1.0}}),
        "chatglm": (hf.GlmConfig(**base(head_dim=8, rms_norm_eps=1e-5, partial_rotary_factor=0.5, rope_parameters=half,
                                        attention_bias=True, tie_word_embeddings=False)),
                    {"all channels rotated": {"partial_rotary_factor": 1.0}}),
        # Llama computes these two; CHECKPOINTS makes the published form of them.
        "internlm2": (hf.LlamaConfig(**base(tie_word_embeddings=False)), {}),
        "pangu": (hf.LlamaConfig(**base(head_dim=8, tie_word_embeddings=False, attention_bias=True)), {}),
        # (attention, channels of the MLP) of each layer; the converter's widths are multiples of 256.
        "deci": (hf.LlamaConfig(**base(num_hidden_layers=4, tie_word_embeddings=False, rope_parameters=LLAMA3,
                                       parts=[(True, 256), (False, 256), (False, 0), (True, 512)])),
                 {"no attention": filled("o_proj", 0.0), "no MLP": filled("down_proj", 0.0),
                  "factors of RoPE": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}),
        # The converter would make three values of each matrix.
        "bitnet": (hf.BitNetConfig(**base(hidden_act="silu")), bitnet_flips | {"ReLU^2": {"hidden_act": "relu2"}}),
        "bitnet_relu2": (hf.BitNetConfig(**base(hidden_act="relu2", num_key_value_heads=1)),
                         bitnet_flips | {"SiLU": {"hidden_act": "silu"}}),
        "k2_horizon": (horizon(4, **horizon_shape),
                       horizon_flips | {"softplus by e": {"softness": 1.0},
                                        "weights of the first head": each_attention(first_head_norm)}),
        "k2_horizon_values": (horizon(2, gate=False, values=6, **horizon_shape),
                              horizon_flips | {
                                  "one expert of values": {"value_experts_used": 1}, "plain values": {"value_silu": False},
                                  "weights of values as they are": {"norm_values": False}}),
        "k2_horizon_dense": (horizon(1, heads=False, gate=False, **base(head_dim=16, first_k_dense_replace=2)),
                             {"groups": {"norm_groups": 2}}),
        # Prompts are three windows long. Gemma 3 with SiLU and an embedding that is not scaled.
        "plamo3": (plain_embedding(hf.Gemma3TextConfig(**base(
            num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=16, sliding_window=8, layer_types=layers(4),
            hidden_activation="silu", rope_parameters=two_ropes(1e6, 1e2)))),
            {"no window": {"sliding_window": 256}, "a window of one token less": {"sliding_window": 7},
             "windows in all layers": {"layer_types": layers(5)[:4]}, "one RoPE base": {"rope_parameters": two_ropes(1e6, 1e6)},
             "scaled embedding": lambda m: m.model.embed_tokens.embed_scale.fill_(32 ** 0.5)}),
        "seed_oss": (hf.SeedOssConfig(**base(head_dim=16, attention_bias=True, attention_out_bias=False)), {}),
        "gemma": (hf.GemmaConfig(**base(head_dim=16, hidden_activation="gelu_pytorch_tanh")),
                  {"SwiGLU": {"hidden_activation": "silu", "hidden_act": "silu"}}),
        "starcoder2": (hf.Starcoder2Config(**base(norm_epsilon=1e-3, sliding_window=None, use_bias=True)),
                       {"SiLU": {"hidden_act": "silu"}}),
        "command_r": (hf.CohereConfig(**base(layer_norm_eps=1e-3, logit_scale=0.25, model_max_length=256)),
                      {"logit scale": {"logit_scale": 1.0}}),
        "phi2": (hf.PhiConfig(**base(intermediate_size=128, num_key_value_heads=4, layer_norm_eps=1e-3,
                                     tie_word_embeddings=False, head_dim=8, partial_rotary_factor=0.5,
                                     rope_parameters=half)), {"SiLU": {"hidden_act": "silu"}}),
        "gptneox": (hf.GPTNeoXConfig(**neox), {"SiLU": {"hidden_act": "silu"}, "MLP behind attention": {
            "use_parallel_residual": False}, "all channels rotated": {"partial_rotary_factor": 1.0}}),
        "gptneox_behind": (hf.GPTNeoXConfig(**neox | {"use_parallel_residual": False}),
                           {"MLP beside attention": {"use_parallel_residual": True}}),
        "falcon": (hf.FalconConfig(**falcon, multi_query=True, new_decoder_architecture=False),
                   {"SiLU": {"activation": "silu"}}),
        "falcon_two_norms": (hf.FalconConfig(**falcon, new_decoder_architecture=True, num_kv_heads=2),
                             {"norms exchanged": each_block(exchange_norms)}),
        "ernie4_5": (hf.Ernie4_5Config(**base(head_dim=8, use_bias=False)), {}),
        "apertus": (hf.ApertusConfig(**base(tie_word_embeddings=False, rope_parameters=LLAMA3)),
                    {"SiLU": each_layer(lambda l: setattr(l.mlp, "act_fn", torch.nn.SiLU())),
                     "factor above zero": filled("act_fn.alpha_p", 0.0),
                     "factor below zero": filled("act_fn.alpha_n", 0.0),
                     "linear part": each_layer(lambda l: l.mlp.act_fn.beta.fill_(0.5)),
                     "no limit": each_layer(lambda l: l.mlp.act_fn.eps.fill_(-1e-6)),
                     "activation of the other layer": other_activation,
                     "factors of RoPE": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}),
        "arcee": (hf.ArceeConfig(**base()), {"SiLU": {"hidden_act": "silu"}}),
        "nemotron": (hf.NemotronConfig(**base(head_dim=8, norm_eps=1e-3, partial_rotary_factor=0.5,
                                              rope_parameters=half, tie_word_embeddings=False)),
                     {"SiLU": {"hidden_act": "silu"}}),
        "jais2": (hf.Jais2Config(**base(head_dim=8, layer_norm_eps=1e-3, tie_word_embeddings=False)),
                  {"SiLU": {"hidden_act": "silu"}}),
        "stablelm": (hf.StableLmConfig(**base(
            layer_norm_eps=1e-3, partial_rotary_factor=0.5, rope_parameters=half, use_qkv_bias=True,
            tie_word_embeddings=False)), {"all channels rotated": {"partial_rotary_factor": 1.0}}),
        "stablelm_plain": (hf.StableLmConfig(**base(
            layer_norm_eps=1e-3, partial_rotary_factor=0.5, rope_parameters=half, tie_word_embeddings=False)), {}),
        "stablelm_parallel": (hf.StableLmConfig(**base(
            layer_norm_eps=1e-3, partial_rotary_factor=0.5, rope_parameters=half, tie_word_embeddings=False,
            use_parallel_residual=True, qk_layernorm=True)),
            {"all channels rotated": {"partial_rotary_factor": 1.0}, "RMS norm of heads": rms_heads,
             "weights of the first head": first_head_weighs, "MLP behind attention": mlp_behind}),
        "exaone4": (hf.Exaone4Config(**base(sliding_window=None, sliding_window_pattern=None,
                                            layer_types=["full_attention"] * 2)), {}),
        "hunyuan_dense": (hf.HunYuanDenseV1Config(**base(head_dim=16)), {"norms before RoPE": norms_first}),
        "hunyuan_vl": (alone(hf.HunYuanVLTextConfig(**base(head_dim=16, tie_word_embeddings=False,
                                                           rope_parameters=xd_rope(2.0)))),
                       {"norms before RoPE": norms_first, "base of RoPE": {"rope_parameters": xd_rope(1.0)}}),
        # Prompts are three windows long.
        "gemma2": (hf.Gemma2Config(**base(
            num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW,
            layer_types=layers(2) * 2, hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=1.0,
            final_logit_softcapping=3.0)),
            {"no window": {"sliding_window": 256}, "no softcap of scores": {"attn_logit_softcapping": None},
             "no softcap of logits": {"final_logit_softcapping": None},
             "windows in the other layers": {"layer_types": layers(2)[::-1] * 2}}),
        "gemma3": (hf.Gemma3TextConfig(**base(
            num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW, layer_types=layers(6),
            hidden_activation="gelu_pytorch_tanh", rope_parameters=two_ropes(1e6, 1e4))),
            {"no window": {"sliding_window": 256}, "one RoPE": {"rope_parameters": two_ropes(1e6, 1e6)}}),
        "gemma4": (hf.Gemma4TextConfig(**gemma4(attention_k_eq_v=True, num_global_key_value_heads=1)),
                   gemma4_flips | {"values normed with weights": v_norm_weighs}),
        "gemma4_shared": (hf.Gemma4TextConfig(**gemma4(num_kv_shared_layers=2, output_hidden_states=True,
                                                    use_double_wide_mlp=True)),
                          gemma4_flips),
        "gemma4_moe": (hf.Gemma4TextConfig(**gemma4(
            attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=6, top_k_experts=2,
            moe_intermediate_size=16)),
            {"one expert": {"top_k_experts": 1}, "no factors of experts": filled("per_expert_scale", 1.0),
             "no factors of the router's input": filled("router.scale", 32 ** 0.5),
             "router without norm": each_layer(lambda l: setattr(l.router, "norm", torch.nn.Identity())),
             "experts read what the MLP does": each_layer(same_input), "no experts": filled("experts.down_proj", 0.0),
             "no MLP beside them": filled("mlp.down_proj", 0.0)}),
        "gemma4_wide": (hf.Gemma4TextConfig(**gemma4(
            num_hidden_layers=2, layer_types=layers(2), num_attention_heads=2, num_key_value_heads=1, head_dim=256,
            global_head_dim=512, attention_k_eq_v=True, num_global_key_value_heads=1)), {}),
        "gemma4_layer_inputs": (hf.Gemma4TextConfig(**gemma4(num_kv_shared_layers=2, output_hidden_states=True,
                                                    use_double_wide_mlp=True, hidden_size_per_layer_input=16)),
                          {"no inputs of layers": filled("post_per_layer_input_norm", 0.0),
                           "inputs without table": filled("embed_tokens_per_layer", 0.0),
                           "inputs of the table alone": filled("per_layer_projection_norm", 0.0),
                           "scale of the table": lambda m: m.model.embed_tokens_per_layer.embed_scale.fill_(1.0),
                           "inputs of the layer before": lambda m: shift_inputs(m.model.embed_tokens_per_layer)}),
        "gemma3n": (hf.Gemma3nTextConfig(**base(
            num_hidden_layers=4, intermediate_size=[40] * 4, head_dim=16, sliding_window=WINDOW,
            layer_types=layers(2) * 2, hidden_activation="gelu_pytorch_tanh", num_kv_shared_layers=2, laurel_rank=8,
            hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB, rope_parameters=two_ropes(1e6, 1e2),
            activation_sparsity_pattern=[0.7, 0.7, 0.0, 0.0], altup_num_inputs=4, altup_active_idx=0,
            final_logit_softcapping=3.0)),
            {"no window": {"sliding_window": 256}, "one RoPE": {"rope_parameters": two_ropes(1e6, 1e6)},
             "no softcap of logits": {"final_logit_softcapping": 1e6},
             "no gates cut": {"activation_sparsity_pattern": [0.0] * 4},
             "gates cut in all layers": {"activation_sparsity_pattern": [0.7] * 4},
             "more gates cut": {"activation_sparsity_pattern": [0.75, 0.75, 0.0, 0.0]},
             "values without norm": each_attention(plain_values), "scores scaled": each_attention(scale_scores),
             "no Laurel": filled("post_laurel_norm", 0.0), "no predictions": filled("prediction_coefs", 0.0),
             "equal corrections": filled("correction_coefs", 0.0),
             "another active stream": {"altup_active_idx": 1},
             "no factors of corrections": filled("correct_output_scale", 1.0),
             "no fourth stream": filled("altup_unembed_projections.2", 0.0),
             "streams begin alike": filled("altup_projections", 1.0),
             "no inputs of layers": filled("post_per_layer_input_norm", 0.0),
             "inputs without table": filled("embed_tokens_per_layer", 0.0),
             "inputs of the layer before": lambda m: shift_inputs(m.model.embed_tokens_per_layer)}),
        "cohere2": (hf.Cohere2Config(**base(
            num_hidden_layers=4, layer_norm_eps=1e-3, logit_scale=0.25, rotary_pct=1.0, sliding_window=WINDOW,
            layer_types=layers(4))), {"no window": {"sliding_window": 256}, "logit scale": {"logit_scale": 1.0}}),
        # Prompts are three original contexts long.
        "mistral3": (hf.Ministral3Config(**base(head_dim=16, rope_parameters=ministral_rope())),
                     {"no temperature": {"rope_parameters": ministral_rope(llama_4_scaling_beta=0.0)},
                      "factor of YaRN": {"rope_parameters": ministral_rope(mscale_all_dim=0.0)}}),
        "olmo3": (hf.Olmo3Config(**base(
            num_hidden_layers=4, sliding_window=WINDOW, layer_types=layers(4), tie_word_embeddings=False)),
            {"no window": {"sliding_window": 256}}),
        "exaone4_windows": (hf.Exaone4Config(**base(
            num_hidden_layers=4, sliding_window=WINDOW, sliding_window_pattern=4, layer_types=layers(4))),
            {"no window": {"sliding_window": 256}}),
        "phi3_window": (hf.Phi3Config(**base(num_key_value_heads=2, sliding_window=WINDOW,
                                             original_max_position_embeddings=256)),
                        {"no window": {"sliding_window": None}}),
    }


WINDOW = 8


def gemma4(**changes):
    return base(num_hidden_layers=4, head_dim=16, global_head_dim=32, sliding_window=WINDOW, layer_types=layers(2) * 2,
                hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=3.0, hidden_size_per_layer_input=0,
                vocab_size_per_layer_input=VOCAB, rope_parameters=gemma4_ropes(0.25, 1e4)) | changes


def gemma4_ropes(share, window):
    return {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": window}}


def each_attention(change):
    def edit(model):
        for layer in model.model.layers:
            change(layer.self_attn)
    return edit


def plain_values(a):
    if not a.is_kv_shared_layer:
        a.v_norm = torch.nn.Identity()


def scale_scores(a):
    a.scaling = a.head_dim ** -0.5


def filled(part, value):
    """A wrong program: parameters whose name contains this part all have one value."""
    def edit(model):
        found = [p for n, p in model.named_parameters() if part in n]
        assert found, part
        for p in found:
            p.fill_(value)
    return edit


def each_layer(change):
    return lambda model: [change(layer) for layer in model.model.layers]


def plain_attention(layer):
    layer.self_attn.attn_sub_norm = torch.nn.Identity()


def plain_mlp(layer):
    layer.mlp.ffn_sub_norm = torch.nn.Identity()


bitnet_flips = {"attention's norm left out": each_layer(plain_attention),
                "the MLP's norm left out": each_layer(plain_mlp)}


def first_head_norm(a):
    for norm in (a.q_norm, a.k_norm):
        norm.weight.copy_(norm.weight[:a.head_dim].repeat(norm.weight.numel() // a.head_dim))


horizon_shape = base(head_dim=16, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
                     n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5, norm_topk_prob=True,
                     n_group=1, topk_group=1, tie_word_embeddings=False)
horizon_flips = {"rows as one group": {"norm_groups": 1}, "two experts": {"num_experts_per_tok": 2},
                 "scale of weights": {"routed_scaling_factor": 1.0}}


def each_block(change):
    return lambda model: [change(layer) for layer in model.transformer.h]


def exchange_norms(layer):
    layer.ln_attn, layer.ln_mlp = layer.ln_mlp, layer.ln_attn


def other_activation(model):
    a, b = (layer.mlp for layer in model.model.layers)
    a.act_fn, b.act_fn = b.act_fn, a.act_fn


def same_input(layer):
    layer.pre_feedforward_layernorm_2 = layer.pre_feedforward_layernorm


def shift_inputs(table):
    table.weight.copy_(table.weight.roll(16, dims=1))


def v_norm_weighs(model):
    for layer in model.model.layers:
        layer.self_attn.v_norm = layer.self_attn.k_norm


def no_output_scale(model):
    for layer in model.model.layers:
        layer.layer_scalar.fill_(1.0)


gemma4_flips = {"no window": {"sliding_window": 256}, "no softcap of logits": {"final_logit_softcapping": None},
                "all channels rotated": {"rope_parameters": gemma4_ropes(1.0, 1e4)},
                "one RoPE base": {"rope_parameters": gemma4_ropes(0.25, 1e6)},
                "values without norm": each_attention(plain_values), "scores scaled": each_attention(scale_scores),
                "no output scale": no_output_scale}


class NormedProjection(torch.nn.Module):
    """A projection to heads, each of which is normalised."""
    def __init__(self, projection, norm):
        super().__init__()
        self.projection, self.norm = projection, norm

    def forward(self, x):
        heads = self.projection(x).unflatten(-1, (-1, self.norm.weight.shape[0]))
        return self.norm(heads).flatten(-2)


def norms_first(model):
    """A wrong program: heads are normalised before RoPE."""
    for layer in model.model.layers:
        a = layer.self_attn
        a.q_proj, a.query_layernorm = NormedProjection(a.q_proj, a.query_layernorm), torch.nn.Identity()
        a.k_proj, a.key_layernorm = NormedProjection(a.k_proj, a.key_layernorm), torch.nn.Identity()


def head_norms(model):
    """All norms of heads (StableLM), by q and k of each layer."""
    for layer in model.model.layers:
        yield layer.self_attn.q_layernorm.norms
        yield layer.self_attn.k_layernorm.norms


def rms_heads(model):
    for norms in head_norms(model):
        for norm in norms:
            norm.forward = lambda x, norm=norm: torch.nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


def first_head_weighs(model):
    for norms in head_norms(model):
        for norm in norms:
            norm.weight.copy_(norms[0].weight)


def mlp_behind(model):
    for layer in model.model.layers:
        layer.use_parallel_residual, layer.post_attention_layernorm = False, layer.input_layernorm


def ministral_rope(**changes):
    return dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=8, beta_fast=32.0,
                beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5) | changes


def xd_rope(alpha):
    """Of Hunyuan-VL, with a base so small that all axes matter to rows of images; text does not use the sections."""
    return dict(rope_type="dynamic", rope_theta=1.25, factor=1.0, alpha=alpha, mrope_section=[2, 1, 2, 3])


def layers(n):
    """Layer types: every n-th layer attends to all tokens."""
    return ["sliding_attention"] * (n - 1) + ["full_attention"]


def two_ropes(full, window):
    return {"full_attention": {"rope_type": "default", "rope_theta": full},
            "sliding_attention": {"rope_type": "default", "rope_theta": window}}


def shifted(config, name):
    """Whether a norm multiplies by 1 + w."""
    kind = config.model_type
    if kind.startswith("muse_glimmer"):
        return name.endswith("layernorm.weight")
    if kind.startswith(("step3p", "minimax_m3")):
        return True
    if kind.startswith(("qwen3_next", "qwen3_5", "qwen4_exp")):
        return "linear_attn" not in name
    return ("gemma" in kind and "gemma4" not in kind and "gemma3n" not in kind) or kind == "nemotron"


def is_norm(parameter):
    return "norm" in parameter.replace("norm_attn_norm", "") or ".ln_" in parameter  # the former is a block of DBRX


def untrained(config):
    if config.model_type == "mistral4":  # AutoModelForCausalLM does not know it
        return hf.models.mistral4.modeling_mistral4.Mistral4ForCausalLM._from_config(
            config, attn_implementation="eager").float().eval()
    if model := from_config(config):
        return model
    return hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def build(config, seed):
    """A model with random weights that are exact in f16: every part affects the logits, rounding keys and values to f16
    does not."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = untrained(config)
    rng = np.random.default_rng(seed)
    quiet = ["q_norm", "k_norm", "query_layernorm", "key_layernorm", "post_self_attn", "post_mlp", "post_feedforward",
             "post_per_layer", "sub_norm", "routed_norm"]
    names = [n for n, _ in model.named_parameters()]
    if not any("input_layernorm" in n for n in names) or any("post_feedforward" in n for n in names):
        quiet.append("post_attention_layernorm")
    if config.model_type == "qwen4_exp_text":
        quiet = []
    scales = getattr(config, "embedding_multiplier", getattr(config, "scale_emb", 1.0))
    if config.model_type.startswith("gemma") and not hasattr(config, "unscaled_embedding"):
        scales = config.hidden_size ** 0.5
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if is_norm(name) and name.endswith("weight"):
                # norms after attention and MLP determine the weight of their outputs
                low = 0.35 if config.num_hidden_layers <= 4 else 0.22
                if config.model_type.startswith("muse_glimmer"):
                    low = 0.2
                if "gemma4" in config.model_type or "gemma3n" in config.model_type:
                    low = 0.12 if config.hidden_size_per_layer_input else 0.2
                wide = low if any(part in name for part in quiet) else 1.0
                a = wide * (1 + 0.3 * rng.standard_normal(p.shape)) - (1.0 if shifted(config, name) else 0.0)
            elif name.endswith("A_log"):
                a = np.log(rng.uniform(0.05, 1.5, p.shape))
            elif loud := loud_weights(name):
                a = loud[0] + loud[1] * rng.standard_normal(p.shape)
            elif name.endswith(".D"):
                a = 1 + 0.4 * rng.standard_normal(p.shape)
            elif name.endswith("bias"):
                a = 0.3 * rng.standard_normal(p.shape)
            elif "embed_tokens" in name or ".wte." in name or ".wpe." in name:
                a = 0.4 / scales * rng.standard_normal(p.shape)
            elif "lm_head" in name:
                a = rng.standard_normal(p.shape) / p.shape[-1] ** 0.5
            else:
                out = any(part in name for part in ("o_proj", "self_attn.dense", "out_proj"))
                a = (0.4 if out else 0.7) * rng.standard_normal(p.shape) / p.shape[-1] ** 0.5
            if name.endswith(("gate.weight", "gate.wg.weight")) or "router" in name:  # routers: clear choices
                a = 3.0 * rng.standard_normal(p.shape) / p.shape[-1] ** 0.5
            if config.model_type == "qwen4_exp_text":
                a *= loudness(name, config.hc_count)
            if name.endswith(("router.scale", "per_expert_scale")):
                a = (1 + 0.4 * rng.standard_normal(p.shape)) * (p.shape[0] ** 0.5 if "router.scale" in name else 1)
            elif "embed_tokens_per_layer" in name:
                a = rng.standard_normal(p.shape) / config.hidden_size_per_layer_input ** 0.5
            if name.endswith("correct_output_scale"):
                a = 1 + 0.4 * rng.standard_normal(p.shape)
            elif name.endswith("modality_router.weight"):  # its output is divided by the number of channels
                a = rng.standard_normal(p.shape) * p.shape[-1] ** 0.5
            if name.endswith(("_gain", "skip")):  # Talkie
                a = (3 if "head" in name else 1) * (1 + 0.4 * rng.standard_normal(p.shape))
            if config.model_type.startswith("minimax_m3") and "mlp" in name and "gate." not in name:
                a *= 4 if "gate_up" in name else 0.15  # some values exceed the limits of SwiGLU
            if name.endswith("sinks"):
                a = 1.0 + rng.standard_normal(p.shape)
            elif name.endswith("gate_up_proj_bias"):  # clamped SwiGLU: some values exceed its limits
                a = 5.0 * rng.standard_normal(p.shape)
            p.copy_(torch.from_numpy(np.asarray(a, np.float16).astype(np.float32)))
        for name, b in sorted(model.named_buffers()):
            if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):
                a = 0.3 * rng.standard_normal(b.shape) + name.endswith("layer_scalar")
                b.copy_(torch.from_numpy(np.asarray(a, np.float16).astype(np.float32)))
            elif name.endswith("act_fn.beta"):
                b.fill_(float(np.float16(rng.uniform(0.3, 0.9))))
            elif name.endswith("act_fn.eps"):  # published models have -1e-6, which has no effect
                b.fill_(float(np.float16(-rng.uniform(0.2, 0.6))))
    return model


def mutants(model, flips):
    """(mistake, model with it): every norm, every bias, every trait once."""
    def changed(edit):
        m = copy.deepcopy(model)
        with torch.no_grad():
            edit(m)
        return m

    kinds = {n.split(".")[-2] for n, _ in model.named_parameters() if is_norm(n) and n.endswith("weight")}
    if (getattr(model.config, "indexer_budget", None) or 0) >= PROMPT:
        kinds -= {"q_layernorm", "k_layernorm"}  # of what chooses tokens: here it chooses all
    kinds = sorted(kinds)
    for kind in kinds:
        def unit(m, kind=kind):
            for n, p in m.named_parameters():
                if n.split(".")[-2] == kind and n.endswith("weight"):
                    p.fill_(0.0 if shifted(m.config, n) else 1.0)
        yield f"{kind} without weight", changed(unit)
    for kind in sorted({n.split(".")[-2] for n, _ in model.named_parameters() if n.endswith("bias")}):
        if kind == "k_proj":
            continue  # changes all scores of a row alike, except for positions: the effect is small
        def zero(m, kind=kind):
            for n, p in m.named_parameters():
                if n.split(".")[-2] == kind and n.endswith("bias"):
                    p.zero_()
        yield f"{kind} without bias", changed(zero)
    for what, attributes in flips.items():
        if callable(attributes):
            yield what, changed(attributes)
            continue
        config = copy.deepcopy(model.config)
        for key, value in attributes.items():
            if key == "partial_rotary_factor":
                config.rope_parameters = config.rope_parameters | {key: value}
            setattr(config, key, value)
        m = untrained(config)
        m.load_state_dict(model.state_dict())
        yield what, m


def check_sensitivity(name, model, flips, tokens, expected, verbose):
    for what, mutant in mutants(model, flips):
        moved = relative(logits(mutant, tokens), expected)
        if verbose:
            print(f"    {what}: {moved:.1e}")
        if moved < 5 * TOLERANCE:
            sys.exit(f"{name}: '{what}' moves the logits by {moved:.2e} only; a program that gets it wrong would pass")


def write_vocabulary(w):
    tokens, scores, types = vocabulary()
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(True)


def convert(model, path, keys={}, unused={}, mask=None, **options):
    """Converts the checkpoint by llama.cpp's converter, with the vocabulary of make_tiny_models.py. keys: more metadata
    of the family. unused: name -> shape of tensors that files have and models do not use. mask: token in place of one
    that is not known."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_class

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        if names := LAYER_NAMES.get(model.config.model_type):
            config = Path(folder, "config.json")
            saved = json.loads(config.read_text())
            saved["layer_types"] = [names.get(kind, kind) for kind in saved["layer_types"]]
            config.write_text(json.dumps(saved))
        if model.config.model_type == "nemotron_h" and "mlp" in model.config.layers_block_type:
            saved = json.loads(Path(folder, "config.json").read_text())
            saved["hybrid_override_pattern"] = pattern = model.config.hybrid_override_pattern
            saved["num_hidden_layers"] = len(pattern)
            for key in ("num_experts_per_tok", "layers_block_type", "layer_types", "n_routed_experts", "n_group",
                        "topk_group", "n_shared_experts", "num_local_experts"):  # they would make it a mixture
                saved.pop(key, None)
            options["hparams"] = saved
        if model.config.model_type == "kimi_linear":
            kimi_checkpoint(Path(folder))
        if Path(path).stem in CHECKPOINTS:
            publish(Path(folder), Path(path).stem)
        # what transformers would make of these lacks keys
        kind = model.config.model_type
        plain = ("step3p5", "bailing_hybrid", "gpt_neox", "qwen4_exp_text", "mimo_v2_flash", "minimax_m3_vl_text")
        if kind in plain or hasattr(model.config, "expert_limit"):
            options["hparams"] = json.loads(Path(folder, "config.json").read_text())
        n_tokens = model.config.get_text_config().vocab_size
        vocab = {f"t{i}": i for i in range(n_tokens)}  # Gemma's converter needs their number
        Path(folder, "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
        hparams = ModelBase.load_hparams(Path(folder), False)
        cls = get_model_class({"PhimoeForCausalLM": "PhiMoEForCausalLM", "Mistral4ForCausalLM": "Ministral3ForCausalLM"}
                              .get(arch := hparams["architectures"][0], arch))
        # created by the class of all mistral3 models
        cls = getattr(cls, "Mistral4Model" if arch.startswith("Mistral4") else "Ministral3Model", cls)

        def set_vocab(self):
            write_vocabulary(self.gguf_writer)
            if mask is not None:
                self.gguf_writer.add_mask_token_id(mask)

        if options.get("fuse_gate_up_exps"):  # llama.cpp reads it only for newer architectures
            gguf.MODEL_TENSORS[cls.model_arch].append(gguf.MODEL_TENSOR.FFN_GATE_UP_EXP)

        class Tiny(cls):
            model_arch = cls.model_arch
            no_mtp = True  # no draft layers

            def weight_quant(self, weight):
                return weight

            def set_gguf_parameters(self):
                super().set_gguf_parameters()
                w = self.gguf_writer
                for key, value in keys.items():
                    kind = {float: w.add_float32, list: w.add_array, str: w.add_string}.get(type(value), w.add_uint32)
                    kind(f"{w.arch}.{key}", value)

            def prepare_tensors(self):
                super().prepare_tensors()
                for name, shape in unused.items():
                    self.gguf_writer.add_tensor(name, np.full(shape, 0.5, np.float32))
        Tiny.set_vocab = set_vocab
        if "target_model_dir" in options:  # of a file that drafts; save_pretrained() made it
            options["target_model_dir"] = Path(folder, options["target_model_dir"])
        out = Tiny(Path(folder), gguf.LlamaFileType.MOSTLY_F16, Path(path), is_big_endian=False, use_temp_file=False,
                   eager=True, model_name="tiny random checkpoint", **options)
        out.write()


def main(models, options={}, prompts={}):
    """options: name -> options of the converter, or {"write": what writes the file in its place}. prompts: name -> what makes a prompt of the model and a seed."""
    args = [a for a in sys.argv[1:] if a != "-v"]
    verbose = "-v" in sys.argv
    if len(args) < 2 or args[0].startswith("-"):
        sys.exit(sys.modules["__main__"].__doc__.strip())
    out, wanted = args[1], args[2:]
    table = models()
    for name in wanted:
        if name not in table:
            sys.exit(f"no model '{name}'; there are: {' '.join(table)}")
    torch.set_num_threads(1)
    for name, (config, flips) in table.items():
        if wanted and name not in wanted:
            continue
        seed = zlib.crc32(name.encode())
        model = build(config, seed)
        tokens = prompts[name](model, seed + 1) if name in prompts else prompt(PROMPT, seed + 1)
        expected = logits(model, tokens)
        gguf = f"{out}/{name.split('.')[0]}.gguf"
        check_sensitivity(name, model, flips, tokens, expected, verbose)
        rounding = check_rounding(name, model, tokens, expected)
        if write := options.get(name, {}).get("write"):
            write(gguf, model, write_vocabulary)
        else:
            convert(model, gguf, **options.get(name, {}))
        np.save(f"{out}/{name}.tokens.npy", tokens)
        np.save(f"{out}/{name}.logits.npy", expected)
        print(f"{name}: f16 KV moves the logits by {rounding:.1e}; {os.path.getsize(gguf)} bytes")


if __name__ == "__main__":
    # Published files of Gemma 3n have them.
    unused = {f"blk.{l}.{name}.weight": shape for l in (2, 3)
              for name, shape in (("attn_k", (32, 32)), ("attn_v", (32, 32)), ("attn_k_norm", (16,)))}
    # The converter does not write BitNet's activation.
    main(models, {"gemma3n": {"unused": unused}, "bitnet_relu2": {"keys": {"hidden_activation": "relu2"}},
                 "k2_horizon": {"write": write_horizon}, "k2_horizon_dense": {"write": write_horizon},
                 "k2_horizon_values": {"write": write_horizon}})
