"""Encoders of MiniCPM-V: SigLIP with a table of positions that is read at the nearest place. See
make_vision_models.py."""
import types

import numpy as np
import torch
import transformers as hf
from transformers.models.minicpmv4_6 import modeling_minicpmv4_6 as minicpm

from vision_encoder import DIM, Encoder
from vision_encoders_clip import CLIP_LAYER

SIDE = 70  # of the table of positions; llama.cpp takes it for granted
HEAD = 128  # channels of a head of the resampler


def strip_of(pixels):
    """All patches beside each other, and lines and columns."""
    h, w = pixels.shape[2] // 4, pixels.shape[3] // 4
    return pixels[0].reshape(3, h, 4, w, 4).permute(0, 2, 1, 3, 4).reshape(1, 3, 4, h * w * 4), h, w


def sines(width, dim):
    """Of width places, (width, dim)."""
    angles = np.arange(width)[:, None] * 10000.0 ** (-np.arange(dim // 2) / (dim // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class Resampler(torch.nn.Module):
    """As MiniCPM-V's published code has it: learned queries attend to the patches."""

    def __init__(self, config):
        super().__init__()
        dim = config.text_config.hidden_size
        self.query = torch.nn.Parameter(torch.zeros(config.queries, dim))
        self.kv_proj = torch.nn.Linear(config.vision_config.hidden_size, dim, bias=False)
        self.attn = torch.nn.MultiheadAttention(dim, dim // config.head)
        self.ln_q_norm, self.ln_kv_norm, self.ln_post_norm = (torch.nn.LayerNorm(dim, eps=config.norm)
                                                              for _ in range(3))
        self.proj = torch.nn.Linear(dim, dim, bias=False)
        self.places = config.places

    def forward(self, x, h, w):
        x = self.ln_kv_norm(self.kv_proj(x))
        dim = x.shape[1]
        columns, lines = np.tile(sines(w, dim // 2), (h, 1)), np.repeat(sines(h, dim // 2), w, axis=0)
        places = torch.from_numpy(np.concatenate([columns, lines], axis=1)).float() * self.places
        out = self.attn(self.ln_q_norm(self.query), x + places, x)[0]
        return self.proj(self.ln_post_norm(out))


class ResamplerModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vpm = minicpm.MiniCPMV4_6VisionModel(config.vision_config)
        self.resampler = Resampler(config)


class MiniCpm(Encoder):
    """2.6 to 4.5. Its image has fewer patches than there are queries. Beside vision/text256.gguf."""
    name, eps, size, flags, layer = "resampler", 1e-6, (12, 20), ["clip.use_gelu"], CLIP_LAYER
    names = {"vpm.embeddings.patch_embedding": "v.patch_embd", "vpm.embeddings.position_embedding": "v.position_embd",
             "vpm.post_layernorm": "v.post_ln", "vpm.encoder.layers.": "{}", "resampler.query": "resampler.query",
             "resampler.kv_proj": "resampler.kv", "resampler.ln_q_norm": "resampler.ln_q",
             "resampler.ln_kv_norm": "resampler.ln_kv", "resampler.ln_post_norm": "resampler.ln_post",
             "resampler.attn.out_proj": "resampler.attn.out", "resampler.proj": "resampler.proj"}
    queries = 20

    @classmethod
    def vision(cls):
        vision = hf.MiniCPMV4_6Config().vision_config.__class__(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE * 4,
            patch_size=4, layer_norm_eps=cls.eps, insert_layer_id=0)
        vision._attn_implementation = "eager"
        return vision

    @classmethod
    def configs(cls):
        config = types.SimpleNamespace(vision_config=cls.vision(), text_config=types.SimpleNamespace(hidden_size=256),
                                       queries=cls.queries, head=HEAD, norm=1e-6, places=1.0)
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                        "heads": lambda c: setattr(c, "head", 64), "places": lambda c: setattr(c, "places", 0.0),
                        "table": lambda c: setattr(c.vision_config, "image_size", 8),
                        "epsilon": lambda c: setattr(c.vision_config, "layer_norm_eps", 1.0)}

    def __init__(self, config):
        super().__init__(config)
        with torch.no_grad():  # as the file has them: two bytes for each
            for name, p in self.model.named_parameters():
                if self.halves(name):
                    p.copy_(p.half().float())

    @staticmethod
    def halves(name):
        return "position" in name or (name.startswith("resampler") and name.endswith("weight") and
                                      "norm" not in name and ".ln" not in name)

    @classmethod
    def make(cls, config):
        return ResamplerModel(config)

    def file(self, path):
        self.config.vision_config.image_size = 16  # of a slice
        super().file(path)

    def more_keys(self, w):
        w.add_int32("clip.minicpmv_version", 3)
        w.add_uint32("clip.minicpmv_query_num", self.queries)

    def type_of(self, name):
        return np.float16 if self.halves(name) else np.float32

    def dim(self):
        return 0

    def tensors(self):
        model = self.model
        for name, tensor in model.named_parameters():
            if "vit_merger" in name:
                continue
            if "in_proj" in name:
                kind = "weight" if "weight" in name else "bias"
                for part, value in zip("qkv", tensor.chunk(3)):
                    yield f"resampler.attn.{part}.{kind}", value
            else:
                yield self.tensor_name(name), tensor
        yield "resampler.pos_embed_k", torch.zeros(1, model.resampler.query.shape[1])  # llama.cpp wants it, unread

    def rows(self, pixels):
        flat, h, w = strip_of(pixels)
        out = self.model.vpm(flat, target_sizes=torch.tensor([[h, w]]), use_vit_merger=False).last_hidden_state
        return self.model.resampler(out[0], h, w)


class MergerModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_tower = minicpm.MiniCPMV4_6VisionModel(config.vision_config)
        self.merger = minicpm.MiniCPMV4_6Merger(config)


class MiniCpm46(MiniCpm):
    """Its patches are merged behind the first layer and at the end. Beside tiny/llama.gguf."""
    name, size, keys = "minicpmv4_6", (32, 48), {"projector.scale_factor": 4}
    names = {"vision_tower.embeddings.patch_embedding": "v.patch_embd",
             "vision_tower.embeddings.position_embedding": "v.position_embd",
             "vision_tower.post_layernorm": "v.post_ln", "vision_tower.encoder.layers.": "{}",
             "vision_tower.vit_merger.layer_norm1": "v.vit_merger.ln1",
             "vision_tower.vit_merger.self_attn.q_proj": "v.vit_merger.attn_q",
             "vision_tower.vit_merger.self_attn.k_proj": "v.vit_merger.attn_k",
             "vision_tower.vit_merger.self_attn.v_proj": "v.vit_merger.attn_v",
             "vision_tower.vit_merger.self_attn.out_proj": "v.vit_merger.attn_out",
             "vision_tower.vit_merger.pre_norm": "v.vit_merger.ds_ln",
             "vision_tower.vit_merger.linear_1": "v.vit_merger.ds_ffn_up",
             "vision_tower.vit_merger.linear_2": "v.vit_merger.ds_ffn_down",
             "merger.mlp.0.pre_norm": "mm.input_norm", "merger.mlp.0.linear_1": "mm.up",
             "merger.mlp.0.linear_2": "mm.down"}

    @classmethod
    def configs(cls):
        config = types.SimpleNamespace(vision_config=cls.vision(), text_config=types.SimpleNamespace(hidden_size=DIM),
                                       merge_kernel_size=(2, 2), merger_times=1)
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                        "the merger's layer": lambda c: setattr(c.vision_config, "insert_layer_id", 1),
                        "table": lambda c: setattr(c.vision_config, "image_size", 8),
                        "epsilon": lambda c: setattr(c.vision_config, "layer_norm_eps", 1.0)}

    @classmethod
    def make(cls, config):
        return MergerModel(config)

    def more_keys(self, w):
        w.add_array("clip.vision.wa_layer_indexes", [0])

    def dim(self):
        return DIM

    def tensors(self):
        return Encoder.tensors(self)

    def rows(self, pixels):
        flat, h, w = strip_of(pixels)
        out = self.model.vision_tower(flat, target_sizes=torch.tensor([[h, w]])).last_hidden_state
        return self.model.merger(out, torch.tensor([[h // 2, w // 2]]))[0]


ENCODERS = [MiniCpm, MiniCpm46]
