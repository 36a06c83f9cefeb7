"""Qwen4-Exp for make_recurrent_models.py: prompts, and wrong programs of its streams, n-grams and chosen blocks."""
import math
from types import MethodType

import numpy as np
import torch
from torch.nn import functional as F

from make_tiny_models import prompt

EOS = 2
# Gates of Qwen4-Exp's streams that differ, rows of n-grams, what attention gives. Sums of the first two are divided by
# the number of streams.
LOUD = {"input_mix_weight_down": 2.0, "block_inject_weight": 1.5, "input_mix_weight_up": 3.0, "ngram_embedding": 4.0,
        "self_attn.o_proj": 3.0}


def loudness(name, streams):
    """Factor of random weights."""
    for part, factor in LOUD.items():
        if name.endswith(part + ".weight"):
            return factor * (streams if part in ("input_mix_weight_down", "block_inject_weight") else 1)
    return 1.0


def loud_weights(name):
    """Mean and deviation of random weights where others would leave no effect: factors of streams, places in pools."""
    if name.endswith(("hc.base", "hc_base", "compress_ape")):
        return 0.0, 2.0
    if name.endswith("attended.weight"):
        return 0.0, 0.2
    return (1.5, 0.3) if name.endswith(("hc.scale", "hc_scale")) else None


def each(has, change):
    """A wrong program: change(part) of each part of the model that has this attribute."""
    def edit(model):
        found = [m for m in model.modules() if hasattr(m, has)]
        assert found, has
        for m in found:
            change(m)
    return edit


# ---- streams

def each_mixer(mixed=lambda m, x: x, injection=lambda m, x: x):
    """A wrong program: what streams give to a layer, or how much of its output each of them takes, is another thing."""
    def change(m):
        plain = m.forward
        def forward(x):
            out = plain(x)
            return (mixed(m, out[0]), out[1], injection(m, out[2])) if isinstance(out, tuple) else mixed(m, out)
        m.forward = forward
    return mixers(change)


def mixers(edit):
    return each("input_mix_weight_down", edit)


def gate_undivided(m):
    m.input_mix_weight_down.weight *= m.hc_count


def injection_undivided(m):
    if m.block_inject_weight is not None:
        m.block_inject_weight.weight *= m.hc_count


def one_norm(m):
    """All streams have one norm."""
    m.hc_norm.group_size = None


def plain_streams(m):
    """Streams are mixed and gate as they are, without the norm."""
    def forward(self, x):
        narrow = F.silu(self.input_mix_weight_down(self.hc_norm(x)) / self.hc_count)
        mixed = (torch.sigmoid(self.input_mix_weight_up(narrow)) * x).unflatten(-1, (self.hc_count, -1)).mean(dim=-2)
        if self.block_inject_weight is None:
            return mixed
        return mixed, x, 2 * torch.sigmoid(self.block_inject_weight(self.hc_norm(x)) / self.hc_count)
    m.forward = MethodType(forward, m)


def exchange_mixers(model):
    for layer in model.model.layers:
        first, second = layer.attn_hyper_connection, layer.mlp_hyper_connection
        layer.attn_hyper_connection, layer.mlp_hyper_connection = second, first


def mean_at_the_end(model):
    last = model.model.hyper_connection_mixer
    last.forward = lambda x: last.hc_norm(x).unflatten(-1, (last.hc_count, -1)).mean(dim=-2)


streams = {
    "gate of streams undivided": mixers(gate_undivided), "injection undivided": mixers(injection_undivided),
    "injection without its factor": each_mixer(injection=lambda m, x: x / 2),
    "all streams take alike": each_mixer(injection=lambda m, x: torch.ones_like(x)),
    "injection of the next stream": each_mixer(injection=lambda m, x: x.roll(1, dims=-1)),
    "sum of streams": each_mixer(mixed=lambda m, x: x * m.hc_count),
    "one norm of all streams": mixers(one_norm), "streams without norm": mixers(plain_streams),
    "gate of zero": mixers(lambda m: m.input_mix_weight_up.weight.zero_()),
    "weights of the other streams' norm": mixers(lambda m: m.hc_norm.weight.copy_(
        m.hc_norm.weight.roll(m.hidden_size))),
    "mixers exchanged": exchange_mixers, "mean of streams at the end": mean_at_the_end,
    "shared expert without gate": each("shared_expert_gate", lambda m: setattr(
        m.shared_expert_gate, "forward", lambda x: torch.full((*x.shape[:-1], 1), 40.0))),
    "no shared expert": each("shared_expert", lambda m: m.shared_expert.down_proj.weight.zero_()),
    "SiLU of the norm's gate": each("variance_epsilon", lambda m: setattr(m, "activation", "silu")),
}


# ---- n-grams

def lookups(edit):
    return each("layer_multipliers", edit)


def shifts(shift):
    """A wrong program: n-grams have other tokens; shift(tokens behind two EOS, how far back) -> tokens."""
    return lookups(lambda m: setattr(m, "_shift_right_ignore_eos", shift))


def without_reset(tokens, by):
    return F.pad(tokens, (by, 0), value=EOS)[:, :tokens.shape[1]]


def cut_at_itself(tokens, by):
    """An EOS token has no context either."""
    out = reset(tokens, by)
    return torch.where(tokens == EOS, torch.full_like(out, EOS), out)


def reset(tokens, by, fill=EOS):
    out = without_reset(tokens, by)
    for i in range(1, by + 1):
        out = torch.where(without_reset(tokens, i) == EOS, torch.full_like(out, fill), out)
    return out


def without_dilation(m):
    def forward(self, x, cache):
        taps = self.conv1d.weight
        y = F.conv1d(F.pad(x.transpose(1, 2), (taps.shape[-1] - 1, 0)), taps, groups=taps.shape[0])
        return F.silu(y).transpose(1, 2)
    m._short_conv = MethodType(forward, m)


def linear_conv(m):
    def forward(self, x, cache):
        return self.conv1d(F.pad(x.transpose(1, 2), (self.short_conv_state_len, 0))).transpose(1, 2)
    m._short_conv = MethodType(forward, m)


def another_gate(of):
    """A wrong program: the gate of what n-grams give is another function of the product of key and query."""
    def edit(m):
        def forward(self, hidden_states, input_ids, cache, conv_mask=None):
            rows, shape = self.ple_embedding(input_ids, cache), (self.hc_count, self.hidden_size)
            keys = self.norm_key(self.key_proj(rows)).unflatten(-1, shape)
            products = (keys * self.norm_query(hidden_states).unflatten(-1, shape)).sum(dim=-1, keepdim=True)
            gated = (of(products, self.hidden_size) * self.value_proj(rows).unsqueeze(-2)).flatten(-2)
            return gated + self._short_conv(self.norm_conv(gated), cache)
        m.forward = MethodType(forward, m)
    return each("norm_query", edit)


def signed_root(x):
    return x.abs().clamp_min(1e-6).sqrt() * x.sign()


def in_first_layer(model):
    first, second = model.model.layers[:2]
    first.ple, second.ple = second.ple, None


def each_norm_whole(m):
    for norm in (m.norm_key, m.norm_query, m.norm_conv):
        norm.group_size = None


def pairs_behind(m):
    """Heads of the longer n-grams come first."""
    half = m.ngram_embedding.weight.shape[1] * m.heads_per_ngram
    m.register_forward_hook(lambda m, a, out: out.roll(half, dims=-1))


def behind_attention(model):
    """A wrong program: n-grams are added to the streams behind attention."""
    layer = next(layer for layer in model.model.layers if layer.ple is not None)
    (ple, layer.ple), mixer, seen = (layer.ple, None), layer.mlp_hyper_connection, {}
    plain = mixer.forward
    layer.register_forward_pre_hook(lambda l, a, more: seen.update(ids=more["ple_input_ids"]), with_kwargs=True)
    mixer.forward = lambda x: plain(x + ple(x, seen["ids"], None))


ngrams = {
    "no reset at EOS": shifts(without_reset), "EOS resets itself": shifts(cut_at_itself),
    "another token of resets": shifts(lambda tokens, by: reset(tokens, by, 0)),
    "multipliers from the last": lookups(lambda m: m.layer_multipliers.copy_(m.layer_multipliers.flip(0))),
    "heads without offsets": lookups(lambda m: m.ngram_heads_offsets.zero_()),
    "one size of heads": lookups(lambda m: m.ngram_heads_vocab_sizes.fill_(m.head_vocab_sizes[0])),
    "pairs behind triples": lookups(pairs_behind),
    "no convolution of n-grams": each("norm_conv", lambda m: m.conv1d.weight.zero_()),
    "no dilation": each("norm_conv", without_dilation), "convolution without SiLU": each("norm_conv", linear_conv),
    "taps of n-grams from the newest": each("norm_conv", lambda m: m.conv1d.weight.copy_(m.conv1d.weight.flip(-1))),
    "gate without root": another_gate(lambda x, n: torch.sigmoid(x / math.sqrt(n))),
    "gate undivided": another_gate(lambda x, n: torch.sigmoid(signed_root(x))),
    "gate without sign": another_gate(lambda x, n: torch.sigmoid(x.abs().sqrt() / n ** 0.25)),
    "no gate of n-grams": another_gate(lambda x, n: torch.ones_like(x)),
    "one norm of all streams' n-grams": each("norm_conv", each_norm_whole),
    "n-grams in the first layer": in_first_layer, "n-grams behind attention": behind_attention,
}

# ---- blocks of tokens

def choose(m, hidden, positions, mean=True, rotate="first", relu=True, heads=None, blocks=None, tail=True, size=None,
           norm_first=False):
    """(tokens x tokens) which tokens each token attends to, and the smallest gap, relative to the largest score,
    between a block that is chosen and one that is not. The parameters make wrong programs."""
    cos, sin = (t[0] for t in positions)
    size, n = size or m.compress_ratio, hidden.shape[1]
    blocks = blocks or m.token_budget // size
    q, k = m.index_qk_proj(hidden[0]).unflatten(-1, (-1, m.index_head_dim)).split([m.index_n_heads, 1], dim=1)
    k = k[:, 0]

    def turned(x, c, s):
        half, width = c.shape[-1] // 2, c.shape[-1]
        a, b, rest = x[..., :half], x[..., half:width], x[..., width:]
        return torch.cat([a * c[..., :half] - b * s[..., :half], b * c[..., :half] + a * s[..., :half], rest], dim=-1)

    q = turned(m.q_layernorm(q), cos[:, None], sin[:, None])[:, :heads]
    whole = n // size
    groups = (m.k_layernorm(k) if norm_first else k)[:whole * size].unflatten(0, (whole, size))
    pooled = groups.mean(dim=1) if mean else groups[:, -1]
    at = {"first": torch.arange(whole) * size, "last": torch.arange(whole) * size + size - 1,
          "block": torch.arange(whole), "none": torch.zeros(whole, dtype=torch.long)}[rotate]
    pooled = turned(pooled if norm_first else m.k_layernorm(pooled), cos[at], sin[at])
    products = torch.einsum("thd,bd->thb", q, pooled)
    scores = (products.relu() if relu else products).sum(dim=1)
    mask, gap = torch.zeros(n, n, dtype=torch.bool), math.inf
    for t in range(n):
        done = (t + 1) // size
        ranks = scores[t, :done].sort(descending=True)
        if done > blocks:
            gap = min(gap, float((ranks.values[blocks - 1] - ranks.values[blocks]) / scores.abs().max()))
        for b in ranks.indices[:blocks]:
            mask[t, b * size:(b + 1) * size] = True
        if tail:
            mask[t, done * size:t + 1] = True
        elif done == 0:
            mask[t, :t + 1] = True
    return mask, gap


def another_choice(**how):
    def edit(m):
        m.forward = lambda h, positions, mask, cache: choose(m, h, positions, **how)[0][None, None]
    return each("index_qk_proj", edit)


def all_tokens(m):
    m.forward = lambda h, positions, mask, cache: torch.ones_like(mask, dtype=torch.bool)


choices = {
    "all tokens": each("index_qk_proj", all_tokens), "more blocks": another_choice(blocks=3),
    "fewer blocks": another_choice(blocks=1), "blocks of two tokens": another_choice(size=2),
    "key of the last token": another_choice(mean=False), "norm before the mean": another_choice(norm_first=True),
    "blocks rotated as their last token": another_choice(rotate="last"),
    "blocks rotated by their number": another_choice(rotate="block"),
    "blocks not rotated": another_choice(rotate="none"), "negative scores": another_choice(relu=False),
    "the first head chooses": another_choice(heads=1), "no tail": another_choice(tail=False),
}


# ---- prompts

def with_resets(n, at):
    """Prompts of n tokens with EOS at these positions."""
    def make(model, seed):
        tokens = prompt(n, seed)
        tokens[list(at)] = EOS
        return tokens
    return make


def clear_choice(make, tries=60):
    """Of several prompts the one whose chosen blocks are the clearest."""
    def best(model, seed):
        found = (-1.0, None)
        for i in range(tries):
            tokens, gaps = make(model, seed + i), []
            def look(m, args):
                hidden, positions, mask, _ = args
                chosen, gap = choose(m, hidden, positions)
                same = torch.equal(chosen, plain[m](*args)[0, 0])
                assert gap == 0 or same, "not what transformers chooses"
                gaps.append(gap)
            indexers = [m for m in model.modules() if hasattr(m, "index_qk_proj")]
            plain = {m: m.forward for m in indexers}
            hooks = [m.register_forward_pre_hook(look) for m in indexers]
            with torch.no_grad():
                model(input_ids=torch.from_numpy(np.asarray(tokens, np.int64))[None], use_cache=False)
            for hook in hooks:
                hook.remove()
            found = max(found, (min(gaps), tokens), key=lambda f: f[0])
        assert found[0] > 0.01, f"blocks chosen by a gap of {found[0]}"
        return found[1]
    return best
