"""Models for make_family_models.py that transformers has in parts only: text models without their head, and layers
that lack parts or have other gates."""
import copy
import json
from pathlib import Path
from types import MethodType, SimpleNamespace

import torch
import transformers as hf

from arctic import with_residual_mlps
from horizon import with_groups
from kimi_k3 import with_residuals


class Alone(torch.nn.Module):
    """The text part of a model that reads images too, with an output projection."""
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = hf.AutoModel.from_config(config, attn_implementation="eager") \
            if config.model_type != "step3p5" else hf.models.step3p7.modeling_step3p7.Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, use_cache=False):
        out = self.lm_head(self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state)
        if cap := getattr(self.config, "final_logit_softcapping", None):
            out = cap * torch.tanh(out * self.config.output_multiplier / cap)
        return SimpleNamespace(logits=out)

    def save_pretrained(self, folder):
        from safetensors.torch import save_file
        tensors = {n: t.contiguous() for n, t in self.state_dict().items()}
        save_file(tensors, Path(folder, "model.safetensors"), {"format": "pt"})
        Path(folder, "config.json").write_text(json.dumps(self.config.to_dict(), default=str))


def alone(config):
    config._attn_implementation = "eager"
    config.text_alone = True
    return config


class Nothing(torch.nn.Module):
    """What a layer without attention or MLP adds to the residual stream."""
    def forward(self, hidden_states, **more):
        return (torch.zeros_like(hidden_states), None) if more else torch.zeros_like(hidden_states)


def without_parts(model):
    """Deci: layers of a Llama whose config says which parts they have, and how wide their MLP is."""
    for layer, (attends, width) in zip(model.model.layers, model.config.parts):
        if not attends:
            layer.self_attn, layer.input_layernorm = Nothing(), torch.nn.Identity()
        if not width:
            layer.mlp, layer.post_attention_layernorm = Nothing(), torch.nn.Identity()
        else:
            config = copy.copy(model.config)
            config.intermediate_size = width
            layer.mlp = type(layer.mlp)(config)
    return model


class SigmoidGate(torch.nn.Linear):
    """softplus() of what this computes is the sigmoid of the projection."""
    def forward(self, x):
        return torch.sigmoid(super().forward(x)).expm1().log()


def spark(config):
    """Spark X2.5: Laguna's dense layers with sigmoid gates and without norms of heads."""
    config.sigmoid_gates = True
    return config


def plain_embedding(config):
    """PLaMo 3: the embedding of Gemma 3 without its scale."""
    config.unscaled_embedding = True
    return config


def with_plain_embedding(model):
    model.model.embed_tokens.embed_scale.fill_(1.0)
    return model


class PlainMlp(torch.nn.Module):
    """PLM: an MLP without gate in place of DeepSeek's."""
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.up_proj = torch.nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = torch.nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(hf.activations.ACT2FN[self.config.plain_act](self.up_proj(x)))


def with_plain_mlps(model):
    for layer in model.model.layers:
        layer.mlp = PlainMlp(model.config)
    return model


def plm(config):
    config.plain_act = "relu2"
    return config


def with_sigmoid_gates(model):
    for layer in model.model.layers:
        a = layer.self_attn
        a.q_norm, a.k_norm = torch.nn.Identity(), torch.nn.Identity()
        a.g_proj = SigmoidGate(a.g_proj.in_features, a.g_proj.out_features, bias=False)
    return model


class EarlyExperts(torch.nn.Module):
    """SmallThinker's MLP: gated ReLU experts. The layer's input chooses them, before attention."""
    def __init__(self, config):
        super().__init__()
        self.config, self.stream = config, None
        self.primary_router = torch.nn.Linear(config.hidden_size, config.moe_num_primary_experts, bias=False)
        self.experts = torch.nn.ModuleList(hf.models.llama.modeling_llama.LlamaMLP(self.of_expert(config))
                                           for _ in range(config.moe_num_primary_experts))

    @staticmethod
    def of_expert(config):
        of_expert = copy.copy(config)
        of_expert.intermediate_size, of_expert.hidden_act = config.moe_ffn_hidden_size, "relu"
        return of_expert

    def forward(self, x):
        best, chosen = self.primary_router(self.stream).topk(self.config.moe_num_active_primary_experts, dim=-1)
        weights = best.softmax(dim=-1) if self.config.moe_primary_router_apply_softmax else best.sigmoid()
        weights = weights / weights.sum(dim=-1, keepdim=True)
        outputs = torch.stack([e(x) for e in self.experts], dim=-2)
        outputs = outputs.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
        return (weights[..., None] * outputs).sum(dim=-2)


def with_early_experts(model):
    def keep(layer, args, more):
        layer.mlp.stream = args[0] if args else more["hidden_states"]
    for layer in model.model.layers:
        layer.mlp = EarlyExperts(model.config)
        layer.register_forward_pre_hook(keep, with_kwargs=True)
    return model


def with_plain_shared(model):
    """DeepSeek 1: the shared expert has no gate."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "shared_expert_gate"):
            del layer.mlp.shared_expert_gate
            layer.mlp.shared_expert_gate = lambda x: torch.full((*x.shape[:-1], 1), 40.0)
    return model


def with_limits(model):
    """Maple: experts limit gate and up; layers without a window have no positions."""
    limit = model.config.expert_limit
    for kind, layer in zip(model.config.layer_types, model.model.layers):
        experts = layer.mlp.experts
        if limit:
            experts.of_gate = lambda gate: torch.nn.functional.silu(gate.clamp(max=limit))
            experts.limit, experts.forward = limit, MethodType(limited, experts)
        if kind == "full_attention" and model.config.nope_on_global_attention:
            layer.self_attn.register_forward_pre_hook(unrotated, with_kwargs=True)
    return model


def limited(self, x, chosen, weights):
    """The weighted sum of experts, computed of all experts for all rows."""
    gate, up = torch.einsum("nhd,td->tnh", self.gate_up_proj, x).chunk(2, dim=-1)
    out = torch.einsum("ndh,tnh->tnd", self.down_proj, self.of_gate(gate) * up.clamp(-self.limit, self.limit))
    return (out.gather(1, chosen[..., None].expand(-1, -1, out.shape[-1])) * weights[..., None]).sum(dim=1)


def unrotated(layer, args, more):
    cos, sin = more["position_embeddings"]
    return args, more | {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}


class LoopedLayers(torch.nn.ModuleList):
    """Nanbeige 4.2: the layers run several times; between two rounds the stream passes the final norm."""
    def loop(self, rounds, norm):
        self.rounds, self.norm = rounds, [norm] if norm else []  # a list: its weights belong to the model
        return self

    def __getitem__(self, which):
        if not isinstance(which, slice):
            return super().__getitem__(which)
        def end(*args, layer=list(self)[-1], **more):
            out = layer(*args, **more)
            return self.norm[0](out) if self.norm else out
        return (list(self)[:-1] + [end]) * (self.rounds - 1) + list(self)


def looped(model):
    norm = None if model.config.skip_loop_final_norm else model.model.norm
    model.model.layers = LoopedLayers(model.model.layers).loop(model.config.num_loops, norm)
    return model


# What a config has that is not transformers' -> what it makes of the model.
EDITS = {"parts": without_parts, "sigmoid_gates": with_sigmoid_gates, "moe_num_primary_experts": with_early_experts,
         "plain_shared_expert": with_plain_shared, "num_loops": looped, "expert_limit": with_limits,
         "unscaled_embedding": with_plain_embedding, "plain_act": with_plain_mlps, "norm_groups": with_groups, "res_block": with_residuals,
         "experts_at_input": with_residual_mlps}


MAKERS = {}  # model_type -> class of text models that transformers has as a part of others alone


def from_config(config):
    """A model whose layers or head transformers does not have as they are; None: it has them."""
    if make := MAKERS.get(config.model_type):
        return make._from_config(config, attn_implementation="eager").float().eval()
    if getattr(config, "text_alone", False):
        return Alone(config).float().eval()
    edits = [edit for key, edit in EDITS.items() if hasattr(config, key)]
    if not edits:
        return None
    return edits[0](hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager")).float().eval()
