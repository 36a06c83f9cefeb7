#!/usr/bin/env python3
"""Writes tiny random vision encoders of each projector type, with the rows that HF transformers makes of an image.

make_vision_models.py OUT_DIR [NAME...]
Needs transformers, torch (the CPU is enough), numpy, gguf and pillow from PyPI; downloads no model.

Files per encoder, beside the model golden/tiny/llama.gguf (gemma3: gemma3.gguf), whose residual stream has DIM
channels: NAME.gguf (F32, architecture clip), NAME.pixels.npy (height, width, 3) u8, a tile; NAME.rows.npy (rows, DIM)
f32, what the encoder makes of it. mlp.logits.npy (T, vocab) f32: of the prompt BEFORE, the rows, AFTER;
gemma3.logits.npy: of BEFORE, the rows, the first two of AFTER, the rows, AFTER. The tests allow 1e-3 of the largest
value; the script fails if a trait of an encoder changes the rows by less than five times that.
GELU is its approximation with tanh everywhere, as in llama.cpp; transformers takes the exact one where a published
config says "gelu".

text.gguf is the same model with control tokens around images in its vocabulary, for make_vision_peer.py.
resize.FILTER.npy (n, m, 3) u8: the test image of SIZE with another size, by Pillow, which takes the horizontal
direction first for these; before version 13 it always did. tile.png, tile.webp, tile.jpg: mlp.pixels.npy as a file,
the first two without loss.
"""
import copy
import os
import sys
import zlib

import gguf
import numpy as np
import torch
import transformers as hf
from PIL import Image

import make_family_models as families
import make_recurrent_models as recurrent
import make_tiny_models as tiny

DIM, TOLERANCE = 32, 1e-3
BEFORE, AFTER = [1, 17, 200, 45], [9, 150, 33, 71, 12, 250]
GELU = "gelu_pytorch_tanh"
SIZE = 37, 23  # width and height of the image that is resized
MEAN, DEVIATION = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
TEXT = hf.LlamaConfig(hidden_size=DIM, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, vocab_size=300)


def fill(model, seed):
    """Random weights, large enough that each part matters."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "norm" in name and name.endswith("weight"):
                a = 1 + 0.3 * rng.standard_normal(p.shape)
            elif name.endswith("bias") or "lambda" in name:
                a = 0.4 * rng.standard_normal(p.shape)
            elif "embed" in name or "token" in name:
                a = 0.5 * rng.standard_normal(p.shape)
            else:
                a = (1.8 if "mlp" in name or "feed_forward" in name else 0.9) * rng.standard_normal(p.shape)
                a /= np.sqrt(p[0].numel())
            p.copy_(torch.from_numpy(a.astype(np.float32)))
    return model.float().eval()


def permuted(w, heads):
    """Rows of q and k in the order that rotates neighbouring channels (llama.cpp's converter)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


class Encoder:
    """name, the model, and how its tensors are called in the file."""
    keys, layer, projector = {}, {}, ""

    def __init__(self, config):
        torch.manual_seed(0)
        self.config = config
        self.model = fill(self.make(config), zlib.crc32(self.name.encode()))

    def file(self, path):
        v = self.config.vision_config
        w = gguf.GGUFWriter(path, "clip")
        w.add_bool("clip.has_vision_encoder", True)
        w.add_string("clip.projector_type", self.projector or self.name)
        for key, value in {"image_size": v.image_size if isinstance(v.image_size, int) else v.image_size[0],
                           "patch_size": v.patch_size if isinstance(v.patch_size, int) else v.patch_size[0],
                           "embedding_length": v.hidden_size, "feed_forward_length": v.intermediate_size,
                           "block_count": v.num_hidden_layers, "attention.head_count": v.num_attention_heads,
                           "projection_dim": self.dim(), **self.keys}.items():
            w.add_uint32("clip.vision." + key, value)
        w.add_float32("clip.vision.attention.layer_norm_epsilon", self.eps)
        w.add_array("clip.vision.image_mean", MEAN)
        w.add_array("clip.vision.image_std", DEVIATION)
        for key in self.flags:
            w.add_bool(key, True)
        for name, tensor in self.tensors():
            w.add_tensor(name, np.ascontiguousarray(tensor.detach().numpy().astype(np.float32)))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    def dim(self):
        return DIM

    def tensors(self):
        for name, tensor in self.model.named_parameters():
            to = self.tensor_name(name)
            if to:
                yield to, self.value(name, tensor)

    def value(self, name, tensor):
        return tensor

    def tensor_name(self, name):
        for old, new in self.names.items():
            if name.startswith(old):
                rest = name[len(old):]
                if "{}" not in new:
                    return new + rest
                number, rest = rest.split(".", 1)
                part, _, kind = rest.rpartition(".")
                if rest in self.layer:
                    return f"v.blk.{number}.{self.layer[rest]}"
                if part in self.layer:
                    return f"v.blk.{number}.{self.layer[part]}.{kind}"
                raise KeyError(name)
        return None


CLIP_LAYER = {"layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out", "mlp.fc1": "ffn_up",
              "mlp.fc2": "ffn_down"}


class Llava(Encoder):
    name, eps, flags, layer = "mlp", 1e-5, [], CLIP_LAYER
    names = {"model.vision_tower.embeddings.class_embedding": "v.class_embd",
             "model.vision_tower.embeddings.patch_embedding": "v.patch_embd",
             "model.vision_tower.embeddings.position_embedding": "v.position_embd",
             "model.vision_tower.pre_layrnorm": "v.pre_ln", "model.vision_tower.encoder.layers.": "{}",
             "model.multi_modal_projector.linear_1": "mm.0", "model.multi_modal_projector.linear_2": "mm.2"}
    size = (16, 16)

    @staticmethod
    def configs():
        vision = hf.CLIPVisionConfig(hidden_size=24, intermediate_size=36, num_hidden_layers=3, num_attention_heads=3,
                                     image_size=16, patch_size=4, hidden_act="quick_gelu", projection_dim=DIM)
        config = hf.LlavaConfig(vision_config=vision, text_config=TEXT, projector_hidden_act=GELU,
                                vision_feature_layer=-2)
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", GELU),
                        "the last layer": lambda c: setattr(c, "vision_feature_layer", -1)}

    @staticmethod
    def make(config):
        return hf.LlavaForConditionalGeneration(config)

    def rows(self, pixels):
        return self.model.model.get_image_features(pixel_values=pixels).pooler_output[0]


class Idefics(Encoder):
    name, eps, flags, layer = "idefics3", 1e-6, ["clip.use_gelu"], CLIP_LAYER
    keys = {"projector.scale_factor": 2, "preproc_image_size": 32}
    names = {"model.vision_model.embeddings.patch_embedding": "v.patch_embd",
             "model.vision_model.embeddings.position_embedding": "v.position_embd",
             "model.vision_model.post_layernorm": "v.post_ln", "model.vision_model.encoder.layers.": "{}",
             "model.connector.modality_projection.proj": "mm.model.fc"}
    size = (16, 16)

    @staticmethod
    def configs():
        vision = dict(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3, image_size=16,
                      patch_size=4, hidden_act=GELU)
        config = hf.Idefics3Config(vision_config=vision, text_config=TEXT, scale_factor=2, image_token_id=299)
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu")}

    @staticmethod
    def make(config):
        return hf.Idefics3ForConditionalGeneration(config)

    def rows(self, pixels):
        return self.model.model.get_image_features(pixel_values=pixels[None]).pooler_output[0]


class Pixtral(Encoder):
    name, eps, flags = "pixtral", 1e-5, ["clip.use_silu"]
    keys = {"spatial_merge_size": 2}
    layer = {"attention_norm": "ln1", "ffn_norm": "ln2", "attention.q_proj": "attn_q", "attention.k_proj": "attn_k",
             "attention.v_proj": "attn_v", "attention.o_proj": "attn_out", "feed_forward.gate_proj": "ffn_gate",
             "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down"}
    names = {"model.vision_tower.patch_conv": "v.patch_embd", "model.vision_tower.ln_pre": "v.pre_ln",
             "model.vision_tower.transformer.layers.": "{}", "model.multi_modal_projector.norm": "mm.input_norm",
             "model.multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
             "model.multi_modal_projector.linear_1": "mm.1", "model.multi_modal_projector.linear_2": "mm.2"}
    size = (16, 24)

    @staticmethod
    def configs():
        vision = hf.PixtralVisionConfig(hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                                        num_attention_heads=3, image_size=64, patch_size=4, hidden_act="silu",
                                        rope_parameters={"rope_type": "axial", "rope_theta": 10000.0})
        text = copy.deepcopy(TEXT)
        text.rms_norm_eps = 1e-5
        config = hf.Mistral3Config(vision_config=vision, text_config=text, projector_hidden_act=GELU,
                                   spatial_merge_size=2, vision_feature_layer=-1)
        return config, {"positions": lambda c: setattr(c.vision_config, "rope_parameters",
                                                       {"rope_type": "axial", "rope_theta": 100.0})}

    @staticmethod
    def make(config):
        return hf.Mistral3ForConditionalGeneration(config)

    def value(self, name, tensor):
        if "q_proj" in name or "k_proj" in name:
            return permuted(tensor, self.config.vision_config.num_attention_heads) if "vision_tower" in name else tensor
        return tensor

    def tensors(self):
        yield from super().tensors()
        yield "v.token_embd.img_break", torch.from_numpy(self.row_end())

    def row_end(self):
        return np.random.default_rng(1).standard_normal(DIM).astype(np.float32)

    def rows(self, pixels):
        rows = self.model.model.get_image_features(
            pixel_values=pixels, image_sizes=torch.tensor([pixels.shape[2:]])).pooler_output[0]
        width = pixels.shape[3] // 8
        lines = [rows[i:i + width] for i in range(0, len(rows), width)]
        end = torch.from_numpy(self.row_end())[None]
        return torch.cat([part for line in lines for part in (end, line)][1:])


class InternVl(Encoder):
    name, eps, flags = "internvl", 1e-6, ["clip.use_gelu"]
    keys = {"projector.scale_factor": 2, "preproc_min_tiles": 1, "preproc_max_tiles": 6}
    layer = {"layernorm_before": "ln1", "layernorm_after": "ln2", "attention.q_proj": "attn_q",
             "attention.k_proj": "attn_k", "attention.v_proj": "attn_v", "attention.projection_layer": "attn_out",
             "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "lambda_1": "ls1.weight", "lambda_2": "ls2.weight"}
    names = {"model.vision_tower.embeddings.cls_token": "v.class_embd",
             "model.vision_tower.embeddings.position_embeddings": "v.position_embd.weight",
             "model.vision_tower.embeddings.patch_embeddings.projection": "v.patch_embd",
             "model.vision_tower.encoder.layer.": "{}",
             "model.multi_modal_projector.layer_norm": "mm.model.mlp.0",
             "model.multi_modal_projector.linear_1": "mm.model.mlp.1",
             "model.multi_modal_projector.linear_2": "mm.model.mlp.3"}
    size = (16, 16)

    @staticmethod
    def configs():
        vision = hf.InternVLVisionConfig(hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                                         num_attention_heads=3, image_size=[16, 16], patch_size=[4, 4], hidden_act=GELU,
                                         attention_bias=True, layer_norm_eps=1e-6)
        config = hf.InternVLConfig(vision_config=vision, text_config=TEXT, projector_hidden_act=GELU,
                                   downsample_ratio=0.5, vision_feature_layer=-1)
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu")}

    @staticmethod
    def make(config):
        return hf.InternVLForConditionalGeneration(config)

    def value(self, name, tensor):
        if "position" in name:
            return tensor.reshape(tensor.shape[-2:])
        return tensor.reshape(-1) if "cls" in name else tensor

    def rows(self, pixels):
        return self.model.model.get_image_features(pixel_values=pixels, vision_feature_layer=-1,
                                                   vision_feature_select_strategy="default").pooler_output[0]


class Gemma3(Encoder):
    """Of golden/tiny/gemma3.gguf."""
    name, eps, flags, layer = "gemma3", 1e-6, ["clip.use_gelu"], CLIP_LAYER
    keys = {"projector.scale_factor": 2}
    names = {"model.vision_tower.embeddings.patch_embedding": "v.patch_embd",
             "model.vision_tower.embeddings.position_embedding": "v.position_embd",
             "model.vision_tower.post_layernorm": "v.post_ln", "model.vision_tower.encoder.layers.": "{}",
             "model.multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
             "model.multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight"}
    size = (16, 16)

    @staticmethod
    def configs():
        vision = dict(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3, image_size=16,
                      patch_size=4, hidden_act=GELU, vision_use_head=False)
        text = copy.deepcopy(families.models()["gemma3"][0])
        config = hf.Gemma3Config(vision_config=vision, text_config=text, mm_tokens_per_image=4,
                                 image_token_id=text.vocab_size - 1)
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu")}

    @staticmethod
    def make(config):
        config._attn_implementation = "eager"
        return hf.Gemma3ForConditionalGeneration(config)

    def value(self, name, tensor):
        return tensor + 1 if "soft_emb_norm" in name else tensor

    def rows(self, pixels):
        return self.model.model.get_image_features(pixel_values=pixels).pooler_output[0]

    def logits(self, pixels):
        """Of a prompt with the image twice, whose rows see each other."""
        text = families.build(self.config.text_config, zlib.crc32(b"gemma3"))
        self.model.model.language_model.load_state_dict(text.model.state_dict())
        self.model.lm_head.load_state_dict(text.lm_head.state_dict())
        image = [self.config.image_token_id] * 4
        ids = torch.tensor([BEFORE + image + AFTER[:2] + image + AFTER])
        kinds = (ids == self.config.image_token_id).long()
        two = torch.cat([pixels, pixels])
        with torch.no_grad():
            out = [self.model(input_ids=ids, pixel_values=two, token_type_ids=kinds * see, use_cache=False).logits[0]
                   for see in (1, 0)]
        if difference(out[1], out[0]) < 5 * TOLERANCE:
            sys.exit("gemma3: it hardly matters whether rows of an image see each other")
        return out[0].float().numpy()


class Qwen(Encoder):
    """Of golden/tiny/TEXT.gguf, as a model whose rows of images have lines and columns."""
    flags, keys, size = [], {"spatial_merge_size": 2}, (16, 40)
    # In transformers' order; the converter gives q, k and v of the first two tensors of their own.
    layer = {"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out", "mlp.fc1": "ffn_up",
             "mlp.fc2": "ffn_down"}
    names = {"model.visual.patch_embed.proj": "v.patch_embd", "model.visual.blocks.": "{}",
             "model.visual.merger.ln_q": "v.post_ln", "model.visual.merger.mlp.0": "mm.0",
             "model.visual.merger.mlp.2": "mm.2"}
    eps, sections, least = 1e-6, [2, 1, 1], 5

    @classmethod
    def text_config(cls):
        return tiny.models()[cls.text][1]

    @classmethod
    def text_model(cls):
        return tiny.build(cls.text_config(), zlib.crc32(cls.text.encode()))

    @classmethod
    def configs(cls):
        text = cls.text_config().to_dict()
        text["rope_parameters"] |= {"mrope_section": cls.sections} | cls.rope
        text.pop("model_type")
        vision = dict(depth=2, num_heads=3, in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2)
        config = cls.kinds[0](vision_config=vision | cls.vision, text_config=text, image_token_id=tiny.VOCAB - 1,
                              video_token_id=tiny.VOCAB - 2, vision_start_token_id=tiny.VOCAB - 3)
        config._attn_implementation = "eager"
        return config, cls.mistakes

    @classmethod
    def make(cls, config):
        model = cls.kinds[1](config)
        for m in model.model.visual.modules():  # tanh, as everywhere here
            for name, part in m.named_children():
                if isinstance(part, torch.nn.GELU):
                    setattr(m, name, torch.nn.GELU(approximate="tanh"))
        return model

    def dim(self):
        return self.config.text_config.hidden_size

    def file(self, path):
        v = self.config.vision_config
        v.image_size, v.num_hidden_layers, v.num_attention_heads = self.image_size, v.depth, v.num_heads
        wide = v.hidden_size
        if self.text == "qwen2" and self.name == "qwen2vl_merger":  # as the converter: these are other numbers
            v.hidden_size, v.intermediate_size = v.embed_dim, v.hidden_size
        super().file(path)
        v.hidden_size = wide

    def tensors(self):
        for name, tensor in super().tensors():
            if name == "v.patch_embd.weight":
                yield name, tensor[:, :, 0]
                yield name + ".1", tensor[:, :, 1]
            elif "attn_qkv" in name and self.splits:
                for part, third in zip("qkv", tensor.chunk(3)):
                    yield name.replace("attn_qkv", "attn_" + part), third
            else:
                yield name, tensor

    def patches(self, pixels):
        """As their processors have them: the four patches of a row one after the other, each with two frames."""
        p = self.config.vision_config.patch_size
        h, w = pixels.shape[2] // p, pixels.shape[3] // p
        x = pixels[0].reshape(3, h // 2, 2, p, w // 2, 2, p).permute(1, 4, 2, 5, 0, 3, 6)
        x = x[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, 2, -1, -1)
        return x.reshape(h * w, -1), torch.tensor([[1, h, w]])

    def rows(self, pixels):
        out = self.model.model.get_image_features(*self.patches(pixels))
        deep = getattr(out, "deepstack_features", None) or []
        parts = [x if torch.is_tensor(x) else torch.cat(x) for x in [out.pooler_output, *deep]]
        return torch.cat(parts)

    def logits(self, pixels):
        """Of a prompt with the image twice."""
        text = self.text_model()
        self.model.model.language_model.load_state_dict(text.model.state_dict())
        self.model.lm_head.load_state_dict(text.lm_head.state_dict())
        patches, grid = self.patches(pixels)
        image = [self.config.image_token_id] * int(grid.prod() // 4)
        ids = torch.tensor([BEFORE + image + AFTER[:2] + image + AFTER])
        kinds = (ids == self.config.image_token_id).int()
        more = dict(pixel_values=torch.cat([patches] * 2), image_grid_thw=torch.cat([grid] * 2), use_cache=False)
        with torch.no_grad():
            out = self.model(input_ids=ids, mm_token_type_ids=kinds, **more).logits[0]
            flat = torch.arange(ids.shape[1])[None, None].expand(3, 1, -1)
            wrong = self.model(input_ids=ids, mm_token_type_ids=kinds, position_ids=flat, **more).logits[0]
        if difference(wrong, out) < self.least * TOLERANCE:
            sys.exit(f"{self.name}: lines and columns change the logits by {difference(wrong, out):.1e} only")
        return out.float().numpy()


class Qwen2Vl(Qwen):
    name, text, splits, image_size, rope = "qwen2vl_merger", "qwen2", True, 560, {}
    kinds = hf.Qwen2VLConfig, hf.Qwen2VLForConditionalGeneration
    vision = dict(embed_dim=24, hidden_size=48, mlp_ratio=2, hidden_act="quick_gelu")
    mistakes = {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu")}


class Qwen25Vl(Qwen):
    """Its image is larger than a window of 112 pixels."""
    name, text, splits, image_size, rope, size = "qwen2.5vl_merger", "qwen2", True, 560, {}, (140, 168)
    kinds = hf.Qwen2_5_VLConfig, hf.Qwen2_5_VLForConditionalGeneration
    flags, keys = ["clip.use_silu"], Qwen.keys | {"n_wa_pattern": 2}
    layer = Qwen.layer | {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    vision = dict(hidden_size=16, num_heads=2, intermediate_size=24, out_hidden_size=48, patch_size=14,
                  window_size=112, fullatt_block_indexes=[1, 3], depth=3, hidden_act="silu")
    mistakes = {"windows": lambda c: setattr(c.vision_config, "window_size", 56),
                "layers without": lambda c: setattr(c.vision_config, "fullatt_block_indexes", [0])}


class Qwen3Vl(Qwen):
    name, text, splits, image_size, rope = "qwen3vl_merger", "qwen3", False, 16, {"mrope_interleaved": True}
    kinds = hf.Qwen3VLConfig, hf.Qwen3VLForConditionalGeneration
    sections, flags = [6, 5, 5], ["clip.use_gelu"]
    layer = Qwen.layer | {"mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"}
    names = {"model.visual.patch_embed.proj": "v.patch_embd", "model.visual.pos_embed": "v.position_embd",
             "model.visual.blocks.": "{}", "model.visual.merger.norm": "v.post_ln",
             "model.visual.merger.linear_fc1": "mm.0", "model.visual.merger.linear_fc2": "mm.2",
             "model.visual.deepstack_merger_list.0.norm": "v.deepstack.1.norm",
             "model.visual.deepstack_merger_list.0.linear_fc1": "v.deepstack.1.fc1",
             "model.visual.deepstack_merger_list.0.linear_fc2": "v.deepstack.1.fc2"}
    vision = dict(hidden_size=24, intermediate_size=36, out_hidden_size=32, num_position_embeddings=16,
                  deepstack_visual_indexes=[1], depth=3, hidden_act=GELU)
    mistakes = {"deep layer": lambda c: setattr(c.vision_config, "deepstack_visual_indexes", [0])}


class Qwen35(Qwen3Vl):
    """Of golden/tiny/qwen35.gguf, with recurrent layers."""
    name, projector, text, sections = "qwen35", "qwen3vl_merger", "qwen35", [2, 1, 1]
    least = 3  # one of four layers attends, and rotates half of its channels
    kinds = hf.Qwen3_5Config, hf.Qwen3_5ForConditionalGeneration
    vision = dict(hidden_size=24, intermediate_size=36, out_hidden_size=32, num_position_embeddings=16, depth=2,
                  hidden_act=GELU)
    mistakes = {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu")}

    @classmethod
    def text_config(cls):
        return recurrent.models()[cls.text][0]

    @classmethod
    def text_model(cls):
        return families.build(cls.text_config(), zlib.crc32(cls.text.encode()))


ENCODERS = [Llava, Idefics, Pixtral, InternVl, Gemma3, Qwen2Vl, Qwen25Vl, Qwen3Vl, Qwen35]


def pixel_values(pixels):
    x = (torch.from_numpy(pixels.astype(np.float32)) / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    return x.permute(2, 0, 1)[None].float()


def text_model():
    """That of golden/tiny/llama.gguf."""
    return tiny.build(tiny.models()["llama"][1], zlib.crc32(b"llama"))


def write_text_model(path):
    tokens, scores, types = tiny.vocabulary()
    names = ["<fake_token_around_image>", "<global-img>", "[IMG_END]", "<img>", "</img>"]
    names += [f"<row_{r}_col_{c}>" for r in (1, 2) for c in (1, 2)]
    for at, (name, kind) in enumerate([(n, 3) for n in names] + [("\n\n", 4)], tiny.VOCAB - 15):
        tokens[at], scores[at], types[at] = name.encode(), 0.0, kind
    newline = tokens.index(b"<0x0A>")  # as a token that is found in any text, as in vocabularies of byte-level BPE
    tokens[newline], types[newline] = b"\n", 4
    original, tiny.vocabulary = tiny.vocabulary, lambda: (tokens, scores, types)
    tiny.write_gguf(path, "llama", text_model())
    tiny.vocabulary = original


def test_image(width, height):
    """The same as in tests/device/test_images.cpp."""
    y, x, c = np.indices((height, width, 3))
    return (x * 7 + y * 13 + c * 50 + x * y % 31 * 3 & 255).astype(np.uint8)


def write_resized(out):
    image = Image.fromarray(test_image(*SIZE))
    for name, size, how in [("bilinear", (20, 50), Image.BILINEAR), ("bicubic", (15, 61), Image.BICUBIC),
                            ("lanczos", (16, 16), Image.LANCZOS)]:
        np.save(f"{out}/resize.{name}.npy", np.asarray(image.resize(size, how)))


def difference(a, b):
    return float((a - b).abs().max() / b.abs().max())


def prompt_logits(rows):
    """Of golden/tiny/llama.gguf."""
    model = text_model()
    with torch.no_grad():
        embed = model.get_input_embeddings()
        parts = [embed(torch.tensor(BEFORE)), rows, embed(torch.tensor(AFTER))]
        return model(inputs_embeds=torch.cat(parts)[None], use_cache=False).logits[0].float().numpy()


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    out, wanted = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    if not wanted:
        write_text_model(f"{out}/text.gguf")
        write_resized(out)
    for kind in ENCODERS:
        if wanted and kind.name not in wanted:
            continue
        config, mistakes = kind.configs()
        encoder = kind(config)
        pixels = np.random.default_rng(7).integers(0, 256, (*kind.size, 3)).astype(np.uint8)
        with torch.no_grad():
            rows = encoder.rows(pixel_values(pixels))
            changes = {}
            for what, mistake in mistakes.items():
                wrong = kind.configs()[0]
                mistake(wrong)
                changes[what] = difference(kind(wrong).rows(pixel_values(pixels)), rows)
                if changes[what] < 5 * TOLERANCE:
                    sys.exit(f"{kind.name}: {what} changes the rows by {changes[what]:.1e} only")
            flipped = encoder.rows(pixel_values(np.ascontiguousarray(pixels.transpose(1, 0, 2))))
            if flipped.shape == rows.shape and difference(flipped, rows) < 5 * TOLERANCE:
                sys.exit(f"{kind.name}: rows and columns of the image may be exchanged")
        encoder.file(f"{out}/{kind.name}.gguf")
        np.save(f"{out}/{kind.name}.pixels.npy", pixels)
        np.save(f"{out}/{kind.name}.rows.npy", rows.numpy())
        if kind is Llava:
            image = Image.fromarray(pixels)
            image.save(f"{out}/tile.png")
            image.save(f"{out}/tile.webp", lossless=True)
            image.save(f"{out}/tile.jpg", quality=95, subsampling=0)
        if kind is Llava:
            np.save(f"{out}/mlp.logits.npy", prompt_logits(rows))
        if kind in (Gemma3, Qwen2Vl, Qwen3Vl, Qwen35):
            np.save(f"{out}/{kind.name}.logits.npy", encoder.logits(pixel_values(pixels)))
        print(f"{kind.name}: {tuple(rows.shape)} rows, {os.path.getsize(f'{out}/{kind.name}.gguf')} bytes, "
              + ", ".join(f"{w} {c:.1e}" for w, c in changes.items()))


if __name__ == "__main__":
    main()
