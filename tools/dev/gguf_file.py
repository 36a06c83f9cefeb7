"""Reads the header of a GGUF file: metadata, and the position of each tensor."""
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, F16 = 0, 1  # types of tensors


def read_header(path, data):
    """(metadata, {name: (shape with rows first, type, offset in data)}); ends the program if it is not a GGUF file."""
    return parse_header(path, data)[:2]


def parse_header(path, data):
    """The same, with the end of the header and the beginning of the tensors."""
    at = 8

    def take(code):
        nonlocal at
        value = struct.unpack_from("<" + code, data, at)[0]
        at += struct.calcsize("<" + code)
        return value

    def string():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            kind, n = take("I"), take("Q")
            return [value(kind) for _ in range(n)]
        return take(SCALARS[kind])

    if data[:4] != b"GGUF":
        raise SystemExit(f"{path} is no GGUF file")
    n_tensors, n_keys = take("Q"), take("Q")
    meta = {}
    for _ in range(n_keys):
        key = string()
        meta[key] = value(take("I"))
    infos = [(string(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(n_tensors)]
    align = meta.get("general.alignment", 32)
    base = (at + align - 1) // align * align
    infos = {name: (tuple(dims[::-1]), kind, base + offset) for name, dims, kind, offset in infos}
    return meta, infos, at, base
