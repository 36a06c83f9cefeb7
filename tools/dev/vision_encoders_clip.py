"""Encoders whose tiles are squares, and Pixtral's. See make_vision_models.py."""
import copy
import sys
import zlib

import numpy as np
import torch
import transformers as hf
from transformers.models.lighton_ocr import modeling_lighton_ocr as lighton

import make_family_models as families
from vision_encoder import AFTER, BEFORE, DIM, GELU, TEXT, TOLERANCE, Encoder, difference, permuted, with_tanh

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


class LightOnModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_encoder = hf.PixtralVisionModel(config.vision_config)
        self.vision_projection = lighton.LightOnOcrMultiModalProjector(config)


class LightOn(Pixtral):
    """Pixtral's without ends of lines."""
    name, eps = "lightonocr", 1e-5
    names = {"vision_encoder.patch_conv": "v.patch_embd", "vision_encoder.ln_pre": "v.pre_ln",
             "vision_encoder.transformer.layers.": "{}", "vision_projection.norm": "mm.input_norm",
             "vision_projection.patch_merger.merging_layer": "mm.patch_merger",
             "vision_projection.linear_1": "mm.1", "vision_projection.linear_2": "mm.2"}

    @staticmethod
    def configs():
        _, mistakes = Pixtral.configs()
        vision = hf.PixtralVisionConfig(hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                                        num_attention_heads=3, image_size=64, patch_size=4, hidden_act="silu",
                                        rope_parameters={"rope_type": "axial", "rope_theta": 10000.0})
        text = hf.Qwen3Config(hidden_size=DIM, intermediate_size=40, num_hidden_layers=1, rms_norm_eps=1e-5)
        return hf.LightOnOcrConfig(vision_config=vision, text_config=text, spatial_merge_size=2), mistakes

    @staticmethod
    def make(config):
        return with_tanh(LightOnModel(config))

    def value(self, name, tensor):
        return permuted(tensor, 3) if "q_proj" in name or "k_proj" in name else tensor

    def tensors(self):
        return Encoder.tensors(self)

    def rows(self, pixels):
        size = torch.tensor([pixels.shape[2:]])
        out = self.model.vision_encoder(pixels, image_sizes=size).last_hidden_state
        return self.model.vision_projection(out.squeeze(0), [tuple(pixels.shape[2:])])


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
    with_logits = True
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


ENCODERS = [Llava, Idefics, Pixtral, LightOn, InternVl, Gemma3]
