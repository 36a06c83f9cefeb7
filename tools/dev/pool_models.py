"""GLM-5.3-Flash's pools of tokens for make_manifold_models.py: prompts, and wrong programs of its indexer."""
import math

import torch

from index_models import clear_choice
from stream_models import each


def pool_scores(m, hidden, latents, relu=True, weighs=True, norm=True, gated=True, places=True):
    """(tokens, pools) f32: how much a token wants to attend to a pool. The parameters make wrong programs."""
    q = m.wq_b(latents[0]).unflatten(-1, (m.n_heads, m.head_dim))
    k = m.wk(hidden[0])
    if norm:
        k = m.k_norm(k)
    n = len(k) // m.index_kpool
    gates = hidden[0] @ m.index_kpool_compress_gate.T * (1.0 if gated else 0.0)
    shares = gates[:n * m.index_kpool].unflatten(0, (n, m.index_kpool))
    shares = (shares + (m.index_kpool_compress_ape if places else 0.0)).softmax(dim=1)
    pooled = (shares * k[:n * m.index_kpool].unflatten(0, (n, m.index_kpool))).sum(dim=1)
    products = torch.einsum("thd,bd->thb", q, pooled)
    weights = m.weights_proj(hidden[0]) if weighs else torch.ones(hidden.shape[1], m.n_heads)
    return ((products.relu() if relu else products) * weights[..., None]).sum(dim=1)


def another_choice(most=None, tail=True, **how):
    """A wrong program: other scores, another number of pools, or nothing of the last part of a pool."""
    def edit(m):
        def forward(hidden_states, q_resid, attention_mask=None, cache=None):
            n, block = hidden_states.shape[1], m.index_kpool
            scores = pool_scores(m, hidden_states, q_resid, **how)
            rows = []
            for t in range(n):
                whole = (t + 1) // block
                best = scores[t, :whole].topk(min(most or m.index_topk // block, whole)).indices.tolist()
                row = [b * block + i for b in best for i in range(block)]
                row += list(range(whole * block, t + 1)) if tail else []
                rows.append(row or [t])
            width = max(map(len, rows))
            return torch.tensor([[r + [-1] * (width - len(r)) for r in rows]], dtype=torch.int32)
        m.forward = forward
    return each("index_kpool_compress_ape", edit)


pools = {"all pools": another_choice(most=1 << 20), "one pool more": another_choice(most=5),
         "one pool less": another_choice(most=3), "negative scores": another_choice(relu=False),
         "no weights of heads": another_choice(weighs=False), "keys without norm": another_choice(norm=False),
         "mean of a pool": another_choice(gated=False, places=False), "no gates": another_choice(gated=False),
         "no places in a pool": another_choice(places=False), "no tail": another_choice(tail=False)}


def pool_gaps(m, args, kw, out):
    """The gaps between the scores of the last pool that is chosen and the first one that is not."""
    given = args[:2] if len(args) > 1 else (kw["hidden_states"], kw["q_resid"])
    scores, most = pool_scores(m, *given), m.index_topk // m.index_kpool
    for t in range(scores.shape[0]):
        whole = (t + 1) // m.index_kpool
        if whole <= most:
            continue
        ranks = scores[t, :whole].sort(descending=True)
        chosen = {i // m.index_kpool for i in out[0, t].tolist() if 0 <= i < whole * m.index_kpool}
        gap = float((ranks.values[most - 1] - ranks.values[most]) / scores.abs().max())
        assert gap < 1e-6 or chosen == set(ranks.indices[:most].tolist()), "not what transformers chooses"
        yield gap


def clear_pools(n):
    return clear_choice(n, gaps=pool_gaps)
