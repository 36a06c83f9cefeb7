"""Kimi K3 for make_recurrent_models.py: Kimi Linear of transformers with attention residuals, experts in latents,
capped SwiGLU, bounded decays, a gate of latent attention and gates of states by one matrix; its file. After
llama.cpp's src/models/kimi-k3.cpp and conversion/kimi_k3.py."""
import torch
import transformers as hf
from torch import nn
from torch.nn.functional import rms_norm
from transformers.models.kimi_linear import modeling_kimi_linear as kimi

import own_files

MODEL = {"embed_tokens": "token_embd", "norm": "output_norm", "norm.norm": "output_norm",
         "norm.attended": "output_res_score", "lm_head": "output"}
LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "attn_attended": "attn_res_score", "mlp_attended": "ffn_res_score",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.forget_gate.f_a_proj": "ssm_f_a", "self_attn.forget_gate.f_b_proj": "ssm_f_b",
         "self_attn.forget_gate.dt_bias": "ssm_dt.bias", "self_attn.b_proj": "ssm_beta",
         "self_attn.g_b_proj": "ssm_g", "self_attn.o_norm": "ssm_norm", "self_attn.o_proj": "attn_output",
         "self_attn.o_proj.matrix": "attn_output", "self_attn.g_proj": "attn_gate",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
         "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate": "ffn_gate_inp", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
         "mlp.routed_down": "ffn_routed_down", "mlp.routed_norm": "ffn_routed_norm", "mlp.routed_up": "ffn_routed_up",
         "mlp.experts.gate": "ffn_gate_exps", "mlp.experts.up": "ffn_up_exps", "mlp.experts.down": "ffn_down_exps",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp"}


def capped_glu(c, gate, up):
    if c.up_cap > 0:
        up = c.up_cap * torch.tanh(up / c.up_cap)
    return c.gate_cap * torch.tanh(gate / c.gate_cap) * torch.sigmoid(gate) * up


class Attended(nn.Module):
    """The mean of streams (n, .., channels), weighted by how well a vector matches each."""
    def __init__(self, c):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(c.hidden_size)), c.rms_norm_eps

    def scores(self, streams):
        return (rms_norm(streams, streams.shape[-1:], eps=self.eps) * self.weight).sum(dim=-1, keepdim=True)

    def forward(self, streams):
        return (self.scores(streams).softmax(dim=0) * streams).sum(dim=0)


class Layer(kimi.KimiLinearDecoderLayer):
    """Its input are all streams, but of the first layer; so is its output."""
    def __init__(self, c, l):
        super().__init__(c, l)
        self.begins = l % c.res_block == 0
        self.attn_attended, self.mlp_attended = Attended(c), Attended(c)
        self.mlp = Mixture(c) if c.mlp_layer_types[l] == "sparse" else Mlp(c)
        a = self.self_attn
        if self.block_type == "linear_attention":
            a.forget_gate = ForgetGate(c)
            a.g_a_proj, a.g_b_proj = nn.Identity(), nn.Linear(c.hidden_size, a.qkv_dim, bias=False)
        else:
            a.g_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.v_head_dim, bias=False)
            a.o_proj = GatedOut(a)

    def forward(self, hidden_states, attention_mask=None, **more):
        streams = hidden_states if hidden_states.dim() == 4 else hidden_states[None]
        x = self.input_layernorm(self.attn_attended(streams))
        self.self_attn.read = x
        made = self.self_attn(hidden_states=x, attention_mask=attention_mask, **more)
        made = made[0] if isinstance(made, tuple) else made
        added = [streams, made[None]] if self.begins else [streams[:-1], streams[-1:] + made]
        streams = torch.cat(added)
        made = self.mlp(self.post_attention_layernorm(self.mlp_attended(streams)))
        return torch.cat([streams[:-1], streams[-1:] + made])


class AttendedNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attended, self.norm = Attended(c), kimi.KimiLinearRMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, streams):
        return self.norm(self.attended(streams))


class ForgetGate(kimi.KimiLinearForgetGate):
    def __init__(self, c):
        super().__init__(c)
        self.bound = c.decay_bound

    def forward(self, x):
        g = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).unflatten(-1, (-1, self.head_dim))
        return self.bound * torch.sigmoid(self.A_log.exp() * g)


class GatedOut(nn.Module):
    """What follows attention: a gate of what attention reads, then the last matrix."""
    def __init__(self, attention):
        super().__init__()
        self.attention, self.matrix = [attention], attention.o_proj

    def forward(self, x):
        a = self.attention[0]
        return self.matrix(x * torch.sigmoid(a.g_proj(a.read)))


class Mlp(kimi.KimiLinearMLP):
    def forward(self, x):
        return self.down_proj(capped_glu(self.config, self.gate_proj(x), self.up_proj(x)))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, n, width, inside = c, c.num_local_experts, c.latent, c.moe_intermediate_size
        self.gate, self.up = (nn.Parameter(torch.zeros(n, inside, width)) for _ in range(2))
        self.down = nn.Parameter(torch.zeros(n, width, inside))

    def forward(self, x, weights, chosen):
        made = [torch.einsum("td,ehd->teh", x, w) for w in (self.gate, self.up)]
        made = torch.einsum("teh,edh->ted", capped_glu(self.config, *made), self.down)
        return (weights[..., None] * made.gather(1, chosen[..., None].expand(*chosen.shape, x.shape[-1]))).sum(dim=1)


class Mixture(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate, self.experts = kimi.KimiLinearTopkRouter(c), Experts(c)
        self.routed_down = nn.Linear(c.hidden_size, c.latent, bias=False)
        self.routed_norm = kimi.KimiLinearRMSNorm(c.latent, c.rms_norm_eps)
        self.routed_up = nn.Linear(c.latent, c.hidden_size, bias=False)
        self.shared_experts = Mlp(c, c.moe_intermediate_size * c.n_shared_experts)

    def forward(self, x):
        _, weights, chosen = self.gate(x)
        made = self.experts(self.routed_down(x).flatten(0, -2), weights, chosen)
        return self.routed_up(self.routed_norm(made)).view(x.shape) + self.shared_experts(x)


def kimi_k3(res_block, latent, **shape):
    """A config; shape: of Kimi Linear."""
    c = hf.KimiLinearConfig(**shape)
    c.res_block, c.latent, c.decay_bound, c.gate_cap, c.up_cap = res_block, latent, -2.0, 0.75, 1.25
    return c


def with_residuals(model):
    c = model.config
    model.model.layers = nn.ModuleList(Layer(c, l) for l in range(c.num_hidden_layers))
    model.model.norm = AttendedNorm(c)
    return model


def each_attended(change):
    """A wrong program: change(m) of what reads the streams."""
    return lambda model: [change(m) for m in model.modules() if isinstance(m, Attended)]


def mean(m):
    m.scores = lambda streams: torch.zeros_like(streams[..., :1])


def unnormed(m):
    m.scores = lambda streams: (streams * m.weight).sum(dim=-1, keepdim=True)


def latest(m):
    m.forward = lambda streams: streams[-1]


def ungated(model):
    for layer in model.model.layers:
        if hasattr(layer.self_attn, "g_proj"):
            layer.self_attn.g_proj.weight.zero_()


def unnormed_experts(model):
    for layer in model.model.layers:
        if isinstance(layer.mlp, Mixture):
            layer.mlp.routed_norm = nn.Identity()


def exchanged_reads(model):
    for layer in model.model.layers:
        layer.attn_attended, layer.mlp_attended = layer.mlp_attended, layer.attn_attended


wrong = {"mean of streams": each_attended(mean), "streams match unnormed": each_attended(unnormed),
         "the latest stream alone": each_attended(latest), "reads of streams exchanged": exchanged_reads,
         "the latest stream at the end": lambda model: latest(model.model.norm.attended),
         "other blocks": {"res_block": 3}, "no cap of gates": {"gate_cap": 1e4}, "no cap of factors": {"up_cap": 0.0},
         "another bound": {"decay_bound": -1.0}, "no gate of attention": ungated,
         "no norm of experts": unnormed_experts}


def write_file(path, model, vocabulary):
    c = model.config
    key_length = c.qk_nope_head_dim + c.qk_rope_head_dim
    keys = {
        "context_length": c.max_position_embeddings, "block_count": c.num_hidden_layers,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size, "vocab_size": c.vocab_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": [int(kind == "full_attention") for kind in c.layer_types],
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps, "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "kda.head_dim": c.linear_head_dim, "kda.gate_lower_bound": c.decay_bound,
        "attention.q_lora_rank": c.q_lora_rank, "attention.kv_lora_rank": c.kv_lora_rank,
        "rope.dimension_count": c.qk_rope_head_dim, "attention.key_length": c.kv_lora_rank + c.qk_rope_head_dim,
        "attention.value_length": c.kv_lora_rank, "attention.key_length_mla": key_length,
        "attention.value_length_mla": c.v_head_dim, "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok, "expert_feed_forward_length": c.moe_intermediate_size,
        "expert_shared_count": c.n_shared_experts, "leading_dense_block_count": c.mlp_layer_types.count("dense"),
        "expert_weights_scale": c.routed_scaling_factor, "expert_weights_norm": c.norm_topk_prob,
        "expert_gating_func": 2, "expert_latent_length": c.latent, "activation.situ_beta": c.gate_cap,
        "activation.situ_linear_beta": c.up_cap, "attn_res.block_size": c.res_block}
    state = model.state_dict()
    tensors = own_files.named(state, MODEL, LAYER)
    for name, t in state.items():
        l, t = "blk." + "".join(name.split(".")[2:3]) + ".", t.float()
        if name.endswith("A_log"):
            tensors[f"{l}ssm_a"] = -t.exp().flatten().numpy()
        elif name.endswith("conv1d.weight"):
            for part, third in zip("qkv", t.chunk(3)):
                tensors[f"{l}ssm_conv1d_{part}.weight"] = third.numpy().reshape(1, third.shape[0], 1, -1)
        elif name.endswith("kv_b_proj.weight"):
            k, v = t.unflatten(0, (c.num_attention_heads, -1)).split([c.qk_nope_head_dim, c.v_head_dim], dim=1)
            tensors[f"{l}attn_k_b.weight"] = k.transpose(1, 2).contiguous().numpy()
            tensors[f"{l}attn_v_b.weight"] = v.contiguous().numpy()
    own_files.write(path, "kimi-k3", keys, tensors, vocabulary)
