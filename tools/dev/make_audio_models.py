#!/usr/bin/env python3
"""Writes tiny random audio encoders of each projector type, with the rows that HF transformers makes of a sound.

make_audio_models.py OUT_DIR [NAME...]
Needs transformers, torch (the CPU is enough), numpy and gguf from PyPI; downloads no model.

Files per encoder: NAME.gguf (F32, architecture clip), for a model of DIM channels;
NAME.rows.npy (rows, DIM) f32, what the encoder makes of the first SECONDS of
test_sound(). transformers makes the spectrograms, too. Ultravox is not in transformers: its encoder is Whisper's, its
projector is written after the published code. The tests allow 1e-3 of the largest value; the script fails if a trait of
an encoder changes the rows by less than five times that.
"""
import sys
import types
import zlib

import gguf
import numpy as np
import torch
import transformers as hf
from transformers.models.audioflamingo3 import modeling_audioflamingo3 as flamingo
from transformers.models.gemma4 import modeling_gemma4 as gemma4
from transformers.models.gemma4_unified import modeling_gemma4_unified as unified
from transformers.models.glmasr import modeling_glmasr as glmasr
from transformers.models.granite_speech import modeling_granite_speech as granite
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as omni
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as omni3

from vision_encoder import DIM, TOLERANCE, difference, fill

RATE, BINS = 16000, 32
WHISPER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
           "self_attn.out_proj": "attn_out", "self_attn_layer_norm": "ln1", "fc1": "ffn_up", "fc2": "ffn_down",
           "final_layer_norm": "ln2"}


def test_sound(n):
    """The same as in tests/support/sound.h."""
    i = np.arange(n, dtype=np.int64)
    return (((i * i // 911 * 7 + i * 13) % 2001 - 1000) * (i // 4000 % 5 + 1) / 10240).astype(np.float32)


def whisper_features(sound, padding, **more):
    extractor = hf.WhisperFeatureExtractor(feature_size=BINS, **more)
    return torch.from_numpy(extractor(sound, sampling_rate=RATE, padding=padding, truncation=False,
                                      return_tensors="np").input_features[0])


class Encoder:
    """A model, its tensors' names in the file, and the rows that it makes."""
    keys, layer, seconds, eps = {}, WHISPER, 1.303, 1e-5

    def __init__(self, config):
        torch.manual_seed(0)
        self.config = config
        self.model = fill(self.make(config), zlib.crc32(self.name.encode()))
        for name, p in self.model.named_parameters():
            if "embed_positions" in name:  # as published
                p.data = self.sinusoids(*p.shape)
            if "q_proj.weight" in name or "k_proj.weight" in name:  # so that it matters what a row sees
                p.data *= 2
            if any(x in name for x in ("to_q.", "rel_pos_emb", "crossattention", "encoder.out")) and "Norm" not in name:
                p.data *= 4

    @staticmethod
    def sinusoids(n, dim):
        return omni.SinusoidsPositionEmbedding(n, dim).positional_embedding.float()

    def file(self, path):
        a = self.config
        w = gguf.GGUFWriter(path, "clip")
        w.add_bool("clip.has_audio_encoder", True)
        w.add_string("clip.audio.projector_type", self.name)
        for key, value in {"embedding_length": a.hidden_size, "projection_dim": DIM, **self.sizes(),
                           **self.keys}.items():
            w.add_uint32("clip.audio." + key, value)
        w.add_float32("clip.audio.attention.layer_norm_epsilon", self.eps)
        for name, tensor in self.tensors():
            w.add_tensor(name, np.ascontiguousarray(tensor.detach().numpy().astype(np.float32)))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    def sizes(self):
        a = self.config
        return {"num_mel_bins": a.num_mel_bins, "feed_forward_length": a.encoder_ffn_dim,
                "block_count": a.encoder_layers, "attention.head_count": a.encoder_attention_heads}

    def tensors(self):
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            for old, new in self.names.items():
                if not name.startswith(old):
                    continue
                rest = name[len(old):]
                if "{}" in new:
                    number, rest = rest.split(".", 1)
                    part, _, kind = rest.rpartition(".")
                    new, rest = f"a.blk.{number}.{self.layer[part]}.", kind
                yield new + rest, self.value(name, tensor)
                break

    def value(self, name, tensor):
        if name.endswith("bias") and ("conv1." in name or "conv2." in name):  # as the converter writes them
            return tensor[:, None]
        if name.endswith("bias") and "conv2d" in name:
            return tensor[:, None, None]
        return tensor


class WhisperKind(Encoder):
    names = {"tower.conv1.": "a.conv1d.1.", "tower.conv2.": "a.conv1d.2.",
             "tower.embed_positions.": "a.position_embd.", "tower.layers.": "{}", "tower.layer_norm.": "a.post_ln."}
    sizes_of = dict(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48, num_mel_bins=BINS,
                    activation_function="gelu")

    def padded_rows(self, frames):
        """The encoder's layers for the first rows of 30 seconds, which see each other alone."""
        t = self.model.tower
        x = whisper_features(test_sound(int(self.seconds * RATE)), "max_length")[None]
        x = torch.nn.functional.gelu(t.conv1(x))
        x = torch.nn.functional.gelu(t.conv2(x)).transpose(1, 2)
        return self.layers(x[:, :(frames - 1) // 2 + 1])

    def layers(self, x):
        x = x + self.model.tower.embed_positions.weight[:x.shape[1]]
        for layer in self.model.tower.layers:
            out = layer(x, None)
            x = out if torch.is_tensor(out) else out[0]
        return x

    def frames(self):
        return -(-int(self.seconds * RATE) // 160)


def parts(**modules):
    model = torch.nn.Module()
    for name, module in modules.items():
        setattr(model, name, module)
    return model


class Voxtral(WhisperKind):
    name, keys = "voxtral", {"projector.stack_factor": 4}
    names = {**WhisperKind.names, "first.": "mm.a.mlp.1.", "second.": "mm.a.mlp.2."}

    @classmethod
    def configs(cls):
        sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
                     num_mel_bins=BINS)
        config = hf.VoxtralEncoderConfig(**sizes)
        config._attn_implementation = "eager"
        config.encoder_ffn_dim, config.encoder_layers, config.encoder_attention_heads = 48, 2, 2
        return config, {"positions": lambda c: setattr(c, "moved", True)}

    def make(self, config):
        return parts(tower=hf.VoxtralEncoder(config), first=torch.nn.Linear(128, 40, bias=False),
                     second=torch.nn.Linear(40, DIM, bias=False))

    def rows(self):
        x = whisper_features(test_sound(int(self.seconds * RATE)), "max_length")[None]
        if getattr(self.config, "moved", False):
            self.model.tower.embed_positions.weight.data = self.model.tower.embed_positions.weight.roll(1, 0)
        out = self.model.tower(x).last_hidden_state.reshape(-1, 128)
        return self.model.second(torch.nn.functional.gelu(self.model.first(out)))


class Ultravox(WhisperKind):
    name, keys = "ultravox", {"projector.stack_factor": 4}
    names = {**WhisperKind.names, "norm_pre.": "mm.a.norm_pre.", "first.": "mm.a.mlp.1.",
             "norm_mid.": "mm.a.norm_mid.", "second.": "mm.a.mlp.2."}

    @classmethod
    def configs(cls):
        config = hf.WhisperConfig(**cls.sizes_of)
        config._attn_implementation = "eager"
        return config, {"half of the gate": lambda c: setattr(c, "turned", True)}

    def make(self, config):
        return parts(tower=hf.models.whisper.modeling_whisper.WhisperEncoder(config),
                     norm_pre=torch.nn.RMSNorm(128, eps=1e-6), first=torch.nn.Linear(128, 80, bias=False),
                     norm_mid=torch.nn.RMSNorm(40, eps=1e-6), second=torch.nn.Linear(40, DIM, bias=False))

    def rows(self):
        m = self.model
        x = whisper_features(test_sound(int(self.seconds * RATE)), "longest")[None]
        x = torch.nn.functional.gelu(m.tower.conv1(x))
        x = torch.nn.functional.gelu(m.tower.conv2(x)).transpose(1, 2)
        x = m.tower.layer_norm(self.layers(x))
        x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 4)).reshape(-1, 128)
        x, gate = m.first(m.norm_pre(x)).chunk(2, dim=-1)
        if getattr(self.config, "turned", False):
            x, gate = gate, x
        return m.second(m.norm_mid(torch.nn.functional.silu(gate) * x))


class Qwen2Audio(WhisperKind):
    name, names = "qwen2a", {**WhisperKind.names, "projector.": "mm.a.fc."}

    @classmethod
    def configs(cls):
        config = hf.Qwen2AudioEncoderConfig(**cls.sizes_of)
        config._attn_implementation = "eager"
        return config, {"mean": lambda c: setattr(c, "first", True)}

    def make(self, config):
        return parts(tower=hf.Qwen2AudioEncoder(config), projector=torch.nn.Linear(32, DIM))

    def rows(self):
        x = self.padded_rows(self.frames())
        n = x.shape[1] // 2
        means = self.model.tower.avg_pooler(x.transpose(1, 2)).transpose(1, 2)
        if getattr(self.config, "first", False):
            means = x[:, :2 * n:2]
        return self.model.projector(self.model.tower.layer_norm(means))[0]


class AudioFlamingo3(WhisperKind):
    name = "musicflamingo"
    names = {**WhisperKind.names, "projector.linear_1.": "mm.a.mlp.1.", "projector.linear_2.": "mm.a.mlp.2."}

    @classmethod
    def configs(cls):
        config = hf.AudioFlamingo3EncoderConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                intermediate_size=48, num_mel_bins=BINS)
        config._attn_implementation = "eager"
        config.encoder_ffn_dim, config.encoder_layers, config.encoder_attention_heads = 48, 2, 2
        return config, {"mask": lambda c: setattr(c, "unmasked", True)}

    def make(self, config):
        whole = hf.AudioFlamingo3Config(audio_config=config, text_config=hf.Qwen2Config(hidden_size=DIM))
        return parts(tower=flamingo.AudioFlamingo3Encoder(config),
                     projector=flamingo.AudioFlamingo3MultiModalProjector(whole))

    def rows(self):
        x = whisper_features(test_sound(int(self.seconds * RATE)), "max_length")[None]
        seen = x.shape[2] if getattr(self.config, "unmasked", False) else self.frames()
        out = self.model.tower(x, input_features_mask=(torch.arange(x.shape[2]) < seen)[None]).last_hidden_state
        n = self.model.tower._get_feat_extract_output_lengths(self.frames())[1]
        return self.model.projector(out)[0][:n]


class GlmAsr(WhisperKind):
    name, keys = "glma", {"projector.stack_factor": 4}
    layer = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_out", "input_layernorm": "ln1", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
             "post_attention_layernorm": "ln2"}
    names = {"tower.conv1.": "a.conv1d.1.", "tower.conv2.": "a.conv1d.2.", "tower.layers.": "{}",
             "tower.norm.": "mm.a.norm_pre.", "projector.linear_1.": "mm.a.mlp.1.",
             "projector.linear_2.": "mm.a.mlp.2."}

    @classmethod
    def configs(cls):
        config = hf.GlmAsrEncoderConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                        intermediate_size=128, num_mel_bins=BINS)
        config._attn_implementation = "eager"
        config.encoder_ffn_dim, config.encoder_layers, config.encoder_attention_heads = 128, 2, 2
        return config, {"rotation": lambda c: c.rope_parameters.update(rope_theta=100.0),
                        "silence": lambda c: setattr(c, "bare", True)}

    def make(self, config):
        whole = hf.GlmAsrConfig(audio_config=config, text_config=hf.LlamaConfig(hidden_size=DIM))
        return parts(tower=glmasr.GlmAsrEncoder(config), projector=glmasr.GlmAsrMultiModalProjector(whole))

    def value(self, name, tensor):
        if "q_proj" in name or "k_proj" in name:  # published files rotate neighbours
            heads = tensor.reshape(2, 16, *tensor.shape[1:]).clone()
            heads[:, 0:8:2], heads[:, 1:8:2] = heads[:, 0:4].clone(), heads[:, 4:8].clone()
            return heads.reshape(tensor.shape)
        return super().value(name, tensor)

    def rows(self):
        x = whisper_features(test_sound(int(self.seconds * RATE)), "max_length")[None]
        if getattr(self.config, "bare", False):
            x = x[:, :, :self.frames()]
        n = ((self.frames() - 1) // 2 + 1) // 4
        out = self.model.tower(x).last_hidden_state[0]
        return self.model.projector(out[:4 * n].reshape(-1, 128))


class Qwen25Omni(WhisperKind):
    name, seconds = "qwen2.5o", 5.1
    names = {"tower.conv1.": "a.conv1d.1.", "tower.conv2.": "a.conv1d.2.", "tower.layers.": "{}",
             "tower.positional_embedding.positional_embedding": "a.position_embd.weight",
             "tower.ln_post.": "a.post_ln.", "tower.proj.": "mm.a.fc."}

    @classmethod
    def configs(cls):
        config = omni.Qwen2_5OmniAudioEncoderConfig(**cls.sizes_of, output_dim=DIM, n_window=100)
        config._attn_implementation = "eager"
        return config, {"parts": lambda c: setattr(c, "n_window", 150)}

    def make(self, config):
        return parts(tower=omni.Qwen2_5OmniAudioEncoder(config))

    def rows(self):
        x = whisper_features(test_sound(int(self.seconds * RATE)), "max_length")[:, :self.frames()]
        return self.model.tower(x, feature_lens=torch.tensor([x.shape[1]])).last_hidden_state


class Qwen3Omni(Encoder):
    name, seconds = "qwen3a", 9.302
    names = {"tower.conv2d": "a.conv2d.", "tower.conv_out.": "a.conv_out.", "tower.layers.": "{}",
             "tower.positional_embedding.positional_embedding": "a.position_embd.weight",
             "tower.ln_post.": "a.post_ln.", "tower.proj1.": "mm.a.mlp.1.", "tower.proj2.": "mm.a.mlp.2."}

    @classmethod
    def configs(cls):
        config = omni3.Qwen3OmniMoeAudioEncoderConfig(**WhisperKind.sizes_of, output_dim=DIM, n_window=50,
                                                      n_window_infer=800, downsample_hidden_size=8)
        config._attn_implementation = "eager"
        return config, {"parts": lambda c: setattr(c, "n_window", 100),
                        "what sees each other": lambda c: setattr(c, "n_window_infer", 400)}

    def make(self, config):
        return parts(tower=omni3.Qwen3OmniMoeAudioEncoder(config))

    frames = WhisperKind.frames

    def rows(self):
        x = whisper_features(test_sound(int(self.seconds * RATE)), "max_length")[:, :self.frames()]
        return self.model.tower(x, feature_lens=torch.tensor([x.shape[1]])).last_hidden_state


class Gemma4(Encoder):
    name, eps = "gemma4a", 1e-6
    layer = {"feed_forward1.ffw_layer_1.linear": "ffn_up", "feed_forward1.ffw_layer_2.linear": "ffn_down",
             "feed_forward1.pre_layer_norm": "ffn_norm", "feed_forward1.post_layer_norm": "ffn_post_norm",
             "feed_forward2.ffw_layer_1.linear": "ffn_up_1", "feed_forward2.ffw_layer_2.linear": "ffn_down_1",
             "feed_forward2.pre_layer_norm": "ffn_norm_1", "feed_forward2.post_layer_norm": "ffn_post_norm_1",
             "self_attn.q_proj.linear": "attn_q", "self_attn.k_proj.linear": "attn_k",
             "self_attn.v_proj.linear": "attn_v", "self_attn.post.linear": "attn_out",
             "self_attn.relative_k_proj": "attn_k_rel", "self_attn": "per_dim_scale",
             "norm_pre_attn": "attn_pre_norm", "norm_post_attn": "attn_post_norm", "norm_out": "ln2",
             "lconv1d.pre_layer_norm": "norm_conv", "lconv1d.conv_norm": "conv_norm",
             "lconv1d.linear_start.linear": "conv_pw1", "lconv1d.linear_end.linear": "conv_pw2",
             "lconv1d.depthwise_conv1d": "conv_dw"}
    layer |= {old.removesuffix(".linear"): new for old, new in layer.items() if old.endswith(".linear")}
    names = {"tower.subsample_conv_projection.layer0.conv.": "a.conv1d.0.",
             "tower.subsample_conv_projection.layer0.norm.": "a.conv1d.0.norm.",
             "tower.subsample_conv_projection.layer1.conv.": "a.conv1d.1.",
             "tower.subsample_conv_projection.layer1.norm.": "a.conv1d.1.norm.",
             "tower.subsample_conv_projection.input_proj_linear.": "a.input_projection.", "tower.layers.": "{}",
             "tower.output_proj.": "a.pre_encode.out.", "embed.embedding_projection.": "mm.a.input_projection."}

    @classmethod
    def configs(cls):
        config = gemma4.Gemma4AudioConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                          subsampling_conv_channels=[128, 4], output_proj_dims=40)
        config._attn_implementation = "eager"
        return config, {"rows that are seen": lambda c: setattr(c, "attention_context_left", 12),
                        "limit of scores": lambda c: setattr(c, "attention_logit_cap", 2.0),
                        "limits": lambda c: setattr(c, "use_clipped_linears", False)}

    def make(self, config):
        text = types.SimpleNamespace(hidden_size=DIM)
        model = parts(tower=gemma4.Gemma4AudioModel(config), embed=gemma4.Gemma4MultimodalEmbedder(config, text))
        for part in model.modules():
            if isinstance(part, gemma4.Gemma4ClippableLinear) and config.use_clipped_linears:
                part.input_min, part.input_max = torch.tensor(-1.5), torch.tensor(1.4)
                part.output_min, part.output_max = torch.tensor(-1.2), torch.tensor(1.3)
        return model

    def sizes(self):
        a = self.config
        return {"num_mel_bins": 128, "feed_forward_length": 4 * a.hidden_size, "block_count": a.num_hidden_layers,
                "attention.head_count": a.num_attention_heads}

    def tensors(self):
        for name, tensor in super().tensors():
            yield name.replace(".per_dim_scale.per_dim_scale", ".per_dim_scale.weight"), tensor

    def value(self, name, tensor):
        if "per_dim_scale" in name:
            return torch.nn.functional.softplus(tensor)
        if "depthwise" in name:
            return tensor[:, 0]
        return tensor[None] if tensor.dim() == 0 else tensor

    def rows(self):
        made = hf.Gemma4AudioFeatureExtractor()([test_sound(int(self.seconds * RATE))], return_tensors="pt")
        out = self.model.tower(made["input_features"], made["input_features_mask"])
        return self.model.embed(out.last_hidden_state)[0][out.attention_mask[0]]


class Gemma4Unified(Encoder):
    name, eps, seconds = "gemma4ua", 1e-6, 0.31
    names = {"embed.embedding_projection.": "mm.a.input_projection."}

    @classmethod
    def configs(cls):
        config = types.SimpleNamespace(hidden_size=640, output_proj_dims=640, rms_norm_eps=1e-6)
        return config, {"epsilon": lambda c: setattr(c, "rms_norm_eps", 0.1)}

    def make(self, config):
        text = types.SimpleNamespace(hidden_size=DIM)
        return parts(embed=unified.Gemma4UnifiedMultimodalEmbedder(config, text))

    def sizes(self):
        return {"num_mel_bins": 128, "feed_forward_length": 0, "block_count": 0, "attention.head_count": 0}

    def rows(self):
        made = hf.Gemma4UnifiedAudioFeatureExtractor()(test_sound(int(self.seconds * RATE)), return_tensors="pt")
        return self.model.embed(made["input_features"][0])


class GraniteSpeech(Encoder):
    name, seconds = "granite_speech", 21.103
    layer = {"ff1.pre_norm": "ffn_norm", "ff1.up_proj": "ffn_up", "ff1.down_proj": "ffn_down",
             "ff2.pre_norm": "ffn_norm_1", "ff2.up_proj": "ffn_up_1", "ff2.down_proj": "ffn_down_1",
             "attn.pre_norm": "ln1", "attn.to_q": "attn_q", "attn.to_k": "attn_k", "attn.to_v": "attn_v",
             "attn.to_out": "attn_out", "conv.norm": "norm_conv", "conv.up_conv": "conv_pw1",
             "conv.down_conv": "conv_pw2", "conv.depth_conv.conv": "conv_dw", "conv.batch_norm": "conv_norm",
             "post_norm": "ln2"}
    asking = {"attention.attention.query": "self_attn_q", "attention.attention.key": "self_attn_k",
              "attention.attention.value": "self_attn_v", "attention.output.dense": "self_attn_out",
              "attention.output.LayerNorm": "self_attn_norm", "crossattention.attention.query": "cross_attn_q",
              "crossattention.attention.key": "cross_attn_k", "crossattention.attention.value": "cross_attn_v",
              "crossattention.output.dense": "cross_attn_out", "crossattention.output.LayerNorm": "cross_attn_norm",
              "intermediate_query.dense": "ffn_up", "output_query.dense": "ffn_down",
              "output_query.LayerNorm": "ffn_norm"}
    names = {"encoder.input_linear.": "a.input_projection.", "encoder.out.": "a.enc_ctc_out.",
             "encoder.out_mid.": "a.enc_ctc_out_mid.", "encoder.layers.": "{}", "projector.query": "a.proj_query",
             "projector.qformer.layernorm.": "a.proj_norm.", "projector.linear.": "a.proj_linear.",
             "projector.qformer.encoder.layer.": "queries"}
    keys = {"chunk_size": 24, "conv_kernel_size": 15, "max_pos_emb": 30, "projector.window_size": 15,
            "projector.downsample_rate": 5, "projector.head_count": 2}

    @classmethod
    def configs(cls):
        sizes = dict(input_dim=2 * BINS, num_layers=2, hidden_dim=32, feedforward_mult=2, num_heads=2, output_dim=42,
                     context_size=24, max_pos_emb=30, conv_kernel_size=15)
        asking = dict(model_type="blip_2_qformer", hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=64, encoder_hidden_size=32, cross_attention_frequency=1,
                      use_qformer_text_input=False)
        config = hf.GraniteSpeechConfig(encoder_config=sizes, projector_config=asking,
                                        text_config={"model_type": "granite", "hidden_size": DIM})
        config.hidden_size = config.encoder_config.hidden_dim
        config.projector_config._attn_implementation = "eager"
        return config, {"blocks": lambda c: setattr(c.encoder_config, "context_size", 30),
                        "distances": lambda c: setattr(c, "turned", True),
                        "characters": lambda c: setattr(c, "silent", True),
                        "windows": lambda c: setattr(c, "window_size", 10)}

    def make(self, config):
        model = parts(encoder=granite.GraniteSpeechCTCEncoder(config.encoder_config),
                      projector=granite.GraniteSpeechEncoderProjector(config))
        rng = np.random.default_rng(1)
        for name, part in model.named_modules():
            if isinstance(part, torch.nn.BatchNorm1d):
                part.running_mean = torch.from_numpy(0.2 * rng.standard_normal(64).astype(np.float32))
                part.running_var = torch.from_numpy(rng.uniform(0.3, 2, 64).astype(np.float32))
        return model

    def sizes(self):
        a = self.config.encoder_config
        return {"num_mel_bins": a.input_dim, "feed_forward_length": a.hidden_dim * a.feedforward_mult,
                "block_count": a.num_layers, "attention.head_count": a.num_heads}

    def tensors(self):
        norms = {}
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if name.startswith("projector.qformer.encoder.layer."):
                number, rest = name[len("projector.qformer.encoder.layer."):].split(".", 1)
                part, _, kind = rest.rpartition(".")
                yield f"a.proj_blk.{number}.{self.asking[part]}.{kind}", tensor
            elif "batch_norm" in name:  # the file has them as factors and shifts
                norms.setdefault(name.split(".")[2], {})[name.rpartition(".")[2]] = tensor
            elif "rel_pos_emb" in name:
                yield f"a.blk.{name.split('.')[2]}.attn_rel_pos_emb", tensor
            elif "to_kv" in name:
                for part, values in zip("kv", tensor.chunk(2)):
                    yield f"a.blk.{name.split('.')[2]}.attn_{part}.weight", values
            elif name == "projector.query":
                yield "a.proj_query", tensor
            elif name.startswith("encoder.layers."):
                number, rest = name[len("encoder.layers."):].split(".", 1)
                part, _, kind = rest.rpartition(".")
                yield f"a.blk.{number}.{self.layer[part]}.{kind}", self.value(name, tensor)
            else:
                for old, new in self.names.items():
                    if name.startswith(old):
                        yield new + name[len(old):], tensor
        for number, n in norms.items():
            by = n["weight"] / torch.sqrt(n["running_var"] + 1e-5)
            yield f"a.blk.{number}.conv_norm.weight", by
            yield f"a.blk.{number}.conv_norm.bias", n["bias"] - n["running_mean"] * by

    def value(self, name, tensor):
        if "depth_conv" in name:
            return tensor[:, 0]
        return tensor[..., 0] if tensor.dim() == 3 else tensor

    def rows(self):
        """The spectrogram is as GraniteSpeechFeatureExtractor makes it by torchaudio."""
        encoder, c = self.model.encoder, self.config
        sound = torch.from_numpy(test_sound(int(self.seconds * RATE)))
        power = torch.stft(sound, 512, 160, 400, torch.hann_window(400), center=True, pad_mode="reflect",
                           return_complex=True).abs() ** 2
        bands = hf.audio_utils.mel_filter_bank(257, BINS, 0, RATE / 2, RATE, norm=None, mel_scale="htk")
        x = (power.T @ torch.from_numpy(bands).float()).clip(min=1e-10).log10()
        x = torch.maximum(x, x.amax() - 8) / 4 + 1
        x = x[:len(x) // 2 * 2].reshape(1, -1, 2 * BINS)
        if getattr(c, "turned", False):
            encoder.attention_dists = 2 * c.encoder_config.max_pos_emb - encoder.attention_dists
        if getattr(c, "silent", False):
            encoder.out_mid.weight.data *= 0
        return self.model.projector(encoder(x).last_hidden_state)[0]


ENCODERS = [Voxtral, Ultravox, GlmAsr, AudioFlamingo3, Qwen2Audio, Qwen25Omni, Qwen3Omni, Gemma4, Gemma4Unified,
            GraniteSpeech]


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    out, wanted = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    for kind in ENCODERS:
        if wanted and kind.name not in wanted:
            continue
        config, mistakes = kind.configs()
        encoder = kind(config)
        with torch.no_grad():
            rows = encoder.rows()
            changes = {}
            for what, mistake in mistakes.items():
                wrong = kind.configs()[0]
                mistake(wrong)
                other = kind(wrong).rows()
                changes[what] = difference(other, rows) if other.shape == rows.shape else float("inf")
                if changes[what] < 5 * TOLERANCE:
                    sys.exit(f"{kind.name}: {what} changes the rows by {changes[what]:.1e} only")
        encoder.file(f"{out}/{kind.name}.gguf")
        np.save(f"{out}/{kind.name}.rows.npy", rows.numpy())
        print(f"{kind.name}: {tuple(rows.shape)} rows" + "".join(f", {w} {c:.1e}" for w, c in changes.items()))


if __name__ == "__main__":
    main()
