"""DeepSeek's sparse attention for make_latent_models.py: prompts, and wrong programs of its indexer."""
import math

import torch

from make_tiny_models import TOLERANCE, logits, logits_f16_kv, prompt, relative
from stream_models import each


def turned(x, cos, sin, pairs, last=False):
    """The first or last channels rotated: channel i with its neighbour, or with that of the other half."""
    if last:
        rotated = turned(x[..., -cos.shape[-1]:], cos, sin, pairs)
        return torch.cat([x[..., :-cos.shape[-1]], rotated], dim=-1)
    half, width = cos.shape[-1] // 2, cos.shape[-1]
    c, s = cos[:, None, :half], sin[:, None, :half]
    a, b = (x[..., 0:width:2], x[..., 1:width:2]) if pairs else (x[..., :half], x[..., half:width])
    return torch.cat([a * c - b * s, b * c + a * s, x[..., width:]], dim=-1)


def scores(m, hidden, latents, positions, relu=True, weighs=True, norm=True, bias=True, pairs=None, rotates=True,
           heads=None, last=None):
    """(tokens, tokens) f32: how much a token wants to attend to another. The parameters make wrong programs."""
    cos, sin = (t[0] for t in positions)
    hunyuan = type(m).__name__.startswith("HYV4")
    pairs = type(m).__name__.startswith("Glm") if pairs is None else pairs
    last = hunyuan if last is None else last
    q = m.wq_b(latents[0]).unflatten(-1, (m.n_heads, m.head_dim))
    k = m.wk(hidden[0])
    if norm:
        k = m.k_norm(k) - (0 if bias else m.k_norm.bias)
    if rotates:
        q, k = turned(q, cos, sin, pairs, last), turned(k[:, None], cos, sin, pairs, last)[:, 0]
    products = torch.einsum("thd,bd->thb", q, k)
    weights = m.weights_proj(hidden[0]) if weighs else torch.ones(hidden.shape[1], m.n_heads)
    return ((products.relu() if relu else products) * weights[..., None])[:, :heads].sum(dim=1)


def another_choice(most=None, **how):
    """A wrong program: other scores, or another number of tokens."""
    def edit(m):
        def forward(hidden, latents, positions, mask, ids=None, cache=None):
            n = hidden.shape[1]
            causal = torch.ones(n, n).tril().bool()
            found = scores(m, hidden, latents, positions, **how).masked_fill(~causal, -math.inf)
            return found.topk(min(most or m.index_topk, n), dim=-1).indices[None].to(torch.int32)
        m.forward = forward
    return each("wq_b", edit)


def own_choice(model):
    """A wrong program: layers that share a choice attend to all tokens."""
    for layer in model.model.layers:
        a = layer.self_attn
        if a.indexer is None:
            def forward(*args, plain=a.forward, **kw):
                seen = kw["prev_topk_indices"]
                n = seen.shape[1]
                kw["prev_topk_indices"] = torch.arange(n).expand(1, n, n).to(torch.int32)
                out = plain(*args, **kw)
                return out[0], out[1], seen
            a.forward = forward


choices = {
    "all tokens": another_choice(most=1 << 20), "one token more": another_choice(most=9),
    "one token less": another_choice(most=7), "negative scores": another_choice(relu=False),
    "no weights of heads": another_choice(weighs=False), "keys without norm": another_choice(norm=False),
    "no bias of the norm": another_choice(bias=False), "not rotated": another_choice(rotates=False),
    "the first heads choose": another_choice(heads=2),
}


def token_gaps(m, args, kw, out):
    """The gaps between the scores of the last token that is chosen and the first one that is not."""
    given = args[:3] if len(args) > 2 else (kw["hidden_states"], kw["q_resid"], kw["position_embeddings"])
    s = scores(m, *given)
    for t in range(m.index_topk, len(s)):
        ranks = s[t, :t + 1].sort(descending=True)
        gap = float((ranks.values[m.index_topk - 1] - ranks.values[m.index_topk]) / s.abs().max())
        same = set(ranks.indices[:m.index_topk].tolist()) == set(out[0, t].tolist())
        assert gap < 1e-6 or same, "not what transformers chooses"
        yield gap


def gap_of(model, tokens, of, chooser):
    """The smallest gap, relative to the largest score, between what is chosen and what is not. chooser: an attribute
    that only modules that choose have."""
    gaps = []

    def look(m, args, kw, out):
        gaps.extend(of(m, args, kw, out))
    hooks = [m.register_forward_hook(look, with_kwargs=True) for m in model.modules() if hasattr(m, chooser)]
    logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return min(gaps)


def clear_choice(n, tries=400, least=0.002, gaps=token_gaps, chooser="wq_b"):
    """Of several prompts of n tokens the one whose tokens are chosen by the clearest scores, and whose choices do not
    depend on f16."""
    def best(model, seed):
        found = []
        for i in range(tries):
            tokens = prompt(n, seed + i)
            found.append((gap_of(model, tokens, gaps, chooser), i, tokens))
        for gap, i, tokens in sorted(found, key=lambda f: -f[0]):
            if gap > least and relative(logits_f16_kv(model, tokens), logits(model, tokens)) < 0.3 * TOLERANCE:
                print(f"tokens are chosen by a gap of {gap:.1e}")
                return tokens
        raise SystemExit(f"no clear choice; the largest gap is {max(found)[0]:.1e}")
    return best
