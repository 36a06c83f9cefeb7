#!/usr/bin/env python3
"""Writes tests/golden/replay: make_replay_golden.py REFERENCE [OUT]; small cases of `kvrun replay`, one per method.

REFERENCE is the folder of kvref.py, plain numpy arithmetic of the methods. Needs numpy. All cases read the tensors in
OUT; each has a folder with the expected k_hat, v_hat and tier, score if there is one, and case.json, in the form of
make_golden.py beside kvref.py.
"""
import json, os, sys
import numpy as np

sys.path.insert(0, sys.argv[1])
import kvref as R

T, H, KV, D = 160, 4, 2, 32
OUT = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden",
                                                         "replay")


def f16(a):
    return a.astype(np.float16).astype(np.float32)


def save(folder, **arrays):
    os.makedirs(folder, exist_ok=True)
    for name, a in arrays.items():
        np.save(os.path.join(folder, name + ".npy"), a)


def case(name, kv, k_hat, v_hat, tier, score=None):
    folder = os.path.join(OUT, name)
    save(folder, k_hat=k_hat.astype(np.float32), v_hat=v_hat.astype(np.float32), tier=tier.astype(np.uint8))
    if score is not None:
        save(folder, score=score.astype(np.float32))
    with open(os.path.join(folder, "case.json"), "w") as f:
        json.dump({"name": name, "kv": kv}, f, indent=1)
        f.write("\n")


def tiers(layers, which, value):
    t = np.zeros((layers, T, KV))
    t[:, which] = value
    return t


def main():
    layers = R.make_qkv(7, T, H, KV, D, layers=2)
    q, k, v = (f16(np.stack([x[i] for x in layers])) for i in range(3))
    rng = np.random.default_rng(8)
    probes = R.probe_rows(T, rng)
    save(OUT, q=q, k=k, v=v, dq=rng.standard_normal((3, H, D)).astype(np.float32), probes=probes)

    n = 96  # of 160 tokens, with a window of 32 + 32
    window = "group=32,recent_keep=32,flush=32"
    for name, kv, bits, eta in (("kivi1", "kivi1,", 1, 0), ("kivi2", "kivi2,", 2, 0), ("kivi4", "kivi4,", 4, 0),
                                ("eta1", "kivi1,eta=0.25,", 1, 0.25), ("eta2", "kivi2,eta=0.045,", 2, 0.045)):
        kh, vh = k[:1].copy(), v[:1].copy()
        kh[0, :n] = R.per_channel(k[0, :n], bits, 32, eta)
        vh[0, :n] = R.per_token(v[0, :n], bits, 32, eta)
        case(name, kv + window, kh, vh, tiers(1, slice(0, n), 2))

    eta = 1 / 6
    kh, vh = k.copy(), v.copy()
    for l in range(2):  # codes of layer 0, parameters of each layer
        def shared(x, shape, axis):
            codes = R.quant_group(x[0, :n].reshape(shape), 1, eta, axis)[1]
            _, _, scale, zero = R.quant_group(x[l, :n].reshape(shape), 1, eta, axis)
            return (codes * scale + zero).reshape(n, KV, D)
        kh[l, :n] = shared(k, (n // 32, 32, KV, D), 1)
        vh[l, :n] = shared(v, (n, KV * D // 32, 32), 2)
    case("xquant_shared", "xquant,kq=0,vq=0,km=0,vm=0,eta1=0.16666667," + window, kh, vh, tiers(2, slice(0, n), 2))

    W = 32  # a flush drops exactly a group of tokens, so that no token waits for its group
    rest = np.setdiff1d(np.arange(T), R.log_window(T, W))
    rest = rest[:len(rest) - len(rest) % 32]
    kh, vh = k[:1].copy(), v[:1].copy()
    kh[0, rest] = R.per_channel(k[0, rest], 2, 32)
    vh[0, rest] = R.per_token(v[0, rest], 2, 32)
    case("logquant2", f"logquant,bits=2,group=32,W={W}", kh, vh, tiers(1, rest, 2))

    p = R.saliency(q[0], k[0], probes, True)
    salient = R.salient_tokens(p.mean(axis=1), 0.6)
    kh, vh, t = k[:1].copy(), v[:1].copy(), tiers(1, salient, 1)
    for which, bits in ((salient, 4), (np.setdiff1d(np.arange(T), salient), 2)):
        kh[0, which] = R.quant_group(k[0, which], bits, axis=0)[0]
        vh[0, which] = R.channel_separable(v[0, which], bits, KV * D)
    t[t == 0] = 2
    case("zipcache42", "zipcache,ratio=0.6,recent_keep=0", kh, vh, t, p[None])

    p = R.saliency(q[0], k[0], np.arange(T), False)
    salient = R.salient_tokens(p.mean(axis=1), 0.2)
    other = np.setdiff1d(np.arange(T), salient)
    kh, vh, t = k[:1].copy(), v[:1].copy(), tiers(1, salient, 1)
    kh[0, other] = R.balanced_per_token(q[0], k[0], 2, D)[other]
    vh[0, other] = R.per_token(v[0], 2, D)[other]
    t[t == 0] = 2
    case("mikv_f16_2", f"mikv,ratio=0.2,group={D},recent_keep=0,per_head=off", kh, vh, t, p[None])

    kh, vh = k[:1].copy(), v[:1].copy()
    kh[0, 4:T - 48] = vh[0, 4:T - 48] = np.nan
    case("streaming", "streaming,sinks=4,recent=48", kh, vh, tiers(1, slice(4, T - 48), 3))


if __name__ == "__main__":
    main()
