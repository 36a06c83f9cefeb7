#!/usr/bin/env python3
"""Writes tiny assistants (--draft FILE) of tiny checkpoints of make_family_models.py, with their guesses.

make_assistant_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
LLAMA_CPP_DIR, packages and the seeds of the models: see make_family_models.py. The oracle is Gemma4AssistantForCausalLM
of transformers on the keys, values and hidden state of Gemma4ForCausalLM; llama.cpp's converter makes the files.

Files per assistant: NAME.gguf; NAME.tokens.npy (T + 1) i32, a text and the token behind it; NAME.logits.npy (cuts, 3,
vocab) f32: of three guesses behind each prefix of the text in CUTS, and the token behind it. right.gguf and
right.model.gguf: a model whose next token depends on the latest one alone, and an assistant that is always right.
"""
import copy
import os
import sys
import zlib

import numpy as np
import torch
import transformers as hf

import make_family_models as family
from make_family_models import WINDOW, build, convert, gemma4, layers
from make_prediction_models import main_file, rewrite
from make_tiny_models import TOLERANCE, VOCAB, prompt, relative

import gguf

T = 21
GUESSES = 3
CUTS = (1, 5, WINDOW, T)  # tokens before the one that the first guess reads


def assistant(dim, **changes):
    """Two layers of one kind and one of the other, for a model of `dim` channels."""
    text = gemma4(**dict(hidden_size=24, intermediate_size=56, num_hidden_layers=3, num_kv_shared_layers=3,
                         layer_types=layers(2) + ["full_attention"], final_logit_softcapping=None,
                         vocab_size_per_layer_input=0) | changes)
    return hf.Gemma4AssistantConfig(text_config=hf.Gemma4TextConfig(**text), backbone_hidden_size=dim)


# name of the model -> how its assistant's layers differ
KINDS = {"gemma4": dict(attention_k_eq_v=True, num_global_key_value_heads=1), "gemma4_shared": {}}


def models():
    tiny = family.models()
    return {name: (tiny[name][0], assistant(tiny[name][0].hidden_size, **changes)) for name, changes in KINDS.items()}


class Guesses:
    """What the assistant guesses behind prefixes of a text; `mistake` names what a wrong program does."""

    def __init__(self, target, helper):
        self.target, self.helper = target, helper

    @torch.no_grad()
    def behind(self, tokens, n, mistake=""):
        before = torch.tensor(tokens[None, :n].astype(np.int64))
        out = self.target.model(before, return_shared_kv_states=True)
        kv = {kind: tuple(t.clone() for t in pair) for kind, pair in out.shared_kv_states.items()}
        if mistake != "whole text in windows":
            # as in the layers of the model, and in llama.cpp: the token itself is one of the window
            kv["sliding_attention"] = tuple(t[:, :, 1 - WINDOW:] for t in kv["sliding_attention"])
        state = out.last_hidden_state[:, -1:]
        if mistake == "state before the final norm":
            state = self.before_norm(before)
        token = torch.tensor([[int(tokens[n])]])
        logits = []
        for i in range(GUESSES):
            at = n + (i if mistake == "positions of guesses count" else -1 if mistake == "position of the state" else 0)
            embedded = self.target.model.embed_tokens(token)
            if mistake == "embedding without its scale":
                embedded = embedded / self.target.config.hidden_size ** 0.5
            both = [state, embedded] if mistake == "inputs exchanged" else [embedded, state]
            y = self.helper(inputs_embeds=torch.cat(both, -1), position_ids=torch.tensor([[at]]), shared_kv_states=kv)
            logits.append(y.logits[0, 0])
            token = y.logits.argmax(-1)
            if mistake != "state of the model for every guess":
                state = y.last_hidden_state
        return torch.stack(logits).numpy().astype(np.float32)

    def before_norm(self, tokens):
        seen = []
        hook = self.target.model.norm.register_forward_hook(lambda m, args, out: seen.append(args[0]))
        self.target.model(tokens)
        hook.remove()
        return seen[0][:, -1:]

    def all(self, tokens, mistake=""):
        return np.stack([self.behind(tokens, n, mistake) for n in CUTS])


MISTAKES = ("whole text in windows", "state before the final norm", "positions of guesses count",
            "position of the state", "embedding without its scale", "inputs exchanged",
            "state of the model for every guess")


def build_helper(config, seed):
    """As make_family_models.build(): weights that are exact in f16."""
    text = build(config.text_config, seed)
    torch.manual_seed(0)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    helper = hf.Gemma4AssistantForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    rng = np.random.default_rng(seed + 7)
    with torch.no_grad():
        helper.model.load_state_dict(text.model.state_dict())
        helper.lm_head.weight = helper.model.embed_tokens.weight
        helper.model.embed_tokens.weight.mul_(config.text_config.hidden_size ** 0.5 * 2)  # it only makes logits
        for p in (helper.pre_projection.weight, helper.post_projection.weight, helper.model.embed_tokens.weight):
            a = rng.standard_normal(p.shape) / p.shape[-1] ** 0.5 if p.shape[0] != VOCAB else p.numpy()
            p.copy_(torch.from_numpy(np.asarray(a, np.float16).astype(np.float32)))
    return helper


def unit_norms(helper):
    """(mistake, assistant without the weights of one kind of norm, or without factors of layers)"""
    kinds = sorted({n.split(".")[-2] for n, _ in helper.named_parameters() if "norm" in n})
    for kind in kinds + ["layer_scalar"]:
        m = copy.deepcopy(helper)
        with torch.no_grad():
            for n, p in list(m.named_parameters()) + list(m.named_buffers()):
                if n.split(".")[-2] == kind or n.endswith(kind):
                    p.fill_(1.0)
        yield f"{kind} without weight", m


def make(name, target_config, config, out, verbose):
    seed = zlib.crc32(name.encode())
    target, helper = build(target_config, seed), build_helper(config, seed + 11)
    tokens = prompt(T + 1, seed + 12)
    g = Guesses(target, helper)
    expected = g.all(tokens)
    wrong = {m: g.all(tokens, m) for m in MISTAKES} | {w: Guesses(target, m).all(tokens) for w, m in unit_norms(helper)}
    for what, logits in wrong.items():
        moved = relative(logits, expected)
        if verbose:
            print(f"    {what}: {moved:.1e}")
        if moved < 5 * TOLERANCE:
            sys.exit(f"{name}: '{what}' moves the logits by {moved:.2e} only; a program that gets it wrong would pass")
    convert(helper, f"{out}/{name}.gguf")
    np.save(f"{out}/{name}.tokens.npy", tokens)
    np.save(f"{out}/{name}.logits.npy", expected)
    print(f"{name}: {os.path.getsize(f'{out}/{name}.gguf')} bytes")


def make_right(out):
    """Layers add nothing; the assistant hands on the embedding."""
    silent = ("attn_output.weight", "ffn_down.weight")
    model = f"{out}/right.model.gguf"
    write_silent(model, main_file("gemma4"), silent, {})
    r = gguf.GGUFReader(model)
    own = {t.name: np.array(t.data) for t in r.tensors}
    dim = own["output_norm.weight"].shape[0]
    hand_on = np.concatenate([np.eye(dim), np.zeros((dim, dim))], -1).astype(np.float16)
    helper = assistant(dim, hidden_size=dim, **KINDS["gemma4"])
    convert(build_helper(helper, 1), f"{out}/right.gguf.part")
    write_silent(f"{out}/right.gguf", f"{out}/right.gguf.part", silent,
                 {"nextn.pre_projection.weight": hand_on, "token_embd.weight": own["token_embd.weight"],
                  "output_norm.weight": own["output_norm.weight"]})
    os.remove(f"{out}/right.gguf.part")


def write_silent(path, source, silent, changed):
    def change(name, data):
        if name.endswith("layer_output_scale.weight"):
            return np.ones_like(data)
        return np.zeros_like(data) if name.endswith(silent) else np.array(changed.get(name, data))

    rewrite(path, source, change=change)


def main():
    args = [a for a in sys.argv[1:] if a != "-v"]
    if len(args) < 2 or args[0].startswith("-"):
        sys.exit(__doc__.strip())
    torch.set_num_threads(1)
    for name, (target, config) in models().items():
        if not args[2:] or name in args[2:]:
            make(name, target, config, args[1], "-v" in sys.argv)
    if not args[2:] or "right" in args[2:]:
        make_right(args[1])


if __name__ == "__main__":
    main()
