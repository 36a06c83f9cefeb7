"""Encoders of 2025 and 2026 whose rows have positions as text in the model. See make_vision_models.py."""
import types

import torch
import transformers as hf
from transformers.models.gemma4_unified import modeling_gemma4_unified as unified
from transformers.models.muse_glimmer import modeling_muse_glimmer as muse
from transformers.models.nemotron_h_omni import modeling_nemotron_h_omni as nemotron
from transformers.models.radio import modeling_radio as radio

import make_family_models as families
from vision_encoder import DIM, GELU, Encoder, permuted, with_tanh
from vision_encoders_free import Gemma4, Lfm2, patches_of
from vision_encoders_qwen import Qwen


class EmbedderModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        text = types.SimpleNamespace(hidden_size=config.text_config.hidden_size)
        self.vision_embedder = unified.Gemma4UnifiedVisionEmbedder(config.vision_config, text)


class Gemma4Unified(Gemma4):
    """Gemma 4 12B's, without a transformer. Of golden/tiny/gemma4.gguf."""
    name, size = "gemma4uv", (12, 18)
    keys = {"projector.scale_factor": 3}
    names = {"vision_embedder.patch_ln1": "v.patch_norm.1", "vision_embedder.patch_dense": "v.patch_embd",
             "vision_embedder.patch_ln2": "v.patch_norm.2",
             "vision_embedder.pos_embedding": "v.position_embd.weight", "vision_embedder.pos_norm": "v.patch_norm.3",
             "vision_embedder.multimodal_embedder.embedding_projection": "mm.input_projection"}

    @classmethod
    def configs(cls):
        vision = hf.Gemma4UnifiedVisionConfig(patch_size=2, pooling_kernel_size=3, mm_embed_dim=24, mm_posemb_size=12,
                                              output_proj_dims=24)
        vision.image_size, vision.hidden_size = 224, 24
        vision.intermediate_size = vision.num_hidden_layers = vision.num_attention_heads = 0
        config = types.SimpleNamespace(vision_config=vision, text_config=families.models()[cls.text][0], norm=1e-5,
                                       projector_norm=1e-6)
        return config, {"epsilon of the norms": lambda c: setattr(c, "norm", 0.3),
                        "epsilon of the projector": lambda c: setattr(c, "projector_norm", 0.3)}

    @classmethod
    def make(cls, config):
        model = EmbedderModel(config)
        for part in model.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.eps = config.norm
        model.vision_embedder.multimodal_embedder.embedding_pre_projection_norm.eps = config.projector_norm
        return model

    def value(self, name, tensor):
        if "patch_dense.weight" in name:  # the file has channels outside of lines and columns
            return tensor.reshape(-1, 6, 6, 3).permute(0, 3, 1, 2).reshape(tensor.shape)
        if "patch_ln1" in name:
            return tensor.reshape(6, 6, 3).permute(2, 0, 1).reshape(-1)
        return tensor.permute(1, 0, 2) if "pos_embedding" in name else tensor

    def patches(self, pixels):
        patches, h, w = patches_of(pixels, 6)
        at = torch.tensor([[x, y] for y in range(h) for x in range(w)])
        return patches.permute(0, 2, 3, 1).reshape(1, h * w, -1), at[None]

    def rows(self, pixels):
        return self.model.vision_embedder(*self.patches(pixels)).pooler_output[0]

    def logits(self, pixels):
        """In the model, rows are as Gemma 4's."""
        other = Gemma4(Gemma4.configs()[0])
        rows = self.rows(pixels)
        other.model.model.get_image_features = lambda *args, **more: types.SimpleNamespace(
            pooler_output=(rows, rows))
        other.patches = lambda pixels: (torch.zeros(1, 9 * len(rows), 1), torch.zeros(1, 9 * len(rows), 2))
        return other.logits(pixels)


class Phi4Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_tower = hf.Siglip2VisionModel(config.vision_config)
        self.vision_tower.post_layernorm = torch.nn.Identity()
        self.mm_projector = torch.nn.Sequential(torch.nn.Linear(24, DIM), torch.nn.GELU(), torch.nn.Linear(DIM, DIM))


class Phi4(Lfm2):
    """SigLIP 2 without its last layer; each patch becomes a row."""
    name, size, keys = "phi4", (12, 40), {"image_min_pixels": 2 * 16, "image_max_pixels": 256 * 16}
    names = {n: to for n, to in Lfm2.names.items() if n.startswith("vision_tower") and "post" not in n} | {
        "mm_projector.0": "mm.0", "mm_projector.2": "mm.2"}

    @staticmethod
    def configs():
        config = Lfm2.configs()[0]
        return config, {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                        "table": lambda c: setattr(c.vision_config, "num_patches", 36)}

    @staticmethod
    def make(config):
        return with_tanh(Phi4Model(config))

    def rows(self, pixels):
        patches, h, w = patches_of(pixels, 4)
        out = self.model.vision_tower(pixel_values=patches.permute(0, 2, 3, 1).reshape(1, h * w, -1),
                                      pixel_attention_mask=torch.ones(1, h * w), spatial_shapes=torch.tensor([[h, w]]))
        return self.model.mm_projector(out.last_hidden_state[0])


class MuseModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_tower = muse.MuseGlimmerVisionModel(config.vision_config)
        self.vision_adapter = muse.MuseGlimmerVisionAdapter(config)
        self.vision_projection = torch.nn.Linear(40, DIM, bias=False)
        self.perception_emb_norm = muse.MuseGlimmerRMSNorm(eps=1e-5, with_scale=False)


class Muse(Encoder):
    """Its image is larger than a window, which has as many patches as the table of positions."""
    name, projector, eps, size, keys = "muse-glimmer", "muse-glimmer", 1e-5, (16, 40), {"spatial_merge_size": 2}
    layer = {"norm1": "ln1", "norm2": "ln2", "attn.q_proj": "attn_q", "attn.k_proj": "attn_k", "attn.v_proj": "attn_v",
             "attn.proj": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
    names = {"vision_tower.patch_embedder.patch_embedding": "v.patch_embd",
             "vision_tower.patch_embedder.position_embedding_table": "v.position_embd",
             "vision_tower.ln_pre": "v.pre_ln", "vision_tower.ln_post": "v.post_ln", "vision_tower.layers.": "{}",
             "vision_adapter.fc1": "mm.0", "vision_adapter.fc2": "mm.1", "vision_projection": "mm.2"}

    @staticmethod
    def configs():
        vision = hf.MuseGlimmerVisionConfig(hidden_size=24, intermediate_size=36, num_hidden_layers=5,
                                            num_attention_heads=3, patch_size=4, pos_emb_height=3, pos_emb_width=3,
                                            max_position_embeddings=9)
        vision.image_size = 3 * 4 * 2
        vision._attn_implementation = "eager"
        config = types.SimpleNamespace(vision_config=vision, out_hidden_size=96, projector_hidden_size=40,
                                       projector_hidden_act="gelu")
        types_of = lambda wide: ["full_attention" if i in wide else "window_attention" for i in range(5)]
        return config, {"windows": lambda c: setattr(c.vision_config, "layer_types", types_of(range(5))),
                        "the last layer": lambda c: setattr(c.vision_config, "layer_types", types_of([3])),
                        "the fourth layer": lambda c: setattr(c.vision_config, "layer_types", types_of([4])),
                        "gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                        "positions": lambda c: setattr(c.vision_config, "rope_parameters",
                                                       {"rope_type": "axial", "rope_theta": 3.0})}

    @staticmethod
    def make(config):
        return MuseModel(config)

    def value(self, name, tensor):
        if "attn.q_proj" in name or "attn.k_proj" in name:
            return permuted(tensor, 3)
        return tensor.reshape(24, 2, 3, 4, 4).sum(1) if "patch_embedding" in name else tensor

    def rows(self, pixels):
        patches, h, w = patches_of(pixels, 4)
        frames = torch.stack([patches] * 2, dim=1).reshape(h * w, -1)
        out = self.model.vision_tower(frames, torch.tensor([[1, h, w]])).last_hidden_state
        return self.model.perception_emb_norm(self.model.vision_projection(self.model.vision_adapter(out)))


class Exaone(Qwen):
    """As Qwen2.5-VL's, with fewer heads of keys and values. Its image is larger than a window of 16 pixels."""
    name, text, splits, image_size, size = "exaone4_5", "exaone4", False, 56, (24, 40)
    with_logits = False
    kinds = hf.Exaone4_5_Config, hf.Exaone4_5_ForConditionalGeneration
    flags = ["clip.use_silu"]
    keys = Qwen.keys | {"n_wa_pattern": 2, "window_size": 16, "attention.head_count_kv": 1,
                        "image_min_pixels": 2 * 64, "image_max_pixels": 256 * 64}
    layer = Qwen.layer | {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    vision = dict(hidden_size=24, intermediate_size=36, out_hidden_size=DIM, num_heads=3, num_key_value_heads=1,
                  window_size=16, fullatt_block_indexes=[1, 3], depth=3)
    mistakes = {"windows": lambda c: setattr(c.vision_config, "window_size", 8),
                "layers without": lambda c: setattr(c.vision_config, "fullatt_block_indexes", [0])}

    @classmethod
    def configs(cls):
        vision = dict(in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2) | cls.vision
        text = hf.Exaone4Config(hidden_size=DIM, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4,
                                num_key_value_heads=4, vocab_size=300)
        config = cls.kinds[0](vision_config=vision, text_config=text.to_dict())
        config._attn_implementation = "eager"
        return config, cls.mistakes


class RmsNorm(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Dots(Exaone):
    """dots.ocr's, which transformers does not have: EXAONE's, with full attention, a head of keys and values for each
    of queries, norms behind the first matrix and behind the layers, and LayerNorm of patches before they are joined."""
    name, text, image_size = "dots_ocr", "qwen2", 0
    eps, keys = 1e-5, {"projector.scale_factor": 2, "image_min_pixels": 2 * 64, "image_max_pixels": 256 * 64}
    names = {"model.visual.patch_embed.norm": "v.pre_ln", "model.visual.patch_embed.proj": "v.patch_embd",
             "model.visual.blocks.": "{}", "model.visual.merger.ln_q.0": "mm.post_norm",
             "model.visual.merger.ln_q.1": "mm.input_norm", "model.visual.merger.mlp.0": "mm.0",
             "model.visual.merger.mlp.2": "mm.2"}
    vision = Exaone.vision | dict(num_key_value_heads=3, window_size=1000, fullatt_block_indexes=[0, 1, 2], depth=2)
    mistakes = {"norm of the embedding": lambda c: setattr(c, "embedding_norm", False),
                "norm behind the layers": lambda c: setattr(c, "trunk_norm", False)}

    @classmethod
    def make(cls, config):
        model = cls.kinds[1](config)
        visual, norms = model.model.visual, torch.nn.Sequential(RmsNorm(24), torch.nn.LayerNorm(24, eps=1e-6))
        if not getattr(config, "trunk_norm", True):
            norms[0].forward = lambda x: x
        visual.merger.ln_q = norms
        visual.patch_embed.norm = RmsNorm(24)
        embed = visual.patch_embed.forward
        if getattr(config, "embedding_norm", True):
            visual.patch_embed.forward = lambda x: visual.patch_embed.norm(embed(x))
        for block in visual.blocks:
            block.norm1.variance_epsilon = block.norm2.variance_epsilon = 1e-5
        return model

    def tensors(self):
        for name, tensor in super().tensors():
            if name == "v.patch_embd.weight":  # one frame
                first = tensor
            elif name == "v.patch_embd.weight.1":
                yield "v.patch_embd.weight", first + tensor
            else:
                yield name, tensor


class Glm5(Qwen):
    """GLM-5.3 Flash: SwiGLU has limits, there is no table of positions."""
    name, text, splits, image_size, with_logits = "glm5v", "", False, 16, False
    kinds = hf.Glm5NextConfig, None
    flags, eps = ["clip.use_silu"], 1e-5
    keys = Qwen.keys | {"image_min_pixels": 2 * 64, "image_max_pixels": 256 * 64}
    layer = Qwen.layer | {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
                          "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm"}
    names = {"visual.patch_embed.proj": "v.patch_embd", "visual.blocks.": "{}",
             "visual.post_layernorm": "v.post_ln", "visual.downsample": "mm.patch_merger",
             "visual.merger.proj": "mm.model.fc", "visual.merger.post_projection_norm": "mm.post_norm",
             "visual.merger.gate_proj": "mm.gate", "visual.merger.up_proj": "mm.up",
             "visual.merger.down_proj": "mm.down"}
    limit = 0.5

    @classmethod
    def configs(cls):
        vision = hf.Glm5NextConfig().vision_config.__class__(
            hidden_size=24, intermediate_size=36, out_hidden_size=DIM, image_size=16, depth=2, num_heads=3,
            patch_size=4, rms_norm_eps=1e-5, projection_intermediate_size=40, swiglu_limit=cls.limit)
        vision._attn_implementation = "eager"
        config = types.SimpleNamespace(vision_config=vision, text_config=types.SimpleNamespace(hidden_size=DIM))
        return config, {"limits": lambda c: setattr(c.vision_config, "swiglu_limit", 1e9),
                        "silu": lambda c: setattr(c.vision_config, "hidden_act", "gelu")}

    @classmethod
    def make(cls, config):
        from transformers.models.glm5_next import modeling_glm5_next as glm
        model = torch.nn.Module()
        model.visual = glm.Glm5NextVisionModel(config.vision_config)
        return with_tanh(model)

    def more_keys(self, w):
        w.add_float32("clip.vision.swiglu_clamp", self.limit)

    def rows(self, pixels):
        return self.model.visual(*self.patches(pixels)).pooler_output


class NemotronModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vision_model = radio.RadioModel(config.vision_config)
        self.projector = nemotron.NemotronH_Omni_Reasoning_V3MultiModalProjector(96, 40, DIM)
        self.projector.layer_norm.variance_epsilon = config.projector_norm


class Nemotron(Encoder):
    """RADIO with class tokens and registers, which have no positions; its table as the converter cuts it."""
    name, eps, size, flags, keys = "nemotron_v2_vl", 1e-2, (16, 16), ["clip.use_gelu"], {"projector.scale_factor": 2}
    layer = {"norm1": "ln1", "norm2": "ln2", "attention.q_proj": "attn_q", "attention.k_proj": "attn_k",
             "attention.v_proj": "attn_v", "attention.o_proj": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
    names = {"vision_model.embeddings.cls_register_token": "v.class_embd",
             "vision_model.embeddings.patch_projection": "v.patch_embd",
             "vision_model.embeddings.position_embedding": "v.position_embd.weight",
             "vision_model.encoder.layer.": "{}", "projector.layer_norm": "mm.model.mlp.0",
             "projector.linear_1": "mm.model.mlp.1", "projector.linear_2": "mm.model.mlp.3"}

    @staticmethod
    def configs():
        vision = hf.RadioConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, mlp_ratio=1.5,
                                layer_norm_eps=1e-2, patch_size=4, image_size=16, max_img_size=16, num_cls_tokens=1,
                                num_registers=2, summary_idxs=[0], hidden_act=GELU)
        vision.intermediate_size = 36
        vision._attn_implementation = "eager"
        config = types.SimpleNamespace(vision_config=vision, projector_norm=1e-5)
        return config, {"registers": lambda c: setattr(c.vision_config, "num_registers", 1),
                        "gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                        "epsilon": lambda c: setattr(c.vision_config, "layer_norm_eps", 1.0)}

    @classmethod
    def make(cls, config):
        model = NemotronModel(config)
        model.vision_model.make_preprocessor_external()
        return model

    def tensor_name(self, name):
        return None if "layer_scale" in name else super().tensor_name(name)  # they are 1

    def value(self, name, tensor):
        return tensor.reshape(-1, 3, 4, 4) if "patch_projection" in name else \
            tensor[0] if "position_embedding" in name else tensor

    def rows(self, pixels):
        for layer in self.model.vision_model.encoder.layer:
            layer.layer_scale1.lambda1.fill_(1), layer.layer_scale2.lambda1.fill_(1)
        x = self.model.vision_model(pixels).features.reshape(2, 2, 2, 2, 24).permute(0, 2, 1, 3, 4)
        return self.model.projector(x.reshape(4, 96))


ENCODERS = [Nemotron, Gemma4Unified, Phi4, Muse, Exaone, Dots, Glm5]
