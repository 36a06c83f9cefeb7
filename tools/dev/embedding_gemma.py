"""EmbeddingGemma 2 for make_encoder_models.py: its file, and mistakes that tests must notice."""
import torch

import encoder_vocabularies as vocabularies
import own_files

MODEL = {"embed_tokens": "token_embd", "ple.per_layer_model_projection": "per_layer_model_proj",
         "ple.per_layer_projection_norm": "per_layer_proj_norm", "norm": "output_norm",
         "embedding_projection": "output"}
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "post_attention_norm",
         "pre_feedforward_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "post_feedforward_layernorm": "post_ffw_norm",
         "ple_block.per_layer_input_gate": "inp_gate", "ple_block.per_layer_projection": "proj",
         "ple_block.post_per_layer_input_norm": "post_norm", "layer_scalar": "layer_output_scale"}


def write_file(path, model):
    c = model.config
    full, window = (c.per_layer_config[c.layer_types.index(kind)] for kind in ("full_attention", "sliding_attention"))
    keys = {
        "context_length": c.max_position_embeddings, "block_count": c.num_hidden_layers,
        "embedding_length": c.hidden_size, "embedding_length_out": c.embedding_dim,
        "embedding_length_per_layer_input": c.hidden_size_per_layer_input, "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": [c.per_layer_config[l].num_key_value_heads for l in range(c.num_hidden_layers)],
        "attention.key_length": full.head_dim, "attention.value_length": full.head_dim,
        "attention.key_length_swa": window.head_dim, "attention.value_length_swa": window.head_dim,
        "rope.dimension_count": full.head_dim, "rope.dimension_count_swa": window.head_dim,
        "rope.freq_base": c.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_swa": c.rope_parameters["sliding_attention"]["rope_theta"],
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps, "attention.sliding_window": 2 * c.sliding_window,
        "attention.sliding_window_pattern": [kind != "full_attention" for kind in c.layer_types],
        "attention.causal": False, "pooling_type": 1}
    own_files.write(path, "gemma-embedding2", keys, own_files.named(model.state_dict(), MODEL, LAYER), vocabularies.write_gemma)


def each_layer(change):
    return lambda encoder: [change(layer) for layer in encoder.model.layers]


def plain_values(layer):
    layer.self_attn.v_norm = torch.nn.Identity()


def scaled_scores(layer):
    layer.self_attn.scaling = layer.self_attn.head_dim ** -0.5


MISTAKES = {"no inputs of layers": each_layer(lambda l: l.ple_block.post_per_layer_input_norm.weight.zero_()),
            "inputs of the next layer": lambda e: e.model.ple.per_layer_model_projection.weight.copy_(
                e.model.ple.per_layer_model_projection.weight.roll(e.model.ple.hidden_size_per_layer_input, 0)),
            "no output scale": each_layer(lambda l: l.layer_scalar.fill_(1.0)),
            "values without norm": each_layer(plain_values), "scores scaled": each_layer(scaled_scores),
            "embedding not scaled": lambda e: e.model.embed_tokens.embed_scale.fill_(1.0)}
