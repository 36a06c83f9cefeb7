#!/usr/bin/env python3
"""Writes tiny random checkpoints whose KV heads each attend to blocks of tokens of their own, with the logits of HF
transformers: as make_family_models.py.

make_block_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
"""
import math

import torch
import transformers as hf
from torch.nn import functional as F

from make_expert_models import softmax, weighed, zeroed
from make_family_models import base, main
from index_models import clear_choice, turned
from stream_models import each


def block_scores(m, hidden, positions, pool="max", norms=True, rotates=True, size=None):
    """(heads, tokens, blocks) f32: how much a head of a token wants to attend to a block. The parameters make wrong
    programs."""
    cos, sin = (t[0] for t in positions)
    q, k = m.q_proj(hidden[0]).unflatten(-1, (m.num_heads, -1)), m.k_proj(hidden[0])[:, None]
    if norms:
        q, k = m.q_norm(q), m.k_norm(k)
    if rotates:
        q, k = turned(q, cos, sin, pairs=False), turned(k, cos, sin, pairs=False)
    size, n = size or m.block_size, len(k)
    products = torch.einsum("thd,bd->htb", q, k[:, 0])
    future = torch.ones(n, n).triu(1).bool()
    empty = 0.0 if pool == "mean" else -math.inf
    products = products.masked_fill(future, empty)
    blocks = F.pad(products, (0, -n % size), value=empty).unflatten(-1, (-1, size))
    return blocks.amax(-1) if pool == "max" else blocks.mean(-1) if pool == "mean" else blocks[..., 0]


def another_choice(most=None, local=True, joined=None, exchanged=False, **how):
    """A wrong program: other scores, another number of blocks, heads that choose together or for others."""
    def edit(m):
        def forward(hidden, positions, cache, ids):
            scores = block_scores(m, hidden, positions, **how)
            heads, n, blocks = scores.shape
            if joined:
                scores = joined(scores)[None].expand(heads, n, blocks).clone()
            own = torch.arange(n) // m.block_size
            if local:
                scores.scatter_(-1, own[None, :, None].expand(heads, n, 1), math.inf)
            best = scores.topk(min(most or m.topk_blocks, blocks), dim=-1)
            chosen = best.indices.masked_fill((best.values == -math.inf) | (best.indices > own[:, None]), -1)
            return (chosen.flip(0) if exchanged else chosen)[None]
        m.forward = forward
    return each("topk_blocks", edit)


choices = {
    "all blocks": another_choice(most=1 << 20), "one block more": another_choice(most=4),
    "one block less": another_choice(most=2), "the own block only if it is chosen": another_choice(local=False),
    "heads choose together": another_choice(joined=lambda s: s.amax(0)),
    "the first head chooses": another_choice(joined=lambda s: s[0]), "heads exchanged": another_choice(exchanged=True),
    "means of blocks": another_choice(pool="mean"), "the first token of a block": another_choice(pool="first"),
    "keys without norm": another_choice(norms=False),
    "not rotated": another_choice(rotates=False),
}


def block_gaps(m, args, kw, out):
    """The gaps between the scores of the last block that a head chooses and the first one that it does not."""
    given = args[:2] if len(args) > 1 else (kw["hidden_states"], kw["position_embeddings"])
    scores, most = block_scores(m, *given), m.topk_blocks - m.local_blocks
    for h, of_head in enumerate(scores):
        for t, row in enumerate(of_head):
            own = t // m.block_size
            if own <= most:
                continue
            ranks = row[:own].sort(descending=True)
            gap = float((ranks.values[most - 1] - ranks.values[most]) / row[:own].abs().max())
            same = set(ranks.indices[:most].tolist()) | {own} == set(out[0, h, t].tolist())
            assert gap < 1e-6 or same, "not what transformers chooses"
            yield gap


def models():
    half = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    gates = lambda change: each("swiglu_limit", change)
    return {
        "minimax_m3": (hf.models.minimax_m3_vl.MiniMaxM3VLTextConfig(**base(
            num_hidden_layers=3, head_dim=16, rope_parameters=half, rotary_dim=8, num_local_experts=6,
            num_experts_per_tok=2, intermediate_size=16, dense_intermediate_size=40, shared_intermediate_size=16,
            index_n_heads=2, index_head_dim=16, index_block_size=4, index_topk_blocks=3, index_local_blocks=1,
            layer_types=["full_attention"] + ["minimax_m3_sparse"] * 2, mlp_layer_types=["dense"] + ["sparse"] * 2,
            tie_word_embeddings=False)),
            choices | {
             "three experts": {"num_experts_per_tok": 3}, "softmax": weighed(softmax, True),
             "weights as they are": weighed(torch.sigmoid), "no bias of the choice": zeroed("e_score_correction_bias"),
             "no shared expert": zeroed("shared_experts.down_proj"), "unscaled": {"routed_scaling_factor": 1.0},
             "no limits": gates(lambda m: setattr(m, "swiglu_limit", 1e9)),
             "SiLU": gates(lambda m: setattr(m, "swiglu_alpha", 1.0)),
             "all channels rotated": {"partial_rotary_factor": 1.0}}),
    }


if __name__ == "__main__":
    main(models, {}, {"minimax_m3": clear_choice(42, gaps=block_gaps, chooser="topk_blocks")})
