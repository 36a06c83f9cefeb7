"""The Python package from outside: what users call, on the cpu backend. Run by ctest `python`; by hand, in the build
folder: PYTHONPATH=python python3 -m pytest ../tests/python/test_python.py"""
import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from samples import GREEDY, MODEL, ONCE, ROOT, record

import kvrun
from kvrun import _cffi


# ---- devices, plans, models


def test_devices_and_policies():
    assert any(d.backend == "cpu" and d.usable and d.is_cpu for d in kvrun.devices())
    assert "kivi2" in [p.name for p in kvrun.policies()]


def test_plan(engine):
    p = kvrun.plan(MODEL, kv="kivi2", ctx=1024, memory="64M")
    assert p.fits is True and p.memory_bytes == 64 << 20 and p.kv_bytes < p.kv_f16_bytes / 3
    assert not kvrun.plan(MODEL, ctx=2048, memory="9M").fits
    own = engine.plan(kv="kivi2", ctx=1024)
    assert own.kv_bytes == p.kv_bytes
    assert abs(own.cache_bytes - engine.info.kv_budget_bytes) <= 16
    with kvrun.Engine(MODEL, device="cpu", kv_budget="1M") as small:
        assert not small.plan(ctx=2048).fits and small.plan(ctx=256).fits


def test_plan_of_weights_in_host_memory():
    large = "synth:qwen3-30b-a3b:q4_k"
    alone = kvrun.plan(large, ctx=16384, memory="8G")
    assert not alone.fits and alone.host_weight_bytes == 0 and alone.host_token_bytes == 0
    p = kvrun.plan(large, ctx=16384, memory="8G", fit=True)
    assert p.fits and p.weight_bytes < 8 << 30 and 0 < p.host_token_bytes < p.host_weight_bytes / 8
    assert kvrun.plan(large, kv="kivi2", ctx=16384, memory="8G", fit=True).host_weight_bytes < p.host_weight_bytes
    assert kvrun.plan(large, ctx=16384, memory="8G", cpu_moe_layers=48).host_weight_bytes > p.host_weight_bytes
    few = kvrun.plan(large, ctx=1024, memory="32G", gpu_layers=2, fit=False)
    assert few.host_weight_bytes > few.weight_bytes
    with pytest.raises(kvrun.InvalidArgument, match="-1"):
        kvrun.plan(large, memory="8G", gpu_layers=-1)
    with kvrun.Engine(MODEL, device="cpu", gpu_layers=1, fit=False) as e: # shares the host's memory: nothing moves
        assert e.info.host_weight_bytes == 0 and e.info.weights == ""
    with pytest.raises(kvrun.InvalidArgument, match="needs several devices"):
        kvrun.Engine(MODEL, device="cpu", split="1,3")
    with pytest.raises(kvrun.InvalidArgument, match="lists .* twice"):
        kvrun.plan(MODEL, device="cpu,cpu", split="1,3")


def test_model(engine):
    assert engine.info.architecture == "llama" and engine.info.vocab == 2048 and engine.info.bos == 1
    assert engine.metadata["general.architecture"] == "llama"
    tokens = engine.tokenize(ONCE)
    assert tokens.dtype == np.uint32 and tokens[0] == 1
    assert engine.detokenize(tokens[1:]) == ONCE == engine.detokenize(engine.tokenize(ONCE, bos=False).tolist())
    assert "chatml" in engine.chat_templates
    assert engine.chat_text([{"role": "user", "content": "x"}], template="{{ messages[0].content }}!") == "x!"


def test_loading_reports_and_is_stopped():
    seen = []
    kvrun.Engine(MODEL, device="cpu", progress=seen.append).close()
    assert seen and seen[-1] == 1

    def stop(done):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        kvrun.Engine(MODEL, device="cpu", progress=stop)
    canceller = kvrun.Canceller()
    canceller.cancel()
    with pytest.raises(kvrun.Cancelled):
        kvrun.Engine(MODEL, device="cpu", canceller=canceller)


# ---- answers


def test_right_answer_and_stream_is_the_same(engine):
    prompt, value = record()
    whole = engine.session().ask(prompt, temperature=0, max_tokens=5)
    assert (whole.text, whole.stop_reason) == (value, "length")
    stream = engine.session().stream(prompt, temperature=0, max_tokens=5)
    pieces = list(stream)
    assert "".join(pieces) == value and len(pieces) > 1
    assert stream.answer.tokens.tolist() == whole.tokens.tolist() == stream.tokens
    assert engine.detokenize(whole.tokens) == value


def test_program_says_the_same(engine):
    prompt, value = record(10, 11)
    out = kvrun._program.run(["run", MODEL, "--device", "cpu", "-p", prompt, "-n", "5", "--temp", "0", "--kv", "kivi4"])
    assert out.strip() == engine.session(kv="kivi4").ask(prompt, temperature=0, max_tokens=5).text == value


def test_choices_are_what_seeds_give_alone(engine):
    many = engine.generate([ONCE, "The dog"], n=3, max_tokens=6, temperature=1.5, seed=5, kv="kivi2")
    assert [len(a) for a in many] == [3, 3]
    for prompt, answers in zip([ONCE, "The dog"], many):
        alone = [engine.session(kv="kivi2").ask(prompt, max_tokens=6, temperature=1.5, seed=5 + i).text
                 for i in range(3)]
        assert [a.text for a in answers] == alone
    assert len({a.text for answers in many for a in answers}) > 3
    assert engine.generate([]) == []


def test_more_prompts_than_rows():
    with kvrun.Engine(MODEL, device="cpu", max_rows=2) as e:
        prompts = [ONCE[:n] for n in range(4, 9)]
        alone = [e.session().ask(p, **GREEDY).text for p in prompts]
        assert [a[0].text for a in e.generate(prompts, **GREEDY)] == alone


def test_stop_and_sampling_options(engine):
    whole = engine.session().ask(ONCE, temperature=0, max_tokens=20).text
    cut = engine.session().ask(ONCE, temperature=0, max_tokens=20, stop=[whole[8:12]])
    assert (cut.text, cut.stop_reason) == (whole[:8], "stop")
    with pytest.raises(kvrun.InvalidArgument) as e:
        engine.session().ask(ONCE, temperature=-1)
    assert e.value.status == -1 and e.value.status_name == "KVRUN_EINVALID" and "temperature" in str(e.value)
    with pytest.raises(TypeError, match="'temprature' is no option"):
        engine.session().ask(ONCE, temprature=1)


def test_form_of_answers(engine):
    session = engine.session()
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    for given in (schema, json.dumps(schema)):
        answer = session.ask(ONCE, json_schema=given, max_tokens=60, temperature=0)
        assert len(json.loads(answer.text)) == 2 and answer.stop_reason == "end"
    assert session.ask(" x", grammar='root ::= ("yes" | "no") "!"', temperature=0).text in ("yes!", "no!")
    assert engine.session().ask(ONCE, **GREEDY).text == engine.session().ask(ONCE, grammar=None, **GREEDY).text
    chat = engine.session(chat="chatml")
    assert chat.ask("Is it?", grammar='root ::= "yes" | "no"', temperature=0).text in ("yes", "no")
    forms = engine.generate([ONCE], n=2, grammar='root ::= [a-c]{3}', temperature=1)
    assert all(len(a.text) == 3 for a in forms[0])
    with pytest.raises(kvrun.KvrunError, match="rule x"):
        session.ask("y", grammar="root ::= x")
    with pytest.raises(kvrun.InvalidArgument, match="give one of them"):
        session.ask("y", grammar='root ::= "a"', json_schema={})


def test_conversation_reads_only_what_is_new(engine):
    chat = engine.session(chat="chatml", system="Be brief.")
    first = chat.ask("Hello", **GREEDY)
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
    before = len(chat)
    second = chat.ask("And now?", **GREEDY)
    assert second.prompt_tokens < len(chat) - first.prompt_tokens and len(chat) > before
    anew = engine.session(chat="chatml").ask(chat.messages[:-1], **GREEDY)
    assert anew.text == second.text


def test_logits_are_arrays_of_the_library(engine):
    prompt, value = record()
    tokens = engine.tokenize(prompt)
    a, b = engine.session(), engine.session()
    logits = a.prefill(tokens)
    assert logits.shape == (2048, ) and logits.dtype == np.float32
    assert engine.detokenize([int(logits.argmax())]) == value[0]
    assert b.prefill(tokens, logits=False) is None
    out = []
    for _ in range(5):
        out.append(int(logits.argmax()))
        rows = engine.decode([a, b], [out[-1]] * 2)
        assert rows.shape == (2, 2048) and (rows[0] == rows[1]).all()
        logits = rows[0]
    assert engine.detokenize(out) == value
    assert a.tokens.tolist() == tokens.tolist() + out
    with pytest.raises(kvrun.InvalidArgument, match="1 tokens for 2 sessions"):
        engine.decode([a, b], [1])


def test_logits_hook_changes_the_answer(engine):
    plain = engine.session().ask(ONCE, **GREEDY)
    banned = int(plain.tokens[0])

    def ban(logits):
        assert not logits.flags.owndata and logits.flags.writeable
        logits[banned] = -np.inf

    assert banned not in engine.session().ask(ONCE, logits=ban, **GREEDY).tokens

    def wrong(logits):
        raise KeyError("in the hook")

    s = engine.session()
    with pytest.raises(KeyError, match="in the hook"):
        s.ask(ONCE, logits=wrong, **GREEDY)
    assert s.ask(" more", **GREEDY).stop_reason == "length"  # the session goes on


def test_biases_and_penalties(engine):
    plain = engine.session().ask(ONCE, **GREEDY)
    first = int(plain.tokens[0])
    assert first not in engine.session().ask(ONCE, logit_bias={first: -np.inf}, **GREEDY).tokens
    assert set(engine.session().ask(ONCE, logit_bias={77: 1000.0}, **GREEDY).tokens) == {77}
    tokens = engine.session().ask(ONCE, presence_penalty=100, temperature=0, max_tokens=40, ignore_eos=True).tokens
    assert len(set(tokens.tolist())) == 40  # none twice
    dry = engine.session().ask(ONCE, dry_multiplier=100, dry_allowed_length=1, dry_sequence_breakers=[], temperature=0,
                               max_tokens=40, ignore_eos=True).tokens.tolist()
    assert len(set(zip(dry, dry[1:]))) == 39  # no pair twice
    sure = engine.session().ask(ONCE, top_n_sigma=0.01, temperature=1, max_tokens=12, ignore_eos=True).tokens
    assert sure.tolist() == engine.session().ask(ONCE, temperature=0, max_tokens=12, ignore_eos=True).tokens.tolist()


@pytest.mark.parametrize("kv", ["fp16", "kivi2,recent_keep=8,flush=32"])
def test_drafts_change_speed_and_no_token(engine, kv):
    text = "Lily was happy. Tom was sad. Lily was happy. Tom was sad. Lily was"
    options = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.5, "seed": 3}
    plain = engine.session(kv=kv).ask(text, **options)
    drafted = engine.session(kv=kv).ask(text, draft_max=5, **options)
    assert drafted.tokens.tolist() == plain.tokens.tolist() and drafted.text == plain.text
    assert drafted.drafted >= drafted.drafts_accepted and drafted.drafted > 0 == plain.drafted
    assert engine.session(kv=kv).info.takes_drafts
    with kvrun.Engine(MODEL, device="cpu", draft_model=MODEL) as two:
        itself = two.session(kv="fp16").ask(ONCE, draft_max=4, **GREEDY)
        assert itself.text == engine.session(kv="fp16").ask(ONCE, **GREEDY).text
        assert itself.drafts_accepted == itself.drafted > 0


def test_prediction_layer_drafts():
    right = os.path.join(ROOT, "tests", "golden", "prediction", "right.gguf")
    options = {"max_tokens": 30, "ignore_eos": True, "temperature": 0}
    with kvrun.Engine(right, device="cpu", draft_model="mtp") as e:
        plain, drafted = e.session().ask("a b c", **options), e.session().ask("a b c", draft_max=4, **options)
        assert drafted.text == plain.text and drafted.drafts_accepted == drafted.drafted > 0
    with pytest.raises(kvrun.Unsupported, match="prediction layers"):
        kvrun.Engine(MODEL, device="cpu", draft_model="mtp")


def test_adapters_give_the_tokens_of_llama_cpp():
    golden = os.path.join(ROOT, "tests", "golden")
    with open(os.path.join(golden, "peer", "lora_llama.json"), encoding="utf-8") as f:
        peer = json.load(f)
    model, adapter = os.path.join(golden, peer["model"]), os.path.join(golden, peer["lora"])
    options = {"max_tokens": 12, "ignore_eos": True, "temperature": 0}  # then comes a near-tie
    for loras in ([(adapter, peer["scale"])], [(adapter, 0.5), f"{adapter}:0.25"]):
        with kvrun.Engine(model, device="cpu", loras=loras) as e:
            assert e.session(ctx=64).ask(peer["prompt"], **options).tokens.tolist() == peer["tokens"][:12]
    with kvrun.Engine(model, device="cpu") as e:
        assert e.session(ctx=64).ask(peer["prompt"], **options).tokens.tolist() != peer["tokens"][:12]
    with kvrun.Engine(model, device="cpu", loras=[(adapter, 0)]) as e:
        s = e.session(ctx=64)
        assert s.ask(peer["prompt"], **options).tokens.tolist() != peer["tokens"][:12]
        e.set_lora_scales([peer["scale"]])
        with pytest.raises(kvrun.InvalidArgument, match="other scales"):
            s.ask(peer["prompt"], **options)
        s.truncate(0)
        assert s.ask(peer["prompt"], **options).tokens.tolist() == peer["tokens"][:12]
        for wrong in ([], [1, 1], [float("nan")]):
            with pytest.raises(kvrun.InvalidArgument):
                e.set_lora_scales(wrong)
    with pytest.raises(kvrun.Unsupported, match="no adapter"):
        kvrun.Engine(model, device="cpu", loras=[model])
    with pytest.raises(kvrun.InvalidArgument, match="FILE:SCALE"):
        kvrun.Engine(model, device="cpu", loras=[("", 1)])


def test_images_have_the_logits_of_transformers():
    vision = os.path.join(ROOT, "tests", "golden", "vision")
    pixels = np.load(os.path.join(vision, "mlp.pixels.npy"))
    logits = np.load(os.path.join(vision, "mlp.logits.npy"))
    text = os.path.join(vision, "text.gguf")
    with kvrun.Engine(text, device="cpu", mmproj=os.path.join(vision, "mlp.gguf")) as e:
        image = e.image(pixels)
        assert image == e.image(pixels.copy()) != e.image(pixels[::-1])
        rows = e.image_tokens(image)
        assert len(rows) == 16 and e.detokenize(rows) == ""
        prompt = [1, 17, 200, 45, *rows, 9, 150, 33, 71, 12, 250]
        got = e.session(ctx=64).prefill(prompt)
        assert np.abs(got - logits[-1]).max() < 1e-3 * np.abs(logits).max()
        message = {"role": "user", "content": [image, {"type": "text", "text": "ab"}]}
        tokens = e.chat_tokens([message], template="chatml").tolist()
        assert any(tokens[i:i + 16] == rows.tolist() for i in range(len(tokens)))
        with pytest.raises(ValueError, match="height, width, 3"):
            e.image(np.zeros((4, 4)))
    with kvrun.Engine(text, device="cpu") as e, pytest.raises(kvrun.Unsupported, match="vision encoder"):
        e.image(pixels)


def test_sounds():
    golden = os.path.join(ROOT, "tests", "golden")
    text = os.path.join(golden, "vision", "text.gguf")
    sound = np.sin(np.arange(8000) * 0.2) / 2
    with kvrun.Engine(text, device="cpu", mmproj=os.path.join(golden, "audio", "qwen2a.gguf")) as e:
        assert e.info.audio_rate == 16000 and not e.info.reads_images
        audio = e.audio(sound)
        assert audio == e.audio(sound.astype(np.float32)) != e.audio(sound[::-1])
        rows = e.image_tokens(audio).tolist()
        message = {"role": "user", "content": [audio, {"type": "text", "text": "ab"}]}
        tokens = e.chat_tokens([message], template="chatml").tolist()
        assert any(tokens[i:i + len(rows)] == rows for i in range(len(tokens)))
        assert np.isfinite(e.session(ctx=256).prefill(rows)).all()
        with pytest.raises(ValueError, match="expected one channel"):
            e.audio(np.zeros((2, 4)))
        with pytest.raises(TypeError, match="expected floats"):
            e.audio(np.zeros(8000, np.int16))
        with pytest.raises(kvrun.InvalidArgument, match="too short"):
            e.audio([])
    with kvrun.Engine(text, device="cpu") as e, pytest.raises(kvrun.Unsupported, match="audio encoder"):
        e.audio(sound)


def test_hidden_states_and_embeddings(engine):
    tokens = engine.tokenize(ONCE)
    states = engine.session().hidden_states(tokens)
    assert states.shape == (len(tokens), engine.info.dim) and np.isfinite(states).all()
    for pooling, wanted in (("mean", states.mean(axis=0)), ("first", states[0]), ("last", states[-1])):
        assert np.allclose(engine.session().embed(tokens, pooling), wanted, atol=1e-4), pooling
    with pytest.raises(kvrun.InvalidArgument, match="'middle'"):
        engine.session().embed(tokens, "middle")


def golden_encoder(name):
    folder = os.path.join(ROOT, "tests", "golden", "encoder")
    with open(os.path.join(folder, name + ".json"), encoding="utf-8") as f:
        return os.path.join(folder, name + ".gguf"), json.load(f)


def test_vectors_of_texts(engine):
    got = engine.embed(["A house", "x"])
    assert got.shape == (2, engine.info.vector_dim) and np.allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    alone = engine.session().embed(engine.tokenize("A house", end=True))
    assert np.allclose(got[0], alone / np.linalg.norm(alone), atol=1e-5)
    assert engine.embed([]).shape == (0, engine.info.vector_dim)
    with pytest.raises(TypeError):
        engine.embed("A house")
    for name in ("bert", "gemma_embedding"):
        path, want = golden_encoder(name)
        with kvrun.Engine(path, device="cpu") as encoder:
            assert encoder.info.encodes
            got = encoder.embed(want["texts"], normalise=False)
            assert np.abs(got - np.array(want["embeddings"])).max() < 1e-3 * np.abs(got).max(), name
            with pytest.raises(kvrun.Unsupported, match="encodes texts"):
                encoder.session()


def test_scores_of_documents(engine):
    path, want = golden_encoder("bert_reranker")
    with kvrun.Engine(path, device="cpu") as reranker:
        for pair in want["pairs"]:
            assert abs(reranker.score(pair["query"], [pair["document"]])[0] - pair["typed"]) < 2e-3
    with pytest.raises(kvrun.Unsupported, match="no classifier"):
        engine.score("a", ["b"])


def test_policy_and_tiers(engine):
    s = engine.session(kv="kivi2,recent=32", ctx=512)
    s.prefill(engine.tokenize(record(16)[0]))
    assert s.info.kv.startswith("kivi2") and s.info.ctx == 512 and s.info.code_bytes > 0
    tiers = s.tiers(0, 0)
    assert len(tiers) == len(s) and set(tiers) == {0, 2}
    assert engine.session(kv="auto").info.kv == "fp16"


def test_fork_truncate(engine):
    a = engine.session()
    a.ask(ONCE, **GREEDY)
    b = a.fork()
    n = len(a)
    assert a.ask(" and", **GREEDY).text == b.ask(" and", **GREEDY).text
    assert a.exact_position(n) == n
    a.truncate(n)
    assert len(a) == n
    assert a.keep_common(a.tokens[:n - 4]) == n - 5


@pytest.mark.parametrize("kv", ["fp16", "turbo3/2"])
def test_save_and_restore(engine, tmp_path, kv):
    path = tmp_path / "work.kv"
    chat = engine.session(kv=kv, ctx=600, chat="chatml")
    chat.ask(record(16)[0], **GREEDY)
    chat.save(path)
    other = engine.restore(path)
    assert other.messages == chat.messages and other.info.kv == chat.info.kv and other.info.ctx == 600
    assert (other.tokens == chat.tokens).all()
    assert other.ask("And?", **GREEDY).tokens.tolist() == chat.ask("And?", **GREEDY).tokens.tolist()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(kvrun.FormatError):
        engine.restore(path)
    with pytest.raises(kvrun.NotFound):
        engine.restore(tmp_path / "none.kv")


# ---- threads, cancelling, asyncio


def test_cancel_from_another_thread(engine):
    stream = engine.session().stream(ONCE, ignore_eos=True, temperature=0)
    began = threading.Event()

    def cancel():
        began.wait()
        stream.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    for _ in stream:
        began.set()
    thread.join()
    assert stream.answer.stop_reason == "cancelled" and 0 < len(stream.answer.tokens) < 2000


def test_the_gil_is_released(engine):
    """A thread counts while another one is inside one call of the library."""
    tokens = engine.tokenize(record(12)[0])
    inside = threading.Event()
    done = []

    def read():
        inside.set()
        engine.session().prefill(tokens)
        done.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait()
    rounds = 0
    while not done:
        rounds += 1
        time.sleep(0.0005)
    thread.join()
    assert rounds > 3


def test_threads_share_an_engine(engine):
    wanted = engine.session().ask(ONCE, **GREEDY).text
    found = []
    ask = lambda: found.append(engine.session().ask(ONCE, **GREEDY).text)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [wanted] * 4


def test_leaving_a_stream_frees_the_session(engine):
    s = engine.session()
    for _ in s.stream(ONCE, **GREEDY):
        break
    s.ask(" x", **GREEDY)
    stream = s.stream(" y", **GREEDY)
    with pytest.raises(kvrun.Busy):
        s.ask(" z", **GREEDY)
    with pytest.raises(kvrun.Busy):
        stream.answer
    stream.close()
    assert stream.answer.stop_reason == "cancelled"
    s.ask(" z", **GREEDY)


def test_async_streams_go_together(engine):
    async def main():
        async def one(prompt):
            return "".join([t async for t in engine.session().astream(prompt, **GREEDY)])

        prompts = [ONCE[:n] for n in range(4, 15)]  # more than max_rows
        assert await asyncio.gather(*map(one, prompts)) == [engine.session().ask(p, **GREEDY).text for p in prompts]

    asyncio.run(main())


def test_async_cancelling(engine):
    endless = {"ignore_eos": True, "temperature": 0}

    async def main():
        stream = engine.session().astream(ONCE, **endless)
        n = 0
        async for _ in stream:
            n += 1
            if n == 3:
                stream.cancel()
        assert stream.answer.stop_reason == "cancelled"

        s = engine.session()
        task = asyncio.create_task(s.aask(ONCE, **endless))
        while len(s) < 8:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream = engine.session().astream(ONCE, **endless)
        async for _ in stream:
            break
        await stream.aclose()
        assert stream.answer.stop_reason == "cancelled"
        with pytest.raises(kvrun.InvalidArgument):
            await engine.session().aask(ONCE, top_p=7)

    asyncio.run(main())


def test_closing_the_engine_ends_async_answers():
    e = kvrun.Engine(MODEL, device="cpu")

    async def main():
        stream = e.session().astream(ONCE, ignore_eos=True)
        await stream.__anext__()  # the answer has begun
        closing = asyncio.get_running_loop().run_in_executor(None, e.close)
        async for _ in stream:
            pass
        await closing
        assert stream.answer.stop_reason == "cancelled"

    asyncio.run(main())


# ---- errors, ends


def test_errors_name_what_is_wrong(engine):
    with pytest.raises(kvrun.NotFound) as e:
        kvrun.Engine("/nowhere.gguf", device="cpu")
    assert e.value.status == _cffi.ENUMS["KVRUN_ENOTFOUND"] and "/nowhere.gguf" in str(e.value)
    with pytest.raises(kvrun.InvalidArgument, match="9X"):
        kvrun.Engine(MODEL, device="cpu", kv_budget="9X")
    with pytest.raises(kvrun.InvalidArgument, match="kvi2"):
        engine.session(kv="kvi2")
    with pytest.raises(kvrun.InvalidArgument, match="max_rows is 4294967297"):
        kvrun.Engine(MODEL, device="cpu", max_rows=2**32 + 1)
    with pytest.raises(kvrun.InvalidArgument, match="code 0"):
        kvrun.Engine("a\0b")
    with pytest.raises(kvrun.InvalidArgument, match="whole numbers"):
        engine.detokenize([-1])
    with pytest.raises(kvrun.ContextFull):
        engine.session(ctx=16).prefill(np.ones(32, np.uint32))
    s = engine.session()
    s.close()
    with pytest.raises(kvrun.KvrunError, match="closed"):
        s.info
    assert issubclass(kvrun.InvalidArgument, ValueError) and issubclass(kvrun.OutOfMemory, MemoryError)


def test_memory_is_given_back():
    with kvrun.Engine(MODEL, device="cpu") as e:
        s = e.session()
        s.prefill(e.tokenize(record(20)[0]))
        used = e.info.kv_used_bytes
        del s
        gc.collect()
        again = e.session()
        again.prefill(e.tokenize(record(20)[0]))
        assert e.info.kv_used_bytes == used > 0


def python(code, timeout=60):
    """Runs code in an interpreter of its own."""
    head = f"import kvrun, os, sys, threading, time\ne = kvrun.Engine({MODEL!r}, device='cpu')\n"
    return subprocess.run([sys.executable, "-B", "-c", head + code], capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize("code", [
    "s = e.session(); s.ask('Once', max_tokens=2)",
    "s = e.session().stream('Once', ignore_eos=True); next(s); e = None",
    "s = e.session()\nthreading.Thread(target=lambda: s.ask('Once', ignore_eos=True), daemon=True).start()\n"
    "while len(s) < 8: time.sleep(0.001)",
    "import asyncio\nasync def f():\n  s = e.session().astream('Once', ignore_eos=True)\n"
    "  await s.__anext__()\nasyncio.run(f())",
    "s = e.session()\nthreading.Thread(target=lambda: list(s.stream('Once', ignore_eos=True, logits=lambda x: None)),"
    " daemon=True).start()\nwhile len(s) < 8: time.sleep(0.001)\nsys.exit(0)",
])
def test_the_interpreter_ends_at_any_time(code):
    # A call that the end cancels raises in its thread, which may have the time to say so or not.
    quiet = ("threading.excepthook = lambda a, say=threading.excepthook: "
             "isinstance(a.exc_value, kvrun.KvrunError) or say(a)\n")
    done = python(quiet + code)
    assert (done.returncode, done.stderr) == (0, "")


def test_fork():
    done = python("""
s = e.session()
s.ask('Once', max_tokens=3)
child = os.fork()
if child == 0:
    try:
        s.ask(' upon', max_tokens=1)
    except kvrun.KvrunError as error:
        assert 'forked' in str(error), error
    own = kvrun.Engine(e.path, device='cpu')
    print(own.session().ask('Once', max_tokens=3, temperature=0).text, flush=True)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(e.session().ask('Once', max_tokens=3, temperature=0).text)
""")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]


def test_keyboard_interrupt_ends_an_answer():
    done = python("""
import _thread
s = e.session()
def interrupt():
    while len(s) < 8:
        time.sleep(0.001)
    _thread.interrupt_main()
threading.Thread(target=interrupt).start()
try:
    s.ask('Once', ignore_eos=True)
    print('not interrupted')
except KeyboardInterrupt:
    print(len(s) > 3)
print(s.ask(' x', max_tokens=1).stop_reason)
""")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\nlength\n")


def test_importing_is_light():
    code = "import sys, kvrun; print([m for m in ('numpy', 'asyncio', 'subprocess', 'ray') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True).stdout == "[]\n"
