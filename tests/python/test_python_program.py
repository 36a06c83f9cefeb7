"""What the Python package does by the program: replay, eval, parts of them, lm_eval. Run by ctest `python`."""
import importlib
import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
from samples import MODEL, ONCE, ROOT, record

import kvrun

GOLDEN = os.path.join(ROOT, "tests", "golden", "replay")


def test_replay_equals_the_reference():
    """Golden files that another program made of the same arrays (tests/golden/replay)."""
    q, k, v, dq = (np.load(os.path.join(GOLDEN, n + ".npy")) for n in ("q", "k", "v", "dq"))
    case = os.path.join(GOLDEN, "kivi2")
    with open(os.path.join(case, "case.json")) as f:
        policy = json.load(f)["kv"]
    want = {n: np.load(os.path.join(case, n + ".npy")) for n in ("k_hat", "v_hat", "tier")}
    layers = len(want["k_hat"])
    r = kvrun.replay(k[:layers], v[:layers], q[:layers], policy, dq=dq, device="cpu")
    assert np.abs(r.k_hat - want["k_hat"]).max() < 2e-3 and np.abs(r.v_hat - want["v_hat"]).max() < 2e-3
    assert (r.tier == want["tier"]).all() and r.out.shape == dq.shape
    one = kvrun.replay(k[0], v[0], q[0], policy, device="cpu")
    assert one.k_hat.shape == k[0].shape and (one.k_hat == r.k_hat[0]).all()
    assert 2 < one.report["stored_bits_per_element"] < 16 and one.score is None
    with pytest.raises(kvrun.InvalidArgument, match="shapes"):
        kvrun.replay(k[0], v, q)
    with pytest.raises(kvrun.ProgramError, match="kvi2") as e:
        kvrun.replay(k, v, q, "kvi2", device="cpu")
    assert e.value.exit_code == 2


def test_eval_and_tune_are_dictionaries(tmp_path):
    r = kvrun.eval(MODEL, kv=["fp16", "kivi2"], task="recall", samples=2, lines=3, device="cpu")
    assert [x["policy"] for x in r["results"]] == ["fp16", "kivi2"] and r["samples"] == 2
    text = tmp_path / "text.txt"
    text.write_text(record(40)[0])
    r = kvrun.eval(MODEL, kv="kivi4", files=text, ctx=64, chunks=1, device="cpu")
    assert {x["policy"]: x["kld_mean"] > 0 for x in r["results"]} == {"fp16": False, "kivi4": True}


def shards(n, **options):
    return [kvrun.eval(MODEL, device="cpu", shard=f"{i}/{n}", **options) for i in range(n)]


def test_parts_of_a_task_make_one():
    from kvrun.merge import merge
    options = {"kv": ["fp16", "kivi2"], "task": "recall", "samples": 5, "lines": 3}
    parts = shards(2, **options)
    assert [len(p["results"][0]["answers"]) for p in parts] == [2, 3]
    whole, merged = kvrun.eval(MODEL, device="cpu", **options), merge(parts[::-1])
    for a, b in zip(merged["results"], whole["results"]):
        for name, value in b.items():
            if not name.endswith("tok_s"):  # times
                assert a[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), name
    assert merged["samples"] == 5 and merged["merged"] == 2
    for wrong, said in ((parts[:1], "part 1 is missing"), (parts + parts[:1], "twice"), ([{}], "no field 'shard'"),
                        ([parts[0], {**parts[1], "seed": 7}], "differ in 'seed'"),
                        ([parts[0], {**parts[1], "cancelled": True}], "part 1 was interrupted")):
        with pytest.raises(kvrun.FormatError, match=said):
            merge(wrong)


def test_parts_of_a_text_make_one(tmp_path):
    from kvrun.merge import merge
    files = []
    for i in range(2):
        files.append(tmp_path / f"{i}.txt")
        files[-1].write_text(record(16, i)[0])
    options = {"kv": "kivi2,recent=32", "files": files, "ctx": 128, "chunks": 2, "score": 16}
    whole, merged = kvrun.eval(MODEL, device="cpu", **options), merge(shards(2, **options))
    assert merged["chunks"] == whole["chunks"] == 4 and len(merged["texts"]) == 2
    for rows, others in [(merged["results"], whole["results"]),
                         *((a["results"], b["results"]) for a, b in zip(merged["texts"], whole["texts"]))]:
        for a, b in zip(rows, others):
            assert set(a) == set(b)
            for name, value in b.items():
                if name in ("kld_low", "kld_high"):  # other draws
                    assert a[name] == pytest.approx(value, rel=0.1, abs=1e-9), name
                elif not name.endswith("tok_s"):
                    exact = isinstance(value, (str, int))
                    assert a[name] == (value if exact else pytest.approx(value, rel=1e-5, abs=1e-9)), name
    # differences from one policy, and policies that decode together, whose speed is not measured
    options = {**options, "kv": "rtn4,recent=32,rtn2,recent=32", "against": "rtn4,recent=32", "together": 3}
    parts = shards(2, **options)
    whole, merged = kvrun.eval(MODEL, device="cpu", **options), merge(parts)
    assert merged["against"] == "rtn4,recent=32" and merged["cancelled"] is False
    for rows, others in [(merged["results"], whole["results"]), (merged["texts"][1]["results"],
                                                                 whole["texts"][1]["results"])]:
        for a, b in zip(rows, others):
            assert set(a) == set(b) and a["decode_tok_s"] is a["prefill_tok_s"] is b["decode_tok_s"] is None
            assert a["difference"]["mean"] == pytest.approx(b["difference"]["mean"], rel=1e-5, abs=1e-9)
            assert a["difference"]["high"] == pytest.approx(b["difference"]["high"], rel=0.2, abs=1e-9)
    assert merged["results"][2]["difference"]["low"] > 0
    del parts[1]["against"]
    with pytest.raises(kvrun.FormatError, match="differ in 'against'"):
        merge(parts)
    with pytest.raises(kvrun.ProgramError, match="only 2 chunks"):
        kvrun.eval(MODEL, device="cpu", shard="0/8", **options)
    with pytest.raises(kvrun.ProgramError, match="expected INDEX/PARTS"):
        kvrun.eval(MODEL, device="cpu", shard="2/2", **options)


def test_lm_eval_model(engine):
    """Likelihoods and texts as the harness asks for them, beside those of plain calls."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from kvrun.lm_eval import KvrunLM
    prompt, value = record()
    lm = KvrunLM(path=MODEL, device="cpu", max_rows=2)
    ask = lambda kind, *args: [Instance(kind, {}, a, i) for i, a in enumerate(args)]
    right, wrong, other = lm.loglikelihood(ask("loglikelihood", (prompt, value), (prompt, "00000"), ("Once", " upon")))
    assert right[1] and right[0] > -0.5 and not wrong[1] and wrong[0] < right[0] - 5
    session, total = engine.session(), 0.0
    context = lm.tok_encode("Once")
    rest = lm.tok_encode("Once upon")[len(context):]
    logits = session.prefill(context)
    for token in rest:
        x = logits.astype(np.float64)
        total += x[token] - np.log(np.exp(x - x.max()).sum()) - x.max()
        logits = engine.decode([session], [token])[0]
    assert rest and other[0] == pytest.approx(total, abs=1e-3)
    assert lm.generate_until(ask("generate_until", (prompt, {"until": [">"], "max_gen_toks": 12}))) == [value]
    rolling = lm.loglikelihood_rolling(ask("loglikelihood_rolling", ("Once upon a time", )))
    assert -40 < rolling[0] < 0


@pytest.fixture
def harness(monkeypatch):
    """The module of the harness's model; what it takes from the harness is replaced where that is not installed."""
    try:
        import lm_eval.api.model  # noqa: F401
    except ImportError:
        for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules["lm_eval.api.model"].TemplateLM = object
        sys.modules["lm_eval.api.registry"].register_model = lambda name: lambda made: made
        monkeypatch.delitem(sys.modules, "kvrun.lm_eval", raising=False)
        yield importlib.import_module("kvrun.lm_eval")
        sys.modules.pop("kvrun.lm_eval")
    else:
        yield importlib.import_module("kvrun.lm_eval")


WITH_BOS = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"


@pytest.mark.parametrize("template", [WITH_BOS, WITH_BOS.replace("{{ bos_token }}", ""), "chatml"])
def test_lm_eval_prompts_have_one_bos(engine, harness, monkeypatch, template):
    lm = harness.KvrunLM(path=MODEL, device="cpu", chat=template)
    seen, ask = [], kvrun._session.Session.ask
    monkeypatch.setattr(kvrun._session.Session, "ask", lambda s, given, **o: seen.append(given) or ask(s, given, **o))
    messages, bos = [{"role": "user", "content": ONCE}], engine.info.bos
    prompt = lm.apply_chat_template(messages)
    assert prompt.startswith("<s>") == ("bos_token" in template)
    asked = [types.SimpleNamespace(args=(text, {"until": [], "max_gen_toks": 4})) for text in (prompt, ONCE)]
    out = lm.generate_until(asked)
    assert seen[0] == engine.chat_tokens(messages, template=template).tolist()
    assert [tokens.count(bos) for tokens in seen] == [1, 1] and [tokens[0] for tokens in seen] == [bos, bos]
    assert out[1] == engine.session().ask(ONCE, temperature=0, max_tokens=4).text
    # Contexts and their continuations are encoded without more tokens than the text has.
    context, whole = lm.tok_encode(prompt), lm.tok_encode(prompt + " and")
    assert context.count(bos) == ("bos_token" in template) and whole[:len(context)] == context
    assert lm.tok_encode(ONCE) == engine.tokenize(ONCE, bos=False).tolist()
    rolling = types.SimpleNamespace(args=(ONCE, ))
    [(total, _)] = lm._loglikelihood_tokens([(None, [bos], lm.tok_encode(ONCE))])
    assert lm.loglikelihood_rolling([rolling]) == [pytest.approx(total)]


def test_lm_eval_goes_on_with_a_message(engine, harness):
    lm = harness.KvrunLM(path=MODEL, device="cpu", chat="chatml")
    question, prefix = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Once upon"}
    assert lm.apply_chat_template([question, prefix], add_generation_prompt=False).endswith("\nOnce upon")
    closed = lm.apply_chat_template([question], add_generation_prompt=False)
    assert closed.endswith("<|im_end|>\n") and lm.apply_chat_template([question]).startswith(closed)


NEUTRAL = {"top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1, "seed": None}


@pytest.mark.parametrize("given, taken", [
    ({}, {"max_tokens": 256, "temperature": 0}),
    ({"max_new_tokens": 3, "max_tokens": 5}, {"max_tokens": 3, "temperature": 0}),
    ({"max_completion_tokens": 4, "temperature": 0.5}, {"max_tokens": 4, "temperature": 0.5}),
    ({"max_tokens": 5, "do_sample": False, "temperature": 0.5}, {"max_tokens": 5, "temperature": 0}),
    ({"max_gen_toks": 6, "do_sample": True}, {"max_tokens": 6, "temperature": 1}),
    ({"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 7},
     {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.2, "seed": 7}),
    ({"top_k": -1, "temperature": 1}, {"top_k": 0, "temperature": 1})])
def test_lm_eval_takes_options_of_generation(harness, monkeypatch, given, taken):
    lm, seen, ask = harness.KvrunLM(path=MODEL, device="cpu"), [], kvrun._session.Session.ask
    monkeypatch.setattr(kvrun._session.Session, "ask", lambda s, given, **o: seen.append(o) or ask(s, given, **o))
    lm.generate_until([types.SimpleNamespace(args=(ONCE, {"until": ["."], **given}))])
    assert {name: seen[0].get(name) for name in {**NEUTRAL, **taken}} == {**NEUTRAL, **taken}


def test_module_is_the_program():
    done = subprocess.run([sys.executable, "-B", "-m", "kvrun", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and kvrun.__version__ in done.stdout
    done = subprocess.run([sys.executable, "-B", "-m", "kvrun", "run"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error:")
