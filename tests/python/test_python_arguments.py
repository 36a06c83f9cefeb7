"""Arguments of the Python package: what is accepted, and errors that name what is wrong. Run by ctest `python`."""
import asyncio
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from samples import GREEDY, MODEL, ONCE

import kvrun
from kvrun._errors import in_python


def test_amounts_of_memory():
    for name in ("kv_budget", "weights_budget", "host_budget"):
        for wrong in (0.5, 1.5, "0.5", "9X", -1):
            with pytest.raises(kvrun.InvalidArgument, match=name):
                kvrun.Engine(MODEL, device="cpu", **{name: wrong})
    with pytest.raises(kvrun.InvalidArgument, match="memory is 0.5"):
        kvrun.plan(MODEL, memory=0.5)
    assert kvrun.plan(MODEL, ctx=256, memory="0.5G").memory_bytes == 512 << 20
    assert kvrun.plan(MODEL, ctx=256, memory=float(1 << 29)).memory_bytes == 512 << 20


def test_whole_numbers(engine):
    s = engine.session(ctx="1k")
    assert s.info.ctx == 1024
    s.ask(ONCE, **GREEDY)
    for call, name in ((lambda: s.truncate(-1), "n_tokens is -1"),
                       (lambda: s.truncate(2**40), "n_tokens is 1099511627776"),
                       (lambda: s.exact_position(-1), "n_tokens is -1"), (lambda: s.tiers(-1, 0), "layer is -1"),
                       (lambda: s.tiers(0, -1), "kv_head is -1"),
                       (lambda: s.ask(ONCE, logit_bias={-1: 1}), "token of logit_bias is -1"),
                       (lambda: s.ask(ONCE, top_k=-1), "top_k is -1"), (lambda: s.ask([-1]), "-1 is no token"),
                       (lambda: s.ask([1, 2**40]), "1099511627776 is no token"),
                       (lambda: s.ask([1.5]), "1.5 is no token"), (lambda: engine.session(ctx="4x"), "ctx is '4x'"),
                       (lambda: engine.session(ctx=-1), "ctx is -1")):
        with pytest.raises(kvrun.InvalidArgument, match=name):
            call()


def test_types(engine):
    s = engine.session()
    for call, said in ((lambda: s.ask(ONCE, temperature="0"), "temperature is '0', expected a number"),
                       (lambda: s.ask(ONCE, top_k=1.5), "top_k is 1.5, expected a whole number"),
                       (lambda: s.ask(ONCE, stop=[1]), "stop contains 1, expected texts"),
                       (lambda: s.ask(ONCE, stop=1), "stop is 1"), (lambda: s.ask(ONCE, grammar=1), "grammar is 1"),
                       (lambda: s.ask(ONCE, json_schema=1), "json_schema is 1"),
                       (lambda: s.ask(ONCE, logit_bias=[1]), "logit_bias is"),
                       (lambda: s.ask(ONCE, logits=1), "logits is 1"),
                       (lambda: s.ask(ONCE, canceller="foo"), "canceller is 'foo'"),
                       (lambda: s.astream(ONCE, canceller="foo"), "canceller is 'foo'"),
                       (lambda: s.prefill([1], canceller="foo"), "canceller is 'foo'"),
                       (lambda: kvrun.Engine(MODEL, device="cpu", canceller="foo"), "canceller is 'foo'"),
                       (lambda: kvrun.Engine(MODEL, device="cpu", progress=1), "progress is 1"),
                       (lambda: kvrun.Engine(5), "model is 5, expected a path"),
                       (lambda: engine.tokenize(b"x"), "text is b'x', expected a text"),
                       (lambda: engine.image(np.ones((4, 4, 3)) / 2), "type float64, expected uint8"),
                       (lambda: engine.session(chat=5), "chat is 5"), (lambda: engine.session(kv=5), "kv is 5"),
                       (lambda: engine.session(ctx=4.5), "ctx is 4.5"),
                       (lambda: s.ask(None), "None is no list of tokens"),
                       (lambda: s.ask({"role": "user", "content": "x"}), "list of messages"),
                       (lambda: s.astream(ONCE, bogus=1), "'bogus' is no option")):
        with pytest.raises(TypeError, match=said):
            call()
    with kvrun.Engine(MODEL.encode(), device="cpu") as e:
        assert e.path == MODEL
    for thing in (engine, s, kvrun.Canceller()):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(thing)


IN_LATIN = """
import os, sys, kvrun
folder, model = sys.argv[1:]
name = os.path.join(folder, "caf\\u00e9")
with open(model, "rb") as f, open(name + ".gguf", "wb") as out:
    out.write(f.read())
with kvrun.Engine(name + ".gguf", device="cpu") as e:
    s = e.session(ctx=256)
    s.prefill([1, 2, 3])
    s.save(name + ".kv")
    for path in (name + ".kv", os.fsencode(name) + b".kv"):
        assert e.restore(path).tokens.tolist() == [1, 2, 3]
    assert e.plan(ctx=256).fits and e.path == name + ".gguf"
assert sorted(os.listdir(os.fsencode(folder))) == [b"caf\\xe9.gguf", b"caf\\xe9.kv"], os.listdir(folder)
"""


def test_paths_are_in_the_encoding_of_the_locale(tmp_path):
    made = tmp_path / "locales" / "latin"
    made.parent.mkdir()
    if shutil.which("localedef") is None or subprocess.run(
            ["localedef", "-i", "en_US", "-f", "ISO-8859-1", made], capture_output=True).returncode:
        pytest.skip("localedef makes no locales (package locales)")
    files = tmp_path / "files"
    files.mkdir()
    done = subprocess.run([sys.executable, "-B", "-c", IN_LATIN, files, MODEL], capture_output=True, errors="replace",
                          env={**os.environ, "LOCPATH": str(made.parent), "LC_ALL": "latin", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr


def test_none_is_the_default(engine):
    options = dict.fromkeys(kvrun.SamplingOptions.__annotations__)
    options.update(temperature=0, max_tokens=5)
    want = engine.session().ask(ONCE, temperature=0, max_tokens=5).text
    assert engine.session().ask(ONCE, **options).text == want
    assert engine.generate([ONCE], **options)[0][0].text == want


def test_any_iterable_of_prompts_and_sequence_of_messages(engine):
    prompts = [ONCE, "The dog"]
    want = [a[0].text for a in engine.generate(prompts, **GREEDY)]
    assert [a[0].text for a in engine.generate(iter(prompts), **GREEDY)] == want
    message = {"role": "user", "content": "Hello"}
    want = engine.session(chat="chatml").ask([message], **GREEDY).text
    for sequence in ((message, ), deque([message])):
        assert engine.session(chat="chatml").ask(sequence, **GREEDY).text == want


def test_templates_are_looked_at_when_a_session_is_made(engine):
    with pytest.raises(kvrun.NotFound, match="nope"):
        engine.session(chat="nope")
    with pytest.raises(kvrun.KvrunError, match="chat="):
        engine.session(chat="{{ bad")
    with pytest.raises(kvrun.NotFound, match="chat="): # the file has none
        engine.session(chat=True)


def test_seeds_are_random_unless_given(engine):
    answers = [engine.session().ask(ONCE, temperature=2, max_tokens=12) for _ in range(4)]
    assert len({a.text for a in answers}) > 1 and len({a.seed for a in answers}) > 1
    again = engine.session().ask(ONCE, temperature=2, max_tokens=12, seed=answers[0].seed)
    assert again.text == answers[0].text and again.seed == answers[0].seed
    many = engine.generate([ONCE, ONCE], n=2, temperature=2, max_tokens=12)
    assert many[0][1].seed == many[0][0].seed + 1 and many[0][0].seed != many[1][0].seed
    assert engine.generate([ONCE], n=2, max_tokens=1, seed=7)[0][1].seed == 8


def test_errors_are_those_of_python(engine):
    assert issubclass(kvrun.NotFound, FileNotFoundError) and issubclass(kvrun.FileError, OSError)
    with pytest.raises(FileNotFoundError, match="/nowhere.gguf"):
        kvrun.Engine("/nowhere.gguf", device="cpu")
    error = pytest.raises(kvrun.ProgramError, kvrun.eval, MODEL, files="/nope.txt", device="cpu").value
    assert isinstance(error, kvrun.NotFound) and error.exit_code == 3
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and again.exit_code == 3 and str(again) == str(error)
    error = pytest.raises(kvrun.ProgramError, kvrun.eval, MODEL, kv="kvi2", task="recall", device="cpu").value
    assert isinstance(error, kvrun.InvalidArgument)


def test_messages_name_arguments(engine):
    with pytest.raises(kvrun.ContextFull, match="raise ctx= or"):
        engine.session(ctx=16).prefill(np.ones(32, np.uint32))
    with pytest.raises(kvrun.InvalidArgument, match='split="1,3" needs several devices: device="A,B"'):
        kvrun.Engine(MODEL, device="cpu", split="1,3")
    for said, meant in (("--kv kivi2,recent=32 would fit, or raise --kv-budget",
                         'kv="kivi2,recent=32" would fit, or raise kv_budget='),
                        ("--kv xquant would fit", 'kv="xquant" would fit'),
                        ("raise --host-budget, or -c 512", "raise host_budget=, or ctx=512"),
                        ("a smaller -c or a --kv with fewer bits", "a smaller ctx= or a kv= with fewer bits"),
                        ("the cache's budget of 'x'; raise --kv-budget", "the cache's budget of 'x'; raise kv_budget="),
                        ("leave out --weights-budget, -ngl, --cpu-moe and --n-cpu-moe",
                         "leave out weights_budget=, gpu_layers=, cpu_moe_layers="),
                        ("`--device cpu` runs it", 'device="cpu" runs it'),
                        ("`kvrun devices --retry` tests it", "`kvrun devices --retry` tests it"),
                        ("/a-c/x--kv.gguf: no such file", "/a-c/x--kv.gguf: no such file")):
        assert in_python(said) == meant
    assert in_python("--shard 2/2: x", program=True) == 'shard="2/2": x'


def test_arrays_of_replay():
    k = np.random.default_rng(0).standard_normal((8, 2, 64)).astype(np.float32)
    q = np.concatenate([k, k], axis=1)
    for arrays, said in (((k, k, q[:7]), r"q has shape \(7, 4, 64\)"), ((k, k, q[:, :3]), "q has 3 heads"),
                         ((k, k * np.nan, q), "v contains"), ((k[:0], k[:0]), "k is empty")):
        with pytest.raises(kvrun.InvalidArgument, match=said):
            kvrun.replay(*arrays, device="cpu")
    with pytest.raises(kvrun.InvalidArgument, match="dq has shape"):
        kvrun.replay(k, k, q, dq=q[0], device="cpu")
    with pytest.raises(kvrun.InvalidArgument, match="^probes: row 99"):
        kvrun.replay(k, k, q, "h2o", probes=[99], device="cpu")


def test_options_of_answers_are_checked_before_the_session_changes(engine):
    s = engine.session()
    s.ask(ONCE, **GREEDY)
    n = len(s)
    with pytest.raises(TypeError):
        s.ask([], temperature="0")
    assert len(s) == n

    async def main():
        with pytest.raises(kvrun.InvalidArgument, match="top_p"):
            await s.aask(" x", top_p=7)

    asyncio.run(main())


def test_amounts_in_messages_differ():
    with kvrun.Engine(MODEL, device="cpu", kv_budget="0.7M") as e:
        s = e.session(kv="turbo2")
        with pytest.raises(kvrun.ContextFull, match="MiB") as error:
            s.prefill(np.full(s.info.ctx + 1, 424, np.uint32))
        need, budget = re.findall(r"([\d.]+) MiB", str(error.value))
        assert float(need) > float(budget)
