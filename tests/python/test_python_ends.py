"""Interrupts, engines that are closed, hooks that read, answers that go on, and the log. Run by ctest `python`."""
import asyncio
import logging
import os
import signal
import threading
import time

import numpy as np
import pytest
from samples import GREEDY, MODEL, ONCE

import kvrun


@pytest.fixture
def interrupt():
    """A function that sends SIGINT to this process soon, again and again until it has been handled."""
    done = threading.Event()
    threads = []

    def start():
        def send():
            while not done.wait(0.05):
                os.kill(os.getpid(), signal.SIGINT)
                done.wait(5)

        threads.append(threading.Thread(target=send))
        threads[-1].start()

    yield start
    done.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("call", ["prefill", "hidden_states", "embed", "embed_texts"])
def test_interrupts_end_calls_that_read(engine, interrupt, call):
    tokens = np.full(2000, 424, np.uint32)
    s = engine.session()
    work = {"prefill": lambda: s.prefill(tokens), "hidden_states": lambda: s.hidden_states(tokens),
            "embed": lambda: s.embed(tokens), "embed_texts": lambda: engine.embed([tokens] * 8)}[call]
    began = []
    old = signal.signal(signal.SIGINT, lambda *_: began.append(True) or signal.default_int_handler(*_))
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt()
            work()
    finally:
        signal.signal(signal.SIGINT, old)
    assert began == [True]
    assert len(s) < 2000
    s.truncate(0)
    assert s.ask(ONCE, **GREEDY).text == engine.session().ask(ONCE, **GREEDY).text


def test_handlers_of_signals_run_while_a_prompt_is_read(engine, interrupt):
    seen = []
    old = signal.signal(signal.SIGINT, lambda *_: seen.append(len(s)))
    s = engine.session()
    try:
        interrupt()
        s.prefill(np.full(1500, 424, np.uint32), logits=False)
    finally:
        signal.signal(signal.SIGINT, old)
    assert len(s) == 1500 and seen and seen[0] < 1500


def test_sessions_outlive_their_engine():
    e = kvrun.Engine(MODEL, device="cpu")
    want = e.session().ask(ONCE, **GREEDY).text
    tokens = e.tokenize(ONCE)
    s, chat = e.session(), e.session(chat="chatml")
    library = s.model.handle
    e.close()
    for call in (lambda: e.info, e.session, lambda: e.tokenize("x"), lambda: e.generate(["x"])):
        with pytest.raises(kvrun.KvrunError, match="the engine is closed"):
            call()
    assert s.ask(ONCE, **GREEDY).text == want
    fork = s.fork()
    assert fork.ask(" more", json_schema={"type": "integer"}, **GREEDY).text
    assert s.prefill(tokens).shape == (2048, ) and s.hidden_states(tokens).shape[0] == len(tokens)
    assert chat.ask("Hello", **GREEDY).stop_reason == "length"
    assert asyncio.run(s.aask(" x", **GREEDY)).stop_reason == "length"
    for session in (s, fork, chat):
        assert not library.closed
        session.close()
    with pytest.raises(kvrun.KvrunError, match="the session is closed"):
        s.ask("x")


def test_hooks_may_read(engine):
    s, other, seen = engine.session(), engine.session(), []

    def hook(logits):
        with pytest.raises(kvrun.Busy):
            other.prefill([1])
        with pytest.raises(kvrun.Busy):
            s.truncate(0)
        seen.append((len(s), s.tokens.tolist(), engine.info.vocab))

    answer = s.ask(ONCE, logits=hook, **GREEDY)
    prompt = engine.tokenize(ONCE).tolist()
    assert [n for n, _, _ in seen] == list(range(len(prompt), len(prompt) + len(answer.tokens)))
    assert seen[-1][1] == prompt + answer.tokens.tolist()[:-1]
    assert answer.text == engine.session().ask(ONCE, **GREEDY).text
    other.prefill([1])


@pytest.mark.parametrize("value, said", [(-np.inf, "left no token"), (np.nan, "no number"), (np.inf, "infinite")])
def test_hooks_must_leave_a_token(engine, value, said):
    s = engine.session()
    with pytest.raises(kvrun.InvalidArgument, match="logits callback.*" + said):
        s.ask(ONCE, logits=lambda logits: logits.fill(value), **GREEDY)
    assert s.ask(" more", **GREEDY).stop_reason == "length"


def test_asynchronous_answers_cancelled_before_they_begin(engine):
    async def main():
        canceller, s = kvrun.Canceller(), engine.session()
        canceller.cancel()
        answer = await s.aask(ONCE, canceller=canceller)
        assert (answer.text, answer.stop_reason, len(answer.tokens), len(s)) == ("", "cancelled", 0, 0)
        stream = s.astream(ONCE)
        await stream.aclose()
        assert stream.answer.stop_reason == "cancelled"
        assert (await s.aask(ONCE, **GREEDY)).stop_reason == "length"

    asyncio.run(main())


@pytest.mark.parametrize("kv", ["fp16", "kivi2,recent_keep=8,flush=32"])
def test_answers_go_on(engine, kv):
    whole = engine.session(kv=kv).ask(ONCE, temperature=0, max_tokens=24, ignore_eos=True)
    s = engine.session(kv=kv)
    parts = [s.ask(ONCE, temperature=0, max_tokens=8, ignore_eos=True)]
    fork = s.fork()
    parts += [s.ask([], temperature=0, max_tokens=8, ignore_eos=True) for _ in range(2)]
    assert [t for p in parts for t in p.tokens.tolist()] == whole.tokens.tolist()
    assert "".join(p.text for p in parts) == whole.text
    assert fork.ask((), temperature=0, max_tokens=8, ignore_eos=True).tokens.tolist() == parts[1].tokens.tolist()


def plain_texts(engine, first, **options):
    """A session that answered, the tokens of that, and those of a text that follows."""
    s = engine.session()
    answer = s.ask(first, temperature=0, ignore_eos=True, **options)
    return s, engine.tokenize(first).tolist(), answer, engine.tokenize(" and", bos=False).tolist()


def test_texts_follow_the_whole_answer(engine):
    s, prompt, answer, text = plain_texts(engine, ONCE, max_tokens=8)
    fork = s.fork()
    again = s.ask(" and", **GREEDY)
    whole = prompt + answer.tokens.tolist() + text
    assert s.tokens.tolist() == whole + again.tokens.tolist()[:-1]
    assert again.tokens.tolist() == engine.session().ask(whole, **GREEDY).tokens.tolist()
    assert fork.ask(" and", **GREEDY).text == again.text
    s.ask(" and", **GREEDY)
    assert s.tokens.tolist()[:len(whole) + 12 + len(text)] == whole + again.tokens.tolist() + text


def test_texts_follow_a_cancelled_answer(engine):
    s, prompt = engine.session(), engine.tokenize(ONCE).tolist()
    stream = s.stream(ONCE, temperature=0, ignore_eos=True)
    for _ in range(4):
        next(stream)
    stream.cancel()
    list(stream)
    s.ask(" and", **GREEDY)
    whole = prompt + stream.answer.tokens.tolist() + engine.tokenize(" and", bos=False).tolist()
    assert s.tokens.tolist()[:len(whole)] == whole


def test_texts_follow_a_form(engine):
    s, prompt, answer, text = plain_texts(engine, ONCE, grammar='root ::= "yes!"')
    assert (answer.text, answer.stop_reason) == ("yes!", "end")
    s.ask(" and", **GREEDY)
    whole = prompt + answer.tokens.tolist() + text
    assert s.tokens.tolist()[:len(whole)] == whole


def test_texts_do_not_follow_a_stop_string_or_a_cancelled_prompt(engine):
    whole = engine.session().ask(ONCE, temperature=0, max_tokens=20).text
    s, prompt, answer, text = plain_texts(engine, ONCE, max_tokens=20, stop=[whole[8:12]])
    assert answer.stop_reason == "stop"
    s.ask(" and", **GREEDY)
    read = prompt + answer.tokens.tolist()[:-1] + text
    assert s.tokens.tolist()[:len(read)] == read
    s, canceller = engine.session(), kvrun.Canceller()
    s.prefill(engine.tokenize(ONCE))
    s.ask(ONCE * 100, canceller=canceller, progress=lambda done: canceller.cancel())
    held = s.tokens.tolist()
    s.ask(" and", **GREEDY)
    assert len(held) < 100 and s.tokens.tolist()[:len(held) + len(text)] == held + text


def test_texts_follow_only_the_last_answer(engine):
    """Tokens that are appended follow what the session holds, and then nothing of the answer is missing."""
    s, prompt, answer, text = plain_texts(engine, ONCE, max_tokens=8)
    refused, other = s.fork(), s.fork()
    with pytest.raises(kvrun.InvalidArgument, match="top_p is 7"):
        refused.ask(" and", top_p=7)
    assert refused.ask(" and", **GREEDY).text == s.ask(" and", **GREEDY).text
    other.prefill(text)
    other.ask(" and", **GREEDY)
    read = prompt + answer.tokens.tolist()[:-1] + text + text
    assert other.tokens.tolist()[:len(read)] == read


@pytest.mark.parametrize("call", [lambda e, s: s.truncate(10**6), lambda e, s: s.prefill([10**6]),
                                  lambda e, s: s.hidden_states([10**6]), lambda e, s: s.embed([10**6]),
                                  lambda e, s: e.decode([s], [10**6])])
def test_texts_follow_the_answer_after_a_call_that_fails(engine, call):
    s, prompt, answer, text = plain_texts(engine, ONCE, max_tokens=5)
    want = s.fork()
    with pytest.raises(kvrun.KvrunError):
        call(engine, s)
    there = s.ask(" there", **GREEDY)
    assert ONCE + answer.text in engine.detokenize(s.tokens)
    assert there.tokens.tolist() == want.ask(" there", **GREEDY).tokens.tolist()


def test_tokens_of_a_cancelled_prompt_follow_the_answer():
    """The answer's message does not go on behind them."""
    engine = kvrun.Engine(MODEL, device="cpu", ubatch=64, prefill_block=64)
    s, canceller = engine.session(chat="chatml"), kvrun.Canceller()
    s.ask("Hello", **GREEDY)
    messages, held = list(s.messages), len(s)

    def cancel():
        while len(s) == held and not done.wait(0.001):
            pass
        canceller.cancel()

    done, thread = threading.Event(), threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(kvrun.Cancelled):
            s.prefill(np.full(1800, 424, np.uint32), canceller=canceller)
    finally:
        done.set()
        thread.join()
    assert held < len(s) < held + 1800
    s.ask([], **GREEDY)
    assert s.messages == messages


def test_texts_follow_the_answer_of_a_saved_session(engine, tmp_path):
    s, prompt, answer, text = plain_texts(engine, ONCE, max_tokens=8)
    s.save(tmp_path / "x.kv")
    for continued in (" and", []):
        other = engine.restore(tmp_path / "x.kv")
        assert other.ask(continued, **GREEDY).tokens.tolist() == s.fork().ask(continued, **GREEDY).tokens.tolist()


def test_answers_begin_where_a_prompt_was_read(engine):
    s = engine.session()
    s.prefill(engine.tokenize(ONCE))
    answer = s.ask([], **GREEDY)
    assert answer.text == engine.session().ask(ONCE, **GREEDY).text and answer.prompt_tokens == 1
    with pytest.raises(kvrun.InvalidArgument, match="nothing to continue"):
        engine.session().ask([])


@pytest.mark.parametrize("read", [lambda s, t: s.prefill(t), lambda s, t: s.ask(t, max_tokens=0)])
def test_a_refused_continuation_changes_nothing(engine, read):
    s, tokens = engine.session(), engine.tokenize(ONCE)
    read(s, tokens)
    for _ in range(2):
        with pytest.raises(kvrun.InvalidArgument, match="top_p is 7"):
            s.ask([], top_p=7)
        with pytest.raises(kvrun.InvalidArgument, match="top_p is 7"):
            asyncio.run(s.aask([], top_p=7))
    assert s.tokens.tolist() == tokens.tolist()
    assert s.ask([], **GREEDY).text == engine.session().ask(ONCE, **GREEDY).text
    s.truncate(len(tokens))
    s.truncate(len(tokens) - 1) # not the end of an answer any more
    s.prefill(tokens[-1:])
    assert s.ask([], **GREEDY).text == engine.session().ask(ONCE, **GREEDY).text


def test_a_cancelled_prompt_goes_on(engine):
    tokens = engine.tokenize(ONCE * 100)
    s, canceller = engine.session(), kvrun.Canceller()
    answer = s.ask(tokens, canceller=canceller, progress=lambda done: canceller.cancel(), **GREEDY)
    assert answer.stop_reason == "cancelled" and len(s) < len(tokens)
    assert s.ask([], **GREEDY).tokens.tolist() == engine.session().ask(tokens, **GREEDY).tokens.tolist()


def test_messages_of_the_assistant_go_on(engine):
    question = {"role": "user", "content": "Hello"}
    chat = engine.session(chat="chatml")
    first = chat.ask([question], **GREEDY)
    second = chat.ask([], **GREEDY)
    assert chat.messages == [question, {"role": "assistant", "content": first.text + second.text}]
    begun = engine.session(chat="chatml")
    third = begun.ask([question, {"role": "assistant", "content": "Once upon"}], **GREEDY)
    assert begun.messages == [question, {"role": "assistant", "content": "Once upon" + third.text}]
    text = engine.detokenize(begun.tokens, special=True)
    assert text.count("assistant") == 1 and "Once upon" + third.text[:4] in text


def test_warnings_are_logged(caplog):
    with kvrun.Engine(MODEL, device="cpu", kv_budget="1M") as e:
        e.session(ctx=1999) # warned of once per process and text
    found = [r for r in caplog.records if r.name == "kvrun" and "1999 tokens" in r.getMessage()]
    assert [r.levelno for r in found] == [logging.WARNING] and found[0].getMessage().startswith("the cache of")
