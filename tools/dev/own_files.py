"""GGUF files of families that the converter of make_family_models.py does not know, by the names of keys and tensors
that llama.cpp 0.7.0 reads."""
import numpy as np


def write(path, arch, keys, tensors, vocabulary):
    """keys: name without the family's -> a value, or a list of them; tensors: name -> array; matrices become F16, taps
    of convolutions (4 dimensions) F32. vocabulary: what writes that."""
    import gguf

    w = gguf.GGUFWriter(path, arch)
    w.add_name("tiny random checkpoint")
    for key, value in keys.items():
        kind = {bool: w.add_bool, float: w.add_float32, list: w.add_array}.get(type(value), w.add_uint32)
        kind(f"{arch}.{key}", value)
    vocabulary(w)
    for name, tensor in tensors.items():
        w.add_tensor(name, tensor.astype(np.float16 if tensor.ndim in (2, 3) else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def named(tensors, of_model, of_layers):
    """Tensors of a model by other names; those without one are left out. of_layers: of what stands behind
    model.layers.N. and before .weight."""
    out = {}
    for name, tensor in tensors.items():
        front, _, part = name.removesuffix(".weight").removeprefix("model.").rpartition("layers.")
        l, _, part = part.partition(".") if _ else ("", "", part)
        to = f"blk.{l}.{of_layers[part]}" if l and part in of_layers else "" if l else of_model.get(part, "")
        if to:
            out[to if to.endswith((".weight", ".bias")) else to + ".weight"] = tensor.float().numpy()
    return out
