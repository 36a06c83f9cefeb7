"""Encoders whose rows have lines and columns in the model. See make_vision_models.py."""
import sys
import zlib

import torch
import transformers as hf

import make_family_models as families
import make_recurrent_models as recurrent
import make_tiny_models as tiny
from stream_models import EOS
from vision_encoders_clip import CLIP_LAYER
from vision_encoder import AFTER, BEFORE, GELU, TOLERANCE, Encoder, difference, with_tanh


class Qwen(Encoder):
    """Of golden/tiny/TEXT.gguf, as a model whose rows of images have lines and columns."""
    flags, keys, size = [], {"spatial_merge_size": 2}, (16, 40)
    # In transformers' order; the converter gives q, k and v of the first two tensors of their own.
    layer = {"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out", "mlp.fc1": "ffn_up",
             "mlp.fc2": "ffn_down"}
    names = {"model.visual.patch_embed.proj": "v.patch_embd", "model.visual.blocks.": "{}",
             "model.visual.merger.ln_q": "v.post_ln", "model.visual.merger.mlp.0": "mm.0",
             "model.visual.merger.mlp.2": "mm.2"}
    eps, sections, least, with_logits = 1e-6, [2, 1, 1], 5, True
    image_token = tiny.VOCAB - 1

    @classmethod
    def text_config(cls):
        if cls.text in tiny.models():
            return tiny.models()[cls.text][1]
        return (families.models() | recurrent.models())[cls.text][0]

    @classmethod
    def text_model(cls):
        build = tiny.build if cls.text in tiny.models() else families.build
        return build(cls.text_config(), zlib.crc32(cls.text.encode()))

    @classmethod
    def configs(cls):
        text = cls.text_config().to_dict()
        text["rope_parameters"] |= {"mrope_section": cls.sections} | cls.rope
        text.pop("model_type")
        vision = dict(depth=2, num_heads=3, in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2)
        config = cls.kinds[0](vision_config=vision | cls.vision, text_config=text, image_token_id=cls.image_token,
                              video_token_id=tiny.VOCAB - 2, vision_start_token_id=tiny.VOCAB - 3)
        config._attn_implementation = "eager"
        return config, cls.mistakes

    @classmethod
    def make(cls, config):
        return with_tanh(cls.kinds[1](config))

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

    def n_rows(self, grid):
        """Of the model, of an image."""
        return int(grid.prod() // 4)

    def wrong_positions(self, ids, **more):
        """What is wrong -> positions of the prompt."""
        return {"no lines and columns": torch.arange(ids.shape[1])[None, None].expand(3, 1, -1)}

    def must_differ(self, what, wrong, right):
        if difference(wrong, right) < self.least * TOLERANCE:
            sys.exit(f"{self.name}: {what}: changes the logits by {difference(wrong, right):.1e} only")

    def logits(self, pixels):
        """Of a prompt with the image twice."""
        text = self.text_model()
        self.model.model.language_model.load_state_dict(text.model.state_dict())
        self.model.lm_head.load_state_dict(text.lm_head.state_dict())
        patches, grid = self.patches(pixels)
        image = [self.config.image_token_id] * self.n_rows(grid)
        ids = torch.tensor([BEFORE + image + AFTER[:2] + image + AFTER])
        kinds = (ids == self.config.image_token_id).int()
        more = dict(pixel_values=torch.cat([patches] * 2), image_grid_thw=torch.cat([grid] * 2), use_cache=False)
        with torch.no_grad():
            out = self.model(input_ids=ids, mm_token_type_ids=kinds, **more).logits[0]
            places = dict(mm_token_type_ids=kinds, image_grid_thw=more["image_grid_thw"])
            for what, at in self.wrong_positions(ids, **places).items():
                wrong = self.model(input_ids=ids, mm_token_type_ids=kinds, position_ids=at, **more).logits[0]
                self.must_differ(what, wrong, out)
        return out.float().numpy()


class Qwen2Vl(Qwen):
    name, text, splits, image_size, rope = "qwen2vl_merger", "qwen2", True, 560, {}
    kinds = hf.Qwen2VLConfig, hf.Qwen2VLForConditionalGeneration
    vision = dict(embed_dim=24, hidden_size=48, mlp_ratio=2, hidden_act="quick_gelu")
    mistakes = {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu")}


class Qwen25Vl(Qwen):
    """Its image is larger than a window of 112 pixels."""
    name, text, splits, image_size, rope, size = "qwen2.5vl_merger", "qwen2", True, 560, {}, (140, 168)
    with_logits = False  # in the model its rows are as Qwen2-VL's
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


class Qwen4Exp(Qwen35):
    """Of golden/tiny/qwen4exp_sparse.gguf: n-grams have image_token in place of rows of images."""
    name, text, of, image_token, least = "qwen4exp", "qwen4exp_sparse", Qwen35, 7, 5
    kinds = hf.Qwen4ExpConfig, hf.Qwen4ExpForConditionalGeneration
    mistakes = {}

    def __init__(self, config):
        super().__init__(config)
        same = self.of(self.of.configs()[0])
        self.model.model.visual.load_state_dict(same.model.model.visual.state_dict())

    def logits(self, pixels):
        right = super().logits(pixels)
        for what, token in {"n-grams of EOS": EOS, "n-grams of token 0": 0}.items():
            def replace(model, args, more):
                ids = more["ple_input_ids"]
                return args, more | {"ple_input_ids": ids.masked_fill(ids == self.image_token, token)}
            hook = self.model.model.language_model.register_forward_pre_hook(replace, with_kwargs=True)
            self.must_differ(what, torch.from_numpy(super().logits(pixels)), torch.from_numpy(right))
            hook.remove()
        return right


class Glm(Qwen):
    """Of golden/tiny/glm4.gguf."""
    name, text, splits, image_size, rope = "glm4v", "glm4", False, 16, {}
    kinds = hf.Glm4vConfig, hf.Glm4vForConditionalGeneration
    flags, eps = ["clip.use_silu"], 1e-5
    layer = Qwen.layer | {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    names = {"model.visual.patch_embed.proj": "v.patch_embd", "model.visual.post_conv_layernorm": "v.norm_embd",
             "model.visual.embeddings.position_embedding": "v.position_embd", "model.visual.blocks.": "{}",
             "model.visual.post_layernorm": "v.post_ln", "model.visual.downsample": "mm.patch_merger",
             "model.visual.merger.proj": "mm.model.fc", "model.visual.merger.post_projection_norm": "mm.post_norm",
             "model.visual.merger.gate_proj": "mm.gate", "model.visual.merger.up_proj": "mm.up",
             "model.visual.merger.down_proj": "mm.down"}
    vision = dict(hidden_size=24, intermediate_size=36, out_hidden_size=32, image_size=16, depth=2, num_heads=3,
                  hidden_act="silu", rms_norm_eps=1e-5)
    mistakes = {"silu": lambda c: setattr(c.vision_config, "hidden_act", "gelu"),
                "table": lambda c: setattr(c.vision_config, "image_size", 24)}

    @classmethod
    def make(cls, config):
        model = super().make(config)
        text = config.text_config
        for layer in model.model.language_model.layers:  # transformers derives the size of heads from hidden_size
            a, d = layer.self_attn, text.head_dim
            a.head_dim, a.scaling = d, d ** -0.5
            for name, heads in [("q_proj", text.num_attention_heads), ("k_proj", text.num_key_value_heads),
                                ("v_proj", text.num_key_value_heads)]:
                setattr(a, name, torch.nn.Linear(text.hidden_size, heads * d, bias=text.attention_bias))
            a.o_proj = torch.nn.Linear(text.num_attention_heads * d, text.hidden_size, bias=False)
        return model


class GlmOcr(Glm):
    """Of golden/tiny/glm4.gguf, too: no table of positions; q and k have norms, projections have biases."""
    name, projector = "glm_ocr", "glm4v"
    kinds = hf.GlmOcrConfig, hf.GlmOcrForConditionalGeneration
    layer = Glm.layer | {"attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm"}
    vision = Glm.vision | dict(attention_bias=True)
    mistakes = {"silu": lambda c: setattr(c.vision_config, "hidden_act", "gelu")}


class Paddle(Qwen):
    """Of golden/tiny/ernie4_5.gguf. The file's image_size is not that of its table of positions."""
    name, text, rope, layer = "paddleocr", "ernie4_5", {}, CLIP_LAYER
    kinds = hf.PaddleOCRVLConfig, hf.PaddleOCRVLForConditionalGeneration
    flags, eps, keys = ["clip.use_gelu"], 3e-2, {"image_min_pixels": 2 * 64, "image_max_pixels": 256 * 64}
    names = {"model.visual.vision_model.embeddings.patch_embedding": "v.patch_embd",
             "model.visual.vision_model.embeddings.position_embedding": "v.position_embd",
             "model.visual.vision_model.encoder.layers.": "{}", "model.visual.vision_model.post_layernorm": "v.post_ln",
             "model.projector.pre_norm": "mm.input_norm", "model.projector.linear_1": "mm.1",
             "model.projector.linear_2": "mm.2"}
    vision = dict(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3, image_size=32,
                  layer_norm_eps=3e-2)
    mistakes = {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                "epsilon": lambda c: setattr(c.vision_config, "layer_norm_eps", 1.0),
                "epsilon behind the layers": lambda c: setattr(c.vision_config, "patch_eps", 3e-2)}

    @classmethod
    def make(cls, config):
        model = super().make(config)
        model.model.projector.act = torch.nn.GELU(approximate="tanh")
        model.model.projector.pre_norm.eps = getattr(config.vision_config, "patch_eps", 1e-5)
        return model

    def file(self, path):
        self.config.vision_config.image_size = 50
        Encoder.file(self, path)

    def tensors(self):
        return Encoder.tensors(self)

    def patches(self, pixels):
        p = self.config.vision_config.patch_size
        h, w = pixels.shape[2] // p, pixels.shape[3] // p
        return pixels[0].reshape(3, h, p, w, p).permute(1, 3, 0, 2, 4).reshape(h * w, 3, p, p), \
            torch.tensor([[1, h, w]])


class Hunyuan(Paddle):
    """Of golden/tiny/hunyuan_vl.gguf. Two parts are as in the code that the models were published with, in vLLM and in
    llama.cpp: the table of positions is resized as if the image had a tenth of a patch more, and both channels of a
    pair turn by the same axis. transformers 5.24 resizes without the tenth, and gives the axes to the channels of a
    head, not to its pairs."""
    name, text = "hunyuanvl", "hunyuan_vl"
    kinds = hf.HunYuanVLConfig, hf.HunYuanVLForConditionalGeneration
    eps, keys = 1e-3, Paddle.keys | {"spatial_merge_size": 2}
    layer = CLIP_LAYER | {"self_attn.o_proj": "attn_out"}
    names = {"model.vision_tower." + part: to for part, to in {
        "embeddings.patch_embedding": "v.patch_embd", "embeddings.position_embedding": "v.position_embd",
        "layers.": "{}", "patch_merger.before_rms": "mm.pre_norm", "patch_merger.proj_conv": "mm.0",
        "patch_merger.proj_out": "mm.2", "patch_merger.image_newline": "v.image_newline",
        "patch_merger.mlp": "mm.model.fc", "patch_merger.image_begin": "mm.image_begin",
        "patch_merger.image_end": "mm.image_end", "patch_merger.after_rms": "mm.post_norm"}.items()}
    vision = dict(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3, patch_size=4,
                  max_image_size=32, rms_norm_eps=1e-3, hidden_act=GELU)
    mistakes = {"gelu": lambda c: setattr(c.vision_config, "hidden_act", "silu"),
                "epsilon": lambda c: setattr(c.vision_config, "rms_norm_eps", 1.0),
                "tenth of a patch": lambda c: setattr(c.vision_config, "more", 0.0)}

    @classmethod
    def configs(cls):
        config = cls.kinds[0](vision_config=cls.vision, text_config=cls.text_config().to_dict(),
                              image_token_id=tiny.VOCAB - 1, tie_word_embeddings=False)
        config._attn_implementation = "eager"
        config.vision_config.more = 0.1
        return config, cls.mistakes

    @classmethod
    def make(cls, config):
        model = cls.kinds[1](config)
        embeddings, rotary = model.model.vision_tower.embeddings, model.model.language_model.rotary_emb
        side, more = embeddings.position_edge, config.vision_config.more

        def resized(patches, height, width):
            table = embeddings.position_embedding.weight[1:].T.reshape(1, -1, side, side)
            scale = [(int(n) + more) / side for n in (height, width)]
            return torch.nn.functional.interpolate(table, scale_factor=scale, mode="bilinear").flatten(2).mT

        def of_pairs(x):
            axes = torch.cat([part[i] for i, part in enumerate(x.split(rotary.mrope_section, dim=-1))], dim=-1)
            return torch.cat([axes, axes], dim=-1)
        embeddings.interpolate_pos_encoding, rotary.recomposition_frequencies = resized, of_pairs
        return model

    def file(self, path):
        self.config.vision_config.image_size = self.config.vision_config.max_image_size
        Encoder.file(self, path)

    def patches(self, pixels):
        patches, grid = super().patches(pixels)
        return patches.flatten(1), grid

    def value(self, name, tensor):
        return tensor[1:] if "position_embedding" in name else tensor  # the first row is not used

    def n_rows(self, grid):
        _, h, w = grid[0].tolist()
        return h // 2 * (w // 2 + 1) + 2

    def wrong_positions(self, ids, **more):
        right = self.model.model.get_rope_index(ids, **more)[0]
        images = more["mm_token_type_ids"] == 1
        return {"no lines and columns": torch.arange(ids.shape[1])[None, None].expand(4, 1, -1),
                "lines and columns exchanged": right[[0, 2, 1, 3]],
                "both images are the first": torch.cat([right[:3], right[3:] * (right[3:] != 1)]),
                "rows share a time": torch.cat([right[:1] - right[1:2] * images, right[1:]])}


ENCODERS = [Qwen2Vl, Qwen25Vl, Qwen3Vl, Qwen35, Qwen4Exp, Glm, GlmOcr, Paddle, Hunyuan]
