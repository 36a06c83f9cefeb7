#!/usr/bin/env python3
"""Writes engine/core/iq_grids.inc: the grids of GGML's IQ types, which are constants of the format.

make_iq_grids.py > engine/core/iq_grids.inc
They come from the package gguf (PyPI, MIT licence, part of llama.cpp), in which each element of an entry is an index
into the values of its grid. The written file has the same indices, with an entry as a number of 16 bits.
"""
import gguf.quants
import numpy as np

print("// Grids of GGML's IQ types, written by tools/dev/make_iq_grids.py from the package gguf (MIT licence).")
print("// An entry is one number: element i of it is value number (entry >> bits * i) % 2^bits.")
for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
    quant = getattr(gguf.quants, name)
    quant.init_grid()
    n, width = quant.grid_shape
    bits = 3 if len(quant.grid_map) > 4 else 2
    grid = np.asarray(quant.grid).reshape(n, width)
    codes = np.searchsorted(np.array(quant.grid_map), grid)
    assert (np.array(quant.grid_map)[codes] == grid).all()
    entries = (codes << (bits * np.arange(width))).sum(axis=1)
    assert entries.max() < 1 << 16
    print(f"constexpr uint16_t k{name.replace('_', '')}[{n}] = {{")
    text = [f"{e}," for e in entries]
    line = "   "
    for t in text:
        if len(line) + len(t) + 1 > 118:
            print(line)
            line = "   "
        line += " " + t
    print(line + "\n};")
