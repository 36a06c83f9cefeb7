"""Asynchronous answers that are left, refused, or lose their thread: none goes on or waits. Run by ctest `python`."""
import asyncio
import contextlib
import time

import numpy as np
import pytest
from samples import GREEDY, MODEL, ONCE

import kvrun
from kvrun import _generate

ENDLESS = {"ignore_eos": True, "temperature": 0}


def run(main):
    """Runs a coroutine function; one that waits for ever fails."""
    return asyncio.run(asyncio.wait_for(main(), 20))


async def free_soon(session):
    """Waits until the session may be used again. An answer that goes on fills its context, which is an error then."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(kvrun.Busy):
            return session.ask(" more", **GREEDY)
        await asyncio.sleep(0.002)
    raise AssertionError("the session stays in use")


async def leave_by_break(session, **options):
    async for _ in session.astream(ONCE, **ENDLESS, **options):
        break


async def leave_by_return(session, **options):
    async for text in session.astream(ONCE, **ENDLESS, **options):
        return text


async def leave_by_error(session, **options):
    with contextlib.suppress(ZeroDivisionError):
        async for _ in session.astream(ONCE, **ENDLESS, **options):
            1 // 0


async def leave_by_cancelled_body(session, **options):
    async def body():
        async for _ in session.astream(ONCE, **ENDLESS, **options):
            began.set()
            await asyncio.sleep(60)

    began = asyncio.Event()
    task = asyncio.create_task(body())
    await began.wait()
    task.cancel()
    await asyncio.wait([task])


async def leave_by_cancelled_wait(session, **options):
    task = asyncio.create_task(session.aask(ONCE, **ENDLESS, **options))
    while len(session) < 8:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])


LEAVE = [leave_by_break, leave_by_return, leave_by_error, leave_by_cancelled_body, leave_by_cancelled_wait]


@pytest.mark.parametrize("leave", LEAVE)
def test_leaving_a_loop_ends_its_answer(engine, leave):
    async def main():
        session = engine.session()
        await leave(session)
        assert (await free_soon(session)).stop_reason == "length"

    run(main)


def test_leaving_frees_the_row_of_the_batch():
    async def main():
        for _ in range(3):
            await leave_by_break(e.session())
        return await e.session().aask(ONCE, **GREEDY)

    with kvrun.Engine(MODEL, device="cpu", max_rows=1) as e:
        assert run(main).text == e.session().ask(ONCE, **GREEDY).text


def test_a_stream_that_waits_for_a_row_is_closed_at_once():
    async def main():
        first = e.session().astream(ONCE, **ENDLESS)
        await first.__anext__()
        waits = e.session().astream(ONCE, **ENDLESS)
        task = asyncio.create_task(waits.__anext__())
        await asyncio.sleep(0)
        await waits.aclose()
        with pytest.raises(StopAsyncIteration):
            await task
        with pytest.raises(kvrun.Busy):  # the other one goes on
            first.answer
        await first.aclose()
        return waits.answer.stop_reason, first.answer.stop_reason

    with kvrun.Engine(MODEL, device="cpu", max_rows=1) as e:
        assert run(main) == ("cancelled", "cancelled")


@pytest.mark.parametrize("leave", LEAVE)
def test_leaving_does_not_cancel_what_shares_its_canceller(engine, leave):
    async def main():
        canceller, session = kvrun.Canceller(), engine.session()
        await leave(session, canceller=canceller)
        await free_soon(session)
        assert not canceller.is_set

    run(main)


def test_messages_have_what_was_left(engine):
    async def main():
        chat = engine.session(chat="chatml")
        async for first in chat.astream("Hello", **ENDLESS):
            break
        await free_soon(chat)
        return first, chat.messages

    first, messages = run(main)
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[1]["content"].startswith(first) and messages[2]["content"] == " more"


def test_a_session_is_in_use_until_its_conversation_is_updated(engine, monkeypatch):
    """Its thread frees the library's session first; then the messages get the answer."""
    end = kvrun._session.Turn.end
    monkeypatch.setattr(kvrun._session.Turn, "end", lambda *args: time.sleep(0.1) or end(*args))
    test_messages_have_what_was_left(engine)


def test_streams_go_on_in_another_event_loop(engine):
    stream = engine.session().astream(ONCE, **ENDLESS)
    first = run(stream.__anext__)
    run(stream.aclose)
    assert stream.answer.stop_reason == "cancelled" and stream.answer.text.startswith(first)


def test_two_tasks_that_await_a_stream_both_end(engine):
    async def main():
        stream = engine.session().astream(ONCE, **GREEDY)

        async def rest():
            return "".join([text async for text in stream])

        parts = await asyncio.gather(rest(), rest(), rest())
        assert len("".join(parts)) == len(stream.answer.text)

    run(main)


def test_refused_streams_end(engine):
    async def main():
        session = engine.session()
        session.close()
        with pytest.raises(kvrun.KvrunError, match="the session is closed"):
            async with contextlib.aclosing(session.astream("hi")) as stream:
                async for _ in stream:
                    pass
        assert [text async for text in stream] == []
        await stream.aclose()
        with pytest.raises(kvrun.KvrunError, match="no answer"):
            stream.answer
        async with contextlib.aclosing(session.astream("hi")) as stream:
            pass
        assert stream.answer.stop_reason == "cancelled"
        wrong = engine.session().astream("hi", top_p=7)
        with pytest.raises(kvrun.InvalidArgument, match="top_p is 7"):
            await wrong.__anext__()
        assert [text async for text in wrong] == []
        await wrong.aclose()

    run(main)


def test_a_stopped_scheduler_answers_nothing():
    async def main():
        await e.session().aask(ONCE, **GREEDY)
        scheduler = e.model.scheduler()
        ended, begin = scheduler._end_all, asyncio.Event()
        loop = asyncio.get_running_loop()

        def late(error):  # what is accepted before the thread's end and not received
            scheduler._queue.put(accepted._answering)
            loop.call_soon_threadsafe(begin.set)
            ended(error)

        scheduler._end_all = late
        accepted = e.session().astream(ONCE)
        accepted._begun = True
        scheduler.stop(wait=False)
        await begin.wait()
        with pytest.raises(kvrun.KvrunError, match="the engine was closed"):
            await accepted.__anext__()
        await accepted.aclose()
        with pytest.raises(kvrun.KvrunError, match="the engine is closed"):
            scheduler.submit(accepted._answering)

    with kvrun.Engine(MODEL, device="cpu", max_rows=1) as e:
        run(main)


def test_a_fault_of_the_thread_ends_all_of_its_answers(monkeypatch):
    async def main():
        streams = [e.session().astream(ONCE, **ENDLESS) for _ in range(4)]  # there is one row
        await streams[0].__anext__()
        tasks = [asyncio.create_task(s.aclose() if s is streams[3] else collect(s)) for s in streams]
        await asyncio.sleep(0.01)
        monkeypatch.setattr(_generate.Batch, "step", fault)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        monkeypatch.undo()
        assert [type(x) for x in done[:3]] == [MemoryError] * 3
        for stream in streams:
            assert [text async for text in stream] == []
        for _ in range(100):  # the thread has given all of its errors, and ends
            with contextlib.suppress(kvrun.KvrunError):
                return await e.session().aask(ONCE, **GREEDY)
            await asyncio.sleep(0.01)

    async def collect(stream):
        return [text async for text in stream]

    def fault(batch):
        raise MemoryError("no more")

    with kvrun.Engine(MODEL, device="cpu", max_rows=1) as e:
        assert run(main).stop_reason == "length"


def test_streams_end_with_their_event_loop(engine):
    async def main():
        await stream.__anext__()

    session = engine.session()
    stream = session.astream(ONCE, **ENDLESS)
    run(main)
    assert run(lambda: free_soon(session)).stop_reason == "length"
    assert stream.answer.stop_reason == "cancelled" and isinstance(stream.answer.tokens, np.ndarray)
