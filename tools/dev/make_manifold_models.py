#!/usr/bin/env python3
"""Writes tiny random checkpoints whose residual streams are joined by matrices, with the logits of HF transformers: as
make_family_models.py.

make_manifold_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
"""
import torch
import transformers as hf
from torch import nn
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.glm5_next import modeling_glm5_next as glm

from make_expert_models import zeroed
from make_family_models import base, each_attention, main  # first: it says where gguf is
from make_recurrent_models import changed, each_kimi, exchanged, one_decay, silu_gate
from index_models import another_choice, choices, clear_choice, own_choice
from pool_models import clear_pools, pools
from stream_models import each
from text_models import MAKERS


class GlmText(glm.Glm5NextPreTrainedModel):
    """The text model with its output, which transformers has beside a vision encoder alone."""
    config_class = hf.Glm5NextTextConfig
    __module__ = glm.__name__  # where logits_f16_kv() looks for attention
    _tied_weights_keys = {}

    def __init__(self, config):
        super().__init__(config)
        self.model = glm.Glm5NextTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **kwargs):
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids=input_ids, **kwargs).last_hidden_state))


MAKERS["glm5_next_text"] = GlmText


def connections(change):
    """A wrong program: change(m) of what joins the streams before and behind attention and MLP."""
    return each("hc_eps", change)


def another_connection(of):
    """A wrong program: of(m, outputs) -> outputs, of post, perhaps comb, and what attention or MLP reads."""
    def change(m):
        plain = m.forward
        m.forward = lambda x: of(m, *plain(x))
    return connections(change)


def one_round(m):
    m.hc_sinkhorn_iters = 1


def other_eps(m):
    m.hc_eps = 0.0


def exchange(model):
    for layer in model.model.layers:
        layer.attn_hc, layer.ffn_hc = layer.ffn_hc, layer.attn_hc


def first_at_the_end(model):
    model.model.hc_head.forward = lambda x: x[:, :, 0]


def mean_at_the_end(model):
    model.model.hc_head.forward = lambda x: x.mean(dim=2)


def no_sinks(a):
    a.sinks.fill_(-40.0)


def models():
    shape = dict(num_hidden_layers=4, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=40, qk_nope_head_dim=16,
                 v_head_dim=24, rms_norm_eps=1e-6, tie_word_embeddings=False)
    experts = dict(n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=1,
                   routed_scaling_factor=1.8, swiglu_limit=1.0)
    wrong = {"no shared expert": zeroed("shared_experts.down_proj"), "two experts": {"num_experts_per_tok": 2},
             "no bias of the choice of experts": zeroed("e_score_correction_bias"),
             "other limits": each("swiglu_limit", lambda m: setattr(m, "swiglu_limit", 10.0)),
             "connections exchanged": exchange, "no scales of connections": changed("hc.scale", lambda p: p.fill_(0.0)),
             "no bases of connections": changed("hc.base", lambda p: p.zero_())}
    deltas = {"one decay for a head": each_kimi(one_decay), "decays of other channels": each_kimi(exchanged),
              "rates of other heads": changed("A_log", lambda p: p.copy_(p.roll(1, dims=0))),
              "no bias of the decays": changed("dt_bias", lambda p: p.zero_()),
              "beta of one half": changed("b_proj.weight", lambda p: p.zero_()),
              "SiLU of the gate": each_kimi(silu_gate),
              "another bound": each("safe_gate_lower_bound", lambda m: setattr(m, "safe_gate_lower_bound", -1.0))}
    streams = {"one round": connections(one_round), "no mixing": another_connection(
                   lambda m, post, comb, x: (post, torch.eye(m.hc_mult).expand_as(comb), x)),
               "mixed the other way": another_connection(lambda m, post, comb, x: (post, comb.transpose(-1, -2), x)),
               "half of the outputs": another_connection(lambda m, post, comb, x: (post / 2, comb, x)),
               "the first stream at the end": first_at_the_end}
    gates = {"no epsilon": connections(other_eps), "mean at the end": mean_at_the_end,
             "no sinks": each_attention(no_sinks),
             "another magnitude": each("hc_post_magnitude", lambda m: setattr(m, "hc_post_magnitude", 2.0)),
             "no gate of attention": each_attention(lambda a: a.gate_proj.weight.zero_())}
    index = dict(index_topk=8, index_head_dim=64, index_n_heads=4)
    return {
        "glm5_next": (hf.Glm5NextTextConfig(**{k: v for k, v in base(
            **shape, **experts, **index, qk_rope_head_dim=0, linear_head_dim=16, linear_num_heads=4,
            linear_conv_kernel_dim=4, linear_lower_bound=-2.0, hc_eps=1e-6, hc_sinkhorn_iters=4, index_kpool=2,
            layer_types=["linear_attention", "indexed_attention"] * 2, indexer_types=["full"] * 4,
            mlp_layer_types=["dense"] + ["sparse"] * 3, pad_token_id=0).items() if k != "rope_parameters"}),
            wrong | deltas | streams | pools),
        "hy_v4": (hf.HYV4Config(**base(
            **shape, **experts, **index, qk_rope_head_dim=8, hc_magnitude=1.5, hc_eps=0.01,
            mlp_layer_types=["dense"] + ["sparse"] * 3, indexer_types=["full", "full", "shared", "shared"],
            pad_token_id=0)),
            wrong | gates | choices | {"no shared choice": own_choice, "the first channels rotated": another_choice(
                last=False), "pairs of neighbours": another_choice(pairs=True)}),
    }


if __name__ == "__main__":
    main(models, {}, {"glm5_next": clear_pools(21), "hy_v4": clear_choice(20)})
