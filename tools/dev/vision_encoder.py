"""A tiny random vision encoder of HF transformers, and its file as llama.cpp's converter would write it. See
make_vision_models.py."""
import gguf
import numpy as np
import torch
import transformers as hf
import zlib

DIM, TOLERANCE = 32, 1e-3
BEFORE, AFTER = [1, 17, 200, 45], [9, 150, 33, 71, 12, 250]
GELU = "gelu_pytorch_tanh"
MEAN, DEVIATION = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
TEXT = hf.LlamaConfig(hidden_size=DIM, intermediate_size=40, num_hidden_layers=1, num_attention_heads=4, vocab_size=300)


def with_tanh(model):
    """GELU by its approximation, as everywhere here."""
    for m in model.modules():
        for name, part in m.named_children():
            if isinstance(part, torch.nn.GELU):
                setattr(m, name, torch.nn.GELU(approximate="tanh"))
    return model


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
    keys, layer, projector, flags, with_logits = {}, {}, "", [], False
    of = None  # the class whose encoder, file and tile these are: only logits are others

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
        self.more_keys(w)
        for name, tensor in self.tensors():
            w.add_tensor(name, np.ascontiguousarray(tensor.detach().numpy().astype(self.type_of(name))))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    def more_keys(self, writer):
        """Of other types."""

    def type_of(self, name):
        return np.float32

    def dim(self):
        return DIM

    def tensors(self):
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
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


def difference(a, b):
    return float((a - b).abs().max() / b.abs().max())
