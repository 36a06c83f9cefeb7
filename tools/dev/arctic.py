"""Arctic for make_expert_models.py: Mixtral of transformers with a dense MLP behind attention, whose experts read what
attention reads; its file. After llama.cpp's src/models/arctic.cpp and conversion/arctic.py."""
import copy

import torch
import transformers as hf
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.mixtral import modeling_mixtral as mixtral

import own_files

MODEL = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
LAYER = {"input_layernorm": "attn_norm", "residual_layernorm": "ffn_norm", "post_attention_layernorm": "ffn_norm_exps",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "residual_mlp.gate_proj": "ffn_gate", "residual_mlp.up_proj": "ffn_up",
         "residual_mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.experts.gate": "ffn_gate_exps",
         "mlp.experts.up": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps"}


class Layer(mixtral.MixtralDecoderLayer):
    def __init__(self, c, l):
        super().__init__(c, l)
        self.config, square = c, copy.copy(c)
        square.intermediate_size = c.hidden_size
        square.mlp_bias = False
        self.residual_layernorm = mixtral.MixtralRMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.residual_mlp = LlamaMLP(square)

    def forward(self, hidden_states, **more):
        x = hidden_states
        attended = x + self.self_attn(hidden_states=self.input_layernorm(x), **more)[0]
        made = self.mlp(self.post_attention_layernorm(x if self.config.experts_at_input else attended))
        return attended + self.residual_mlp(self.residual_layernorm(attended)) + made


def arctic(**shape):
    """A config; shape: of Mixtral."""
    c = hf.MixtralConfig(**shape)
    c.experts_at_input = True
    return c


def with_residual_mlps(model):
    model.model.layers = torch.nn.ModuleList(Layer(model.config, l) for l in range(model.config.num_hidden_layers))
    return model


def norms_exchanged(model):
    """A wrong program."""
    for layer in model.model.layers:
        a, b = layer.residual_layernorm, layer.post_attention_layernorm
        layer.residual_layernorm, layer.post_attention_layernorm = b, a


def write_file(path, model, vocabulary):
    c = model.config
    head = c.hidden_size // c.num_attention_heads
    keys = {
        "context_length": c.max_position_embeddings, "block_count": c.num_hidden_layers,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size, "vocab_size": c.vocab_size,
        "attention.head_count": c.num_attention_heads, "attention.head_count_kv": c.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps, "rope.dimension_count": head,
        "rope.freq_base": c.rope_parameters["rope_theta"], "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok}
    tensors = dict(model.state_dict())
    for name, t in list(tensors.items()):
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), tensors.pop(name).chunk(2, dim=1)):
                tensors[name.replace("gate_up_proj", part)] = half.contiguous()
        elif name.endswith(("q_proj.weight", "k_proj.weight")):  # pairs of halves become pairs of neighbours
            tensors[name] = t.unflatten(0, (-1, 2, head // 2)).transpose(1, 2).flatten(0, 2).contiguous()
    own_files.write(path, "arctic", keys, own_files.named(tensors, MODEL, LAYER), vocabulary)
