"""Checkpoints of make_family_models.py in the form that is published: names of tensors, keys of config.json."""
import json
import re

import torch


def renamed(tensors, names):
    out = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        out[name] = tensor
    return out


def ling_names(tensors):
    """Tensors of GLM 4.5 by the names of Ling 2, with q, k and v in one."""
    for name in [n for n in tensors if n.endswith("q_proj.weight")]:
        parts = [tensors.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        tensors[name.replace("q_proj", "query_key_value")] = torch.cat(parts)
    return renamed(tensors, {"embed_tokens": "word_embeddings", "self_attn": "attention", "o_proj": "dense",
                             "q_norm": "query_layernorm", "k_norm": "key_layernorm",
                             "e_score_correction_bias": "expert_bias"})


def exaone_names(tensors):
    """Tensors of Llama by the names of EXAONE 3.5."""
    return renamed(tensors, {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
                             "model.layers": "transformer.h", "input_layernorm": "ln_1",
                             "post_attention_layernorm": "ln_2", "self_attn": "attn.attention", "o_proj": "out_proj",
                             "gate_proj": "c_fc_0", "up_proj": "c_fc_1", "down_proj": "c_proj"})


def fused_qkv(tensors, name, join=torch.cat):
    """q, k and v of each layer in one tensor `name`; join: [q, k, v] -> it."""
    for q in [n for n in tensors if n.endswith("self_attn.q_proj.weight")]:
        parts = [tensors.pop(q.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        tensors[q.replace("self_attn.q_proj", name)] = join(parts)
    return tensors


def internlm_names(tensors):
    """Tensors of Llama by the names of InternLM 2; wqkv: for each KV head its query heads, its keys, its values."""
    def by_groups(parts):
        q, k, v = (part.unflatten(0, (2, -1, 8)) for part in parts)  # 2 KV heads of 8 channels
        return torch.cat([q, k, v], dim=1).flatten(0, 2)
    return renamed(fused_qkv(tensors, "attention.wqkv", by_groups), {
        "embed_tokens": "tok_embeddings", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm", "lm_head": "output"})


def ling1_names(tensors):
    """Tensors of Granite's mixture by the names of Ling 1, with a tensor for each expert."""
    out = {}
    for name, tensor in fused_qkv(tensors, "attention.query_key_value").items():
        name = name.replace("block_sparse_moe.router.layer", "mlp.gate").replace("self_attn.o_proj", "attention.dense")
        name = name.replace("embed_tokens", "word_embeddings").replace("block_sparse_moe", "mlp.experts")
        name = name.replace("shared_mlp", "mlp.shared_experts")
        head, _, part = name.rpartition(".mlp.shared_experts." if "shared" in name else ".mlp.experts.")
        if "input_linear" in part or "output_linear" in part:
            shared = "shared" in name
            for i, matrix in enumerate([tensor] if shared else tensor):
                to = f"{head}.mlp.shared_experts" if shared else f"{head}.mlp.experts.{i}"
                halves = matrix.chunk(2) if "input" in part else [matrix]
                for what, half in zip(("gate_proj", "up_proj") if "input" in part else ("down_proj",), halves):
                    out[f"{to}.{what}.weight"] = half.contiguous()
        else:
            out[name] = tensor
    return out


def neighbours(tensors):
    """Hunyuan's channels of heads (16), whose pairs are halves apart, as pairs of neighbours (Maincoder)."""
    out = {}
    for name, t in tensors.items():
        if any(part in name for part in ("q_proj", "k_proj", "query_layernorm", "key_layernorm")):
            t = t.unflatten(0, (-1, 2, 8)).transpose(1, 2).flatten(0, 2).contiguous()
        out[name.replace("query_layernorm", "q_norm").replace("key_layernorm", "k_norm")] = t
    return out


def split_experts(tensors):
    """A tensor for each matrix of each expert."""
    out = {}
    for name, tensor in tensors.items():
        head, _, part = name.rpartition(".experts.")
        if part not in ("gate_up_proj", "down_proj"):
            out[name] = tensor
            continue
        for i, matrix in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if part == "gate_up_proj" else [(part, matrix)]
            for what, half in parts:
                out[f"{head}.experts.{i}.{what}.weight"] = half.contiguous()
    return out


def primary_names(tensors):
    return renamed(tensors, {"mlp": "block_sparse_moe", "gate_proj": "gate", "up_proj": "up",
                             "down_proj": "down"})


def bitnet_names(tensors):
    return renamed(tensors, {"attn_sub_norm": "inner_attn_ln", "ffn_sub_norm": "ffn_layernorm"})


def plamo_names(tensors):
    """Tensors of Gemma 3 by the names of PLaMo 3. Norms add 1 to their weights, as Gemma's; those behind attention and
    MLP add 1/5 and 5^(-3/2)."""
    tensors = fused_qkv(tensors, "mixer.qkv_proj")
    for gate in [n for n in tensors if n.endswith("mlp.gate_proj.weight")]:
        up = tensors.pop(gate.replace("gate_proj", "up_proj"))
        tensors[gate.replace("gate_proj", "gate_up_proj")] = torch.cat([tensors.pop(gate), up])
    for name in tensors:
        if "post_attention_layernorm" in name:
            tensors[name] = tensors[name] + 1 - 1 / 5
        elif "post_feedforward_layernorm" in name:
            tensors[name] = tensors[name] + 1 - 5 ** -1.5
    return renamed(tensors, {
        "model.layers": "model.layers.layers", "self_attn": "mixer", "input_layernorm": "pre_mixer_norm",
        "post_attention_layernorm": "post_mixer_norm", "pre_feedforward_layernorm": "pre_mlp_norm",
        "post_feedforward_layernorm": "post_mlp_norm"})


def step_names(tensors):
    out = {}
    for name, tensor in tensors.items():
        name = name.replace(".mlp.gate.weight", ".moe.gate.weight").replace(".mlp.shared_experts.", ".share_expert.")
        name = name.replace(".mlp.gate.e_score_correction_bias", ".moe.router_bias")
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1)):
                out[name.replace("mlp.experts.gate_up_proj", f"moe.{part}.weight")] = half.contiguous()
        else:
            out[name.replace(".mlp.experts.down_proj", ".moe.down_proj.weight")] = tensor
    return out


def stacked_norms(tensors):
    """StableLM's norms of heads as one tensor: llama.cpp (of llama-cpp-python 0.3.36) makes them so, but loses them."""
    out = {}
    for name, tensor in sorted(tensors.items(), key=lambda t: [int(p) if p.isdigit() else p for p in t[0].split(".")]):
        of_head = re.fullmatch(r"(.*layernorm)\.norms\.\d+\.weight", name)
        if of_head:
            out.setdefault(of_head[1] + ".weight", []).append(tensor)
        else:
            out[name] = tensor
    return {name: torch.stack(t) if isinstance(t, list) else t for name, t in out.items()}


# Families that transformers computes under another name: name -> (what config.json says, names of tensors).
def neighbours(rows, n_heads, rotated):
    """Rows of heads whose last `rotated` ones pair with the other half's, so that neighbours pair."""
    heads = rows.unflatten(0, (n_heads, -1)).clone()
    heads[:, -rotated:] = heads[:, -rotated:].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return heads.flatten(0, 1)


def hunyuan_rows(tensors):
    """llama.cpp turns neighbours, transformers the halves of a head."""
    parts = {"q_b_proj.weight": 4, "kv_a_proj_with_mqa.weight": 1, "indexer.wq_b.weight": 4, "indexer.wk.weight": 1,
             "indexer.k_norm.weight": 1, "indexer.k_norm.bias": 1}
    published = {name: re.sub(r"(hc_(attn|mlp)_layer)\.", r"\1.hc_pre.", re.sub(
        r"(mlp|shared_experts)\.linear_gate", r"\1.gate_proj", name.replace(".hc_pre", ""))) for name in tensors}
    return {published[name]: next((neighbours(t, heads, 8) for part, heads in parts.items()
                                   if name.endswith("." + part)), t) for name, t in tensors.items()}


def minimax_names(tensors):
    """Tensors of MiniMax-M3 by their published names: gate and up apart, a tensor for each expert."""
    out = {}
    for name, tensor in tensors.items():
        name = name.replace("self_attn.indexer.", "self_attn.index_")
        if ".mlp.gate." in name or "_experts." in name or ".mlp.experts." in name:
            name = name.replace(".mlp.", ".block_sparse_moe.").replace("gate.e_score", "e_score")
        gate, up = name.replace("gate_up", "gate"), name.replace("gate_up", "up")
        if ".experts." in name:
            kinds = [("w1", "w3"), tensor.chunk(2, dim=1)] if gate != name else [("w2",), (tensor,)]
            for kind, part in zip(*kinds):
                for e, of_expert in enumerate(part):
                    out[f"{name[:name.rindex('.')]}.{e}.{kind}.weight"] = of_expert.contiguous()
        elif gate != name:
            out[gate], out[up] = (half.contiguous() for half in tensor.chunk(2))
        else:
            out[name] = tensor
    return out


CHECKPOINTS = {
    "minicpm": ({"architectures": ["MiniCPMForCausalLM"], "scale_emb": 6.0, "scale_depth": 0.5 * 2 ** 0.5,
                 "dim_model_base": 8}, lambda tensors: tensors),
    "bailingmoe2": ({"architectures": ["BailingMoeV2ForCausalLM"], "num_experts": 8, "num_shared_experts": 1,
                     "score_function": "sigmoid", "num_nextn_predict_layers": 0}, ling_names),
    "afmoe": ({"route_norm": True, "score_func": "sigmoid"}, lambda tensors: tensors),
    "stablelm_parallel": ({}, stacked_norms),
    "exaone_moe": ({"scoring_func": "sigmoid"}, lambda tensors: tensors),
    "exaone": ({"architectures": ["ExaoneForCausalLM"], "activation_function": "silu"}, exaone_names),
    "internlm2": ({"architectures": ["InternLM2ForCausalLM"]}, internlm_names),
    "deepseek": ({"architectures": ["DeepseekForCausalLM"], "n_routed_experts": 6, "n_shared_experts": 2,
                  "first_k_dense_replace": 1}, lambda t: renamed(t, {"shared_expert.": "shared_experts."})),
    "glm5_next": ({"architectures": ["Glm5NextForConditionalGeneration"], "mla_use_nope": True,
                   "first_k_dense_replace": 1, "linear_attn_config": {
                       "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -2.0}},
                  lambda tensors: tensors),
    "hy_v4": ({}, hunyuan_rows),
    "mimo2": ({"swa_head_dim": 24, "swa_num_attention_heads": 4, "swa_v_head_dim": 16, "topk_method": "noaux_tc",
               "swa_num_key_value_heads": 2, "hybrid_layer_pattern": [0, 1, 1, 0], "layernorm_epsilon": 1e-3,
               "rope_parameters": None, "rope_theta": 50000.0, "swa_rope_theta": 1000.0,
               "partial_rotary_factor": 1 / 3},
              lambda tensors: tensors),
    "gptneox": ({"rotary_pct": 0.5}, lambda tensors: tensors),
    "gptneox_behind": ({"rotary_pct": 0.5}, lambda tensors: tensors),
    "falcon": ({"num_kv_heads": 1}, lambda tensors: tensors),
    "granite_swa": ({"no_rope_layers": [0, 1, 1, 1]}, lambda tensors: tensors),
    "hunyuan_vl": ({"architectures": ["HunYuanVLForConditionalGeneration"]}, lambda tensors: tensors),
    "maincoder": ({"architectures": ["MaincoderForCausalLM"]}, neighbours),
    "maple": ({"architectures": ["MapleForCausalLM"], "num_experts": 6, "num_shared_experts": 0,
               "norm_topk_prob": True}, split_experts),
    "minimax_m3": ({"architectures": ["MiniMaxM3SparseForCausalLM"], "n_shared_experts": 1, "scoring_func": "sigmoid",
                    "moe_layer_freq": [0, 1, 1], "sparse_attention_config": {
                        "sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_topk_blocks": 3,
                        "sparse_block_size": 4, "sparse_local_block": 1}}, minimax_names),
    "nanbeige": ({"architectures": ["NanbeigeForCausalLM"]}, lambda tensors: tensors),
    "nanbeige_plain": ({"architectures": ["NanbeigeForCausalLM"]}, lambda tensors: tensors),
    "bitnet": ({}, bitnet_names),
    "bitnet_relu2": ({}, bitnet_names),
    "plamo3": ({"architectures": ["Plamo3ForCausalLM"], "window_size": 8, "sliding_window_pattern": 4}, plamo_names),
    "plm": ({"architectures": ["PLMForCausalLM"], "n_routed_experts": None, "num_experts_per_tok": None,
             "moe_intermediate_size": None, "n_shared_experts": None, "n_group": None, "topk_group": None},
            lambda tensors: tensors),
    "pangu": ({"architectures": ["PanguEmbeddedForCausalLM"]}, lambda tensors: tensors),
    "deci": ({"architectures": ["DeciLMForCausalLM"], "block_configs": [
        {"attention": {"n_heads_in_group": 2 if attends else None, "replace_with_linear": False},
         "ffn": {"ffn_mult": width * 3 / 2 / 32 if width else None}}
        for attends, width in [(True, 256), (False, 256), (False, 0), (True, 512)]]}, lambda tensors: tensors),
    "bailingmoe": ({"architectures": ["BailingMoeForCausalLM"], "num_experts": 6, "num_shared_experts": 2,
                    "norm_topk_prob": True, "first_k_dense_replace": 0, "moe_intermediate_size": 16}, ling1_names),
    "bailingmoe3": ({"architectures": ["BailingMoeV3ForCausalLM"], "num_experts": 6, "num_shared_experts": 1,
                     "moe_shared_expert_intermediate_size": 16, "no_kda_lora": True, "score_function": "sigmoid",
                     "gated_attention_proj_granularity_type": "head_wise", "num_nextn_predict_layers": 0,
                     "head_dim": 16, "norm_topk_prob": True, "n_group": 2}, lambda tensors: tensors),
    "muse_glimmer": ({"architectures": ["MuseGlimmerForConditionalGeneration"]}, lambda tensors: tensors),
    "spark2_5": ({"architectures": ["Spark2_5ForCausalLM"], "hidden_act": "gelu", "gate_attn_act_mode": "sigmoid",
                  "headwise_attn_output_gate": True, "num_experts": None, "num_experts_per_tok": None,
                  "moe_intermediate_size": None, "shared_expert_intermediate_size": None},
                 lambda tensors: fused_qkv(tensors, "self_attn.q_k_v_proj")),
    "smallthinker": ({"architectures": ["SmallThinkerForCausalLM"], "sliding_window_layout": [0, 1, 1, 1, 0],
                      "sliding_window_size": 8}, primary_names),
    "smallthinker_softmax": ({"architectures": ["SmallThinkerForCausalLM"]}, primary_names),
    "step35": ({"architectures": ["Step3p5ForCausalLM"], "num_attention_groups": 2, "moe_num_experts": 8,
                "moe_top_k": 3, "moe_layers_enum": "1,2,3", "norm_expert_weight": True, "rope_theta": [1e6, 1e2],
                "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0], "attention_other_setting": {"num_attention_heads": 8},
                "rope_parameters": None}, step_names),
}


def publish(folder, name):
    """Makes a saved checkpoint what is published under CHECKPOINTS[name]."""
    from safetensors.torch import load_file, save_file
    keys, rename = CHECKPOINTS[name]
    save_file(rename(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(saved | keys))


def kimi_checkpoint(folder):
    """Published checkpoints name some keys and the dense MLP in another way than transformers does."""
    from safetensors.torch import load_file, save_file
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if re.search(r"block_sparse_moe\.(gate|up|down)_proj", n)]:
        tensors[name.replace("block_sparse_moe", "mlp")] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    saved = json.loads((folder / "config.json").read_text())
    full = [i + 1 for i, kind in enumerate(saved["layer_types"]) if kind == "full_attention"]
    saved["linear_attn_config"] = {"full_attn_layers": full, "head_dim": saved["linear_head_dim"],
                                   "num_heads": saved["linear_num_heads"],
                                   "short_conv_kernel_size": saved["linear_conv_kernel_dim"]}
    saved |= {"first_k_dense_replace": saved["mlp_layer_types"].count("dense"),
              "moe_router_activation_func": "sigmoid"}
    (folder / "config.json").write_text(json.dumps(saved))
