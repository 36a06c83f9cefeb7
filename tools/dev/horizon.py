"""K2 Horizon for make_family_models.py: dots.llm1 of transformers with norms of groups of channels, norms of heads that
have weights of their own, a gate of attention; its file. After llama.cpp's src/models/k2-horizon.cpp and
conversion/k2_horizon.py."""
import torch
import transformers as hf

import own_files

MODEL = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.g_proj": "attn_gate", "self_attn.o_proj": "attn_output",
         "self_attn.v_proj.router": "attn_v_gate", "self_attn.v_proj.bias": "attn_v_gate.bias",
         "self_attn.v_proj.experts": "attn_v_exps", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
         "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.experts.gate_proj": "ffn_gate_exps",
         "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp"}


class GroupNorm(torch.nn.Module):
    """Divides each of so many parts of a row by its RMS."""
    def __init__(self, size, groups, eps):
        super().__init__()
        self.weight, self.groups, self.eps = torch.nn.Parameter(torch.ones(size)), groups, eps

    def forward(self, x):
        parts = x.unflatten(-1, (self.groups, -1))
        return torch.nn.functional.rms_norm(parts, parts.shape[-1:], eps=self.eps).flatten(-2) * self.weight


class HeadNorm(torch.nn.Module):
    """Of (.., heads, channels): each head by its own weights."""
    def __init__(self, heads, channels, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(heads * channels)), eps

    def forward(self, x):
        normed = torch.nn.functional.rms_norm(x, x.shape[-1:], eps=self.eps)
        return normed * self.weight.view(-1, x.shape[-1])


class ValueExperts(torch.nn.Module):
    """In place of the matrix of values: the weighted sum of silu(w x) of the chosen ones."""
    def __init__(self, config):
        super().__init__()
        c, rows = config, config.num_key_value_heads * config.head_dim
        self.config, n = c, c.value_experts
        self.router = torch.nn.Linear(c.hidden_size, n, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(n))
        self.experts = torch.nn.Parameter(torch.zeros(n, rows, c.hidden_size))

    def forward(self, x):
        c = self.config
        weights = self.router(x).sigmoid()
        chosen = (weights + self.bias).topk(c.value_experts_used, dim=-1).indices
        best = weights.gather(-1, chosen)
        if c.norm_values:
            best = best / best.sum(dim=-1, keepdim=True)
        made = torch.einsum("btd,end->bten", x, self.experts)
        if c.value_silu:
            made = torch.nn.functional.silu(made)
        made = made.gather(-2, chosen[..., None].expand(*chosen.shape, made.shape[-1]))
        return (best[..., None] * made).sum(dim=-2) * c.routed_scaling_factor


class GatedOut(torch.nn.Module):
    """What follows attention: a gate of what attention reads, then the last matrix."""
    def __init__(self, attention, matrix):
        super().__init__()
        self.attention, self.matrix = [attention], matrix

    def forward(self, x):
        gate = self.attention[0].g_proj(self.attention[0].stream)
        return self.matrix(x * torch.nn.functional.softplus(gate, self.attention[0].softness))


def horizon(groups, heads=True, gate=True, values=0, **shape):
    """A config; values: experts of values. shape: of dots.llm1."""
    config = hf.Dots1Config(**shape)
    config.norm_groups, config.own_heads, config.gated = groups, heads, gate
    config.softness = 0.6931471805599453
    config.value_experts, config.value_experts_used, config.norm_values, config.value_silu = values, 2, True, True
    return config


def with_groups(model):
    c = model.config
    norm = lambda: GroupNorm(c.hidden_size, c.norm_groups, c.rms_norm_eps)
    model.model.norm = norm()

    def keep(attention, args, more):
        attention.stream = args[0] if args else more["hidden_states"]
    for l, layer in enumerate(model.model.layers):
        layer.input_layernorm, layer.post_attention_layernorm = norm(), norm()
        a = layer.self_attn
        head = lambda n: HeadNorm(n, c.head_dim, c.rms_norm_eps) if c.own_heads else torch.nn.Identity()
        a.q_norm, a.k_norm = head(c.num_attention_heads), head(c.num_key_value_heads)
        if c.value_experts and l >= c.first_k_dense_replace:
            a.v_proj = ValueExperts(c)
        if c.gated:
            a.softness = c.softness
            a.g_proj = torch.nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
            a.o_proj = GatedOut(a, a.o_proj)
            a.register_forward_pre_hook(keep, with_kwargs=True)
    return model


def write_file(path, model, vocabulary):
    c = model.config
    experts = c.first_k_dense_replace < c.num_hidden_layers
    keys = {
        "context_length": c.max_position_embeddings, "block_count": c.num_hidden_layers,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads, "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": c.head_dim, "attention.value_length": c.head_dim, "rope.dimension_count": c.head_dim,
        "rope.freq_base": c.rope_parameters["rope_theta"], "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "attention.group_norm_groups": c.norm_groups}
    if experts:
        keys |= {"expert_count": c.n_routed_experts, "expert_used_count": c.num_experts_per_tok,
                 "expert_feed_forward_length": c.moe_intermediate_size,
                 "expert_shared_feed_forward_length": c.moe_intermediate_size * c.n_shared_experts,
                 "expert_shared_count": c.n_shared_experts, "leading_dense_block_count": c.first_k_dense_replace,
                 "expert_weights_norm": c.norm_topk_prob, "expert_weights_scale": c.routed_scaling_factor,
                 "expert_gating_func": 2, "moe_every_n_layers": 1}
    if c.value_experts:
        keys |= {"attention.value_expert_count": c.value_experts,
                 "attention.value_expert_used_count": c.value_experts_used}
    tensors = {name.replace("o_proj.matrix", "o_proj"): t for name, t in model.state_dict().items()}
    for name in [n for n in tensors if n.endswith("experts.gate_up_proj")]:
        both = tensors.pop(name)
        for part, half in zip(("gate_proj", "up_proj"), both.chunk(2, dim=1)):
            tensors[name.replace("gate_up_proj", part)] = half.contiguous()
    own_files.write(path, "k2-horizon", keys, own_files.named(tensors, MODEL, LAYER), vocabulary)
