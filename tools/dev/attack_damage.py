"""Damage for attack.py: boundary values for a file's numbers, and random bytes anywhere."""

EDGES = [0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, 1 << 62,
         (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


# ---- GGUF: where the numbers are

def gguf_fields(data):
    """(offset, width) of every count, length, type, dimension and offset of a valid file."""
    out, at = [], 0

    def number(width):
        nonlocal at
        out.append((at, width))
        at += width
        return int.from_bytes(data[at - width:at], "little")

    def value(kind):
        nonlocal at
        if kind == 8:
            n = number(8)
            at += n
        elif kind == 9:
            inner, n = number(4), number(8)
            for i in range(n):
                if i > 40 and inner not in (8, 9):
                    at += (n - i) * {0: 1, 1: 1, 2: 2, 3: 2, 7: 1, 10: 8, 11: 8, 12: 8}.get(inner, 4)
                    break
                value(inner)
        else:
            number({0: 1, 1: 1, 2: 2, 3: 2, 7: 1, 10: 8, 11: 8, 12: 8}.get(kind, 4))

    number(4), number(4)
    tensors, keys = number(8), number(8)
    for _ in range(keys):
        n = number(8)
        at += n
        value(number(4))
    for _ in range(tensors):
        n = number(8)
        at += n
        for _ in range(number(4)):
            number(8)
        number(4), number(8)
    return out


def edge(r, old, width):
    top = 1 << 8 * width
    return r.choice([r.choice(EDGES), old + 1, old - 1, old * 2, old ^ 1 << r.randrange(8 * width),
                     r.randrange(top)]) % top


def damage_fields(r, data, fields):
    data = bytearray(data)
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        at, width = r.choice(fields)
        old = int.from_bytes(data[at:at + width], "little")
        data[at:at + width] = edge(r, old, width).to_bytes(width, "little")
    return bytes(data)


def damage_bytes(r, data):
    data = bytearray(data)
    for _ in range(r.randrange(1, 9)):
        at = r.randrange(len(data) + 1)
        kind = r.randrange(5)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at] = bytes(r.randrange(256) for _ in range(r.randrange(1, 64)))
        elif kind == 2:
            del data[at:at + r.randrange(1, 64)]
        elif kind == 3 and len(data) > 8:
            a, b = r.randrange(len(data)), r.randrange(len(data))
            data[at:at + 32] = data[a:a + 32] if b % 2 else data[b:b + 32]
        elif at < len(data):
            data[at] = r.randrange(256)
    return bytes(data)
