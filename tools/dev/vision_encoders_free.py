"""Encoders of images of many shapes: Gemma 4's, MoonViT, SigLIP 2. See make_vision_models.py."""
import copy
import sys
import zlib

import torch
import transformers as hf
from transformers.models.kimi_k25 import modeling_kimi_k25 as kimi
from transformers.models.lfm2_vl import modeling_lfm2_vl as lfm2
from transformers.models.llama4 import modeling_llama4 as llama4

import make_family_models as families
from vision_encoders_clip import CLIP_LAYER
from vision_encoder import AFTER, BEFORE, DIM, GELU, TOLERANCE, Encoder, difference, permuted, with_tanh


def patches_of(pixels, p):
    """(patches, 3, p, p)"""
    h, w = pixels.shape[2] // p, pixels.shape[3] // p
    return pixels[0].reshape(3, h, p, w, p).permute(1, 3, 0, 2, 4).reshape(h * w, 3, p, p), h, w


class Gemma4(Encoder):
    """Of golden/tiny/gemma4.gguf; its rows are standardised."""
    name, text, eps, size, with_logits = "gemma4v", "gemma4", 1e-6, (24, 36), True
    layer = {"self_attn.q_proj.linear": "attn_q", "self_attn.k_proj.linear": "attn_k",
             "self_attn.v_proj.linear": "attn_v", "self_attn.o_proj.linear": "attn_out",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "ln1",
             "post_attention_layernorm": "attn_post_norm", "pre_feedforward_layernorm": "ln2",
             "post_feedforward_layernorm": "ffn_post_norm", "mlp.gate_proj.linear": "ffn_gate",
             "mlp.up_proj.linear": "ffn_up", "mlp.down_proj.linear": "ffn_down"}
    names = {"model.vision_tower.patch_embedder.input_proj": "v.patch_embd",
             "model.vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
             "model.vision_tower.encoder.layers.": "{}", "model.vision_tower.std_bias": "v.std_bias",
             "model.vision_tower.std_scale": "v.std_scale",
             "model.embed_vision.embedding_projection": "mm.input_projection"}
    vision, bidirectional, least = {"standardize": True}, "vision", 5
    mistakes = {"standardised": lambda c: setattr(c.vision_config, "standardize", False),
                "positions": lambda c: setattr(c.vision_config, "rope_parameters",
                                               {"rope_type": "axial", "rope_theta": 10000.0})}

    @classmethod
    def configs(cls):
        vision = hf.Gemma4VisionConfig(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3,
                                       num_key_value_heads=3, head_dim=8, patch_size=4, position_embedding_size=12,
                                       **cls.vision)
        vision.image_size = 8
        text = copy.deepcopy(families.models()[cls.text][0])
        text.use_bidirectional_attention = cls.bidirectional
        text.pad_token_id = 0
        config = hf.Gemma4Config(vision_config=vision, text_config=text, audio_config=None,
                                 image_token_id=text.vocab_size - 1, video_token_id=text.vocab_size - 2)
        config._attn_implementation = "eager"
        return config, cls.mistakes

    @classmethod
    def make(cls, config):
        model = hf.Gemma4ForConditionalGeneration(config)
        generator = torch.Generator().manual_seed(3)
        for name, b in sorted(model.model.vision_tower.named_buffers()):
            if "_min" in name or "_max" in name:
                b.copy_((0.6 + 0.5 * torch.rand((), generator=generator)) * (-1 if "_min" in name else 1))
            elif "std_" in name:
                b.copy_(("scale" in name) + 0.4 * torch.randn(b.shape, generator=generator))
        return model

    def dim(self):
        return self.config.text_config.hidden_size

    def value(self, name, tensor):
        if "input_proj" in name:  # the file has channels outside of lines and columns
            p = self.config.vision_config.patch_size
            return tensor.reshape(-1, p, p, 3).permute(0, 3, 1, 2)
        return tensor.reshape(1) if tensor.dim() == 0 else tensor

    def patches(self, pixels):
        patches, h, w = patches_of(pixels, self.config.vision_config.patch_size)
        at = torch.tensor([[x, y] for y in range(h) for x in range(w)])
        return patches.permute(0, 2, 3, 1).reshape(1, h * w, -1), at[None]

    def rows(self, pixels):
        return self.model.model.get_image_features(*self.patches(pixels)).pooler_output[0]

    def logits(self, pixels):
        """Of a prompt with the image twice."""
        text = families.build(families.models()[self.text][0], zlib.crc32(self.text.encode()))
        self.model.model.language_model.load_state_dict(text.model.state_dict())
        self.model.lm_head.load_state_dict(text.lm_head.state_dict())
        values, at = self.patches(pixels)
        image = [self.config.image_token_id] * (at.shape[1] // 9)
        ids = torch.tensor([BEFORE + image + AFTER[:2] + image + AFTER])
        kinds = (ids == self.config.image_token_id).long()
        more = dict(pixel_values=torch.cat([values] * 2), image_position_ids=torch.cat([at] * 2), use_cache=False)

        def run(kinds):
            with torch.no_grad():
                return self.model(input_ids=ids, mm_token_type_ids=kinds, **more).logits[0]
        out = run(kinds)
        if self.bidirectional and difference(run(kinds * 0), out) < self.least * TOLERANCE:
            sys.exit(f"{self.name}: it hardly matters whether rows of an image see each other")
        return out.float().numpy()


class Gemma4WithInputs(Gemma4):
    """Of golden/tiny/gemma4_layer_inputs.gguf; projections have limits."""
    name, projector, text = "gemma4_layer_inputs", "gemma4v", "gemma4_layer_inputs"
    vision, bidirectional = {"use_clipped_linears": True}, None
    mistakes = {"limits": lambda c: setattr(c.vision_config, "use_clipped_linears", False)}

    def tensor_name(self, name):
        if name.endswith(("_min", "_max")) and "vision_tower" in name:  # beside the matrix
            module, _, limit = name.rpartition(".")
            return super().tensor_name(module + ".linear.weight").removesuffix("weight") + limit
        return super().tensor_name(name)


class MoonModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_tower = kimi.Kimi_K25VisionModel(config.vision_config)
        self.mm_projector = kimi.Kimi_K25MultimodalProjection(config)


class Kimi(Encoder):
    """MoonViT, in the order of channels of Kimi-VL."""
    name, eps, size, flags, keys = "kimivl", 1e-5, (16, 40), ["clip.use_gelu"], {"projector.scale_factor": 2}
    layer = {"norm1": "ln1", "norm2": "ln2", "attn.q_proj": "attn_q", "attn.k_proj": "attn_k", "attn.v_proj": "attn_v",
             "attn.proj": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
    names = {"vision_tower.patch_embed.proj": "v.patch_embd",
             "vision_tower.patch_embed.pos_emb.position_embeddings": "v.position_embd.weight",
             "vision_tower.layers.": "{}", "vision_tower.final_layernorm": "v.post_ln",
             "mm_projector.pre_norm": "mm.input_norm", "mm_projector.in_proj": "mm.1", "mm_projector.out_proj": "mm.2"}

    @staticmethod
    def configs():
        vision = dict(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3, patch_size=4,
                      pos_emb_height=6, pos_emb_width=6)
        config = hf.Kimi_K25Config(vision_config=vision, projection_hidden_size=24)
        config.text_config.hidden_size = DIM
        config.vision_config.image_size = 24
        config.vision_config._attn_implementation = "eager"
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                        "positions": lambda c: setattr(c.vision_config, "rope_parameters",
                                                       {"rope_type": "axial", "rope_theta": 3.0})}

    @staticmethod
    def make(config):
        return with_tanh(MoonModel(config))

    def value(self, name, tensor):
        if "q_proj" in name or "k_proj" in name:
            return permuted(tensor, 3)
        return tensor.reshape(36, 24) if "position" in name else tensor

    def rows(self, pixels):
        patches, h, w = patches_of(pixels, 4)
        out = self.model.vision_tower(patches, torch.tensor([[1, h, w]]))
        return self.model.mm_projector(out.pooler_output).reshape(-1, DIM)


class KimiK25(Kimi):
    """The same in the order of Kimi K2.5's files, with lines and columns of positions apart."""
    name = "kimik25"

    def value(self, name, tensor):
        if "q_proj" in name or "k_proj" in name:  # columns' pairs of channels, then lines'
            w = permuted(tensor, 3)
            return w.reshape(3, 2, 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
        return tensor if "position" in name else super().value(name, tensor)


class SiglipModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_tower = hf.Siglip2VisionModel(config.vision_config)
        self.multi_modal_projector = lfm2.Lfm2VlMultiModalProjector(config)


class Lfm2(Encoder):
    name, eps, size, flags, layer = "lfm2", 1e-6, (24, 40), ["clip.use_gelu"], CLIP_LAYER
    keys = {"projector.scale_factor": 2}
    names = {"vision_tower.embeddings.patch_embedding": "v.patch_embd",
             "vision_tower.embeddings.position_embedding": "v.position_embd",
             "vision_tower.encoder.layers.": "{}", "vision_tower.post_layernorm": "v.post_ln",
             "multi_modal_projector.layer_norm": "mm.input_norm", "multi_modal_projector.linear_1": "mm.1",
             "multi_modal_projector.linear_2": "mm.2"}

    @staticmethod
    def configs():
        vision = hf.Siglip2VisionConfig(hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                                        num_attention_heads=3, num_patches=64, patch_size=4, vision_use_head=False,
                                        hidden_act=GELU)
        config = hf.Lfm2VlConfig(vision_config=vision, text_config=hf.Lfm2Config(hidden_size=DIM, vocab_size=300),
                                 projector_hidden_size=40, projector_hidden_act=GELU, downsample_factor=2)
        config.vision_config.image_size = 32
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                        "norm": lambda c: setattr(c, "projector_use_layernorm", False)}

    @staticmethod
    def make(config):
        return SiglipModel(config)

    def value(self, name, tensor):  # the file has channels outside of lines and columns
        return tensor.reshape(-1, 4, 4, 3).permute(0, 3, 1, 2) if tensor.shape == (24, 48) else tensor

    def rows(self, pixels):
        patches, h, w = patches_of(pixels, 4)
        out = self.model.vision_tower(pixel_values=patches.permute(0, 2, 3, 1).reshape(1, h * w, -1),
                                      pixel_attention_mask=torch.ones(1, h * w),
                                      spatial_shapes=torch.tensor([[h, w]]))
        return self.model.multi_modal_projector(out.last_hidden_state.reshape(1, h, w, -1)).reshape(-1, DIM)


class Llama4Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_model = hf.Llama4VisionModel(config.vision_config)
        self.multi_modal_projector = llama4.Llama4MultiModalProjector(config)


class Llama4(Encoder):
    name, eps, size, flags = "llama4", 1e-5, (16, 16), ["clip.use_gelu"]
    keys = {"projector.scale_factor": 2}
    layer = {"input_layernorm": "ln1", "post_attention_layernorm": "ln2", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_out",
             "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
    names = {"vision_model.class_embedding": "v.class_embd",
             "vision_model.positional_embedding_vlm": "v.position_embd.weight",
             "vision_model.patch_embedding.linear": "v.patch_embd", "vision_model.layernorm_pre": "v.pre_ln",
             "vision_model.layernorm_post": "v.post_ln", "vision_model.model.layers.": "{}",
             "vision_model.vision_adapter.mlp.fc1": "mm.model.mlp.1",
             "vision_model.vision_adapter.mlp.fc2": "mm.model.mlp.2",
             "multi_modal_projector.linear_1": "mm.model.fc"}

    @staticmethod
    def configs():
        vision = dict(hidden_size=24, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3, image_size=16,
                      patch_size=4, pixel_shuffle_ratio=0.5, projector_input_dim=40, projector_output_dim=40,
                      vision_output_dim=40)
        config = hf.Llama4Config(vision_config=vision, text_config=dict(hidden_size=DIM, num_hidden_layers=1))
        config.vision_config._attn_implementation = "eager"
        return config, {"positions": lambda c: setattr(c.vision_config, "rope_parameters",
                                                       {"rope_type": "default", "rope_theta": 3.0})}

    @staticmethod
    def make(config):
        return with_tanh(Llama4Model(config))

    def rows(self, pixels):
        out = self.model.vision_model(pixels).last_hidden_state
        return self.model.multi_modal_projector(out.reshape(-1, out.shape[-1]))


ENCODERS = [Lfm2, Llama4, Gemma4, Gemma4WithInputs, Kimi, KimiK25]
