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
CHECKPOINTS = {
    "minicpm": ({"architectures": ["MiniCPMForCausalLM"], "scale_emb": 6.0, "scale_depth": 0.5 * 2 ** 0.5,
                 "dim_model_base": 8}, lambda tensors: tensors),
    "bailingmoe2": ({"architectures": ["BailingMoeV2ForCausalLM"], "num_experts": 8, "num_shared_experts": 1,
                     "score_function": "sigmoid", "num_nextn_predict_layers": 0}, ling_names),
    "afmoe": ({"route_norm": True, "score_func": "sigmoid"}, lambda tensors: tensors),
    "stablelm_parallel": ({}, stacked_norms),
    "exaone_moe": ({"scoring_func": "sigmoid"}, lambda tensors: tensors),
    "exaone": ({"architectures": ["ExaoneForCausalLM"], "activation_function": "silu"}, exaone_names),
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
