"""Asynchronous answers: one thread per engine generates all of them together."""
from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ._errors import KvrunError, error_of
from ._generate import Batch, Request, Sampling
from ._runtime import Handle, at_exit, not_at_exit
from ._types import Answer

if TYPE_CHECKING:
    from ._session import Session, Turn
    from ._types import Prompt, SamplingOptions


class Scheduler:
    """Takes requests from event loops, answers them in one batch, returns pieces of text."""

    def __init__(self, engine: Handle, max_rows: int) -> None:
        self._queue: queue.SimpleQueue[Answering | None] = queue.SimpleQueue()
        self._batch = Batch(engine)
        self._rows = max_rows
        self._waiting: deque[Answering] = deque()
        self._active: dict[int, Answering] = {}  # by request
        self._thread = threading.Thread(target=self._run, name="kvrun", daemon=True)
        self._refusal = ""  # why no more requests are accepted
        self._lock = threading.RLock()  # of _refusal; what is freed while a thread holds it may call stop()
        at_exit(self.stop)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def submit(self, answering: Answering) -> None:
        with self._lock:  # what is accepted is in the queue before _end_all() looks there
            if self._refusal:
                raise KvrunError(self._refusal)
            self._queue.put(answering)

    def stop(self, wait: bool = True) -> None:
        """Cancels all answers and ends the thread."""
        with self._lock:
            self._refusal = self._refusal or "the engine is closed"
        self._queue.put(None)
        for answering in list(self._active.values()):
            answering.canceller.cancel()
        if wait and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        error: BaseException = KvrunError("the engine was closed before the answer began")
        try:
            while True:
                self._receive()
                if self._refusal:
                    break
                self._end_unwanted()
                while self._waiting and self._batch.active < self._rows:
                    self._begin(self._waiting.popleft())
                if self._batch.active:
                    self._step()
            for answering in list(self._active.values()):
                answering.canceller.cancel()
            while self._batch.active:  # answers that have begun end as cancelled
                self._step()
        except BaseException as e:
            error = e
        self._end_all(error)
        not_at_exit(self.stop)

    def _receive(self) -> None:
        """Receives requests; waits only if there is nothing else to do."""
        block = not self._batch.active and not self._waiting
        while True:
            try:
                item = self._queue.get(block=block)
            except queue.Empty:
                return
            if item is None:
                return
            self._waiting.append(item)
            block = False

    def _end_unwanted(self) -> None:
        """Ends answers that nobody awaits any more, also those for which there is no row yet."""
        for answering in [a for a in self._waiting if a.unwanted]:
            self._waiting.remove(answering)
            answering.end_unbegun()
        for request in [a.request for a in self._active.values() if a.left]:
            if request is not None:
                self._batch.take(request)
                self._ended(request)

    def _begin(self, answering: Answering) -> None:
        try:
            request = answering.prepare()
            self._batch.add(request)
            self._active[id(request)] = answering
        except Exception as error:
            answering.give_up()
            answering.end(error)

    def _step(self) -> None:
        ended = self._batch.step()
        for answering in list(self._active.values()):
            answering.push()
        for request in ended:
            self._ended(request)

    def _ended(self, request: Request) -> None:
        self._active.pop(id(request)).end(request.error)

    def _end_all(self, error: BaseException) -> None:
        """Ends what has not ended, also what was accepted and not yet received: nothing may wait for this thread."""
        with self._lock:
            self._refusal = self._refusal or f"asynchronous answers have ended with an error: {error}"
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    self._waiting.append(item)
        for answering in [*self._active.values(), *self._waiting]:
            if answering.request is not None:
                with contextlib.suppress(Exception):  # there is an error already
                    self._batch.take(answering.request)
            answering.end(error)
        self._active.clear()
        self._waiting.clear()
        self._batch.close()


class Answering:
    """What the scheduler has of an answer. It does not refer to the user's AsyncStream: where that one is freed, nobody
    awaits the answer any more.
    """

    def __init__(self, session: Session, prompt: Prompt, sampling: SamplingOptions) -> None:
        self._session = session
        self._prompt = prompt
        self._sampling = Sampling(sampling)
        self.canceller = self._sampling.canceller
        self.left = False  # the answer is to end; the canceller may be that of other calls, too
        self.request: Request | None = None
        self.unbegun: Answer | None = None  # it was cancelled before it began
        self._turn: Turn | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # of what follows
        self._pieces: deque[str] = deque()
        self._error: BaseException | None = None  # to be raised once
        self.ended = False
        self._waiters: set[asyncio.Future[None]] = set()  # resolved when something of this changes

    @property
    def unwanted(self) -> bool:
        return self.left or self.canceller.is_set

    # ---- on the scheduler's thread

    def prepare(self) -> Request:
        self._turn = self._session.turn(self._prompt)
        self.request = self._turn.request(self._sampling)
        self._session.unfinished = self._turn
        return self.request

    def give_up(self) -> None:
        if self._turn is not None:
            with contextlib.suppress(KvrunError):
                self._turn.give_up()

    def push(self) -> None:
        text = self.request.take_text() if self.request is not None else ""
        if text:
            with self._lock:
                self._pieces.append(text)
            self._wake()
        if self._loop is not None and self._loop.is_closed():
            self.left = True

    def end(self, error: BaseException | None) -> None:
        self.push()
        try:
            if self.request is not None and self.request.answer is not None and self._turn is not None:
                self._turn.end(self.request.answer)
        except Exception as e:  # the session was closed meanwhile
            error = error or e
        if self._turn is not None and self._session.unfinished is self._turn:
            self._session.unfinished = None
        cancelled = getattr(error, "status_name", "") == "KVRUN_ECANCELLED"
        with self._lock:
            self._error = None if cancelled else error
            self.ended = True
        self._wake()

    def end_unbegun(self) -> None:
        """Cancelled before it began: the session is unchanged."""
        import numpy as np

        self.unbegun = Answer("", np.array([], np.uint32), "cancelled", 0, 0.0, 0.0, seed=self._sampling.seed)
        self.end(None)

    def _wake(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            try:
                waiter.get_loop().call_soon_threadsafe(_resolve, waiter)
            except RuntimeError:  # the event loop is closed
                self.left = True

    # ---- on the event loop

    def begin(self) -> None:
        try:
            self._session.model.scheduler().submit(self)
        except BaseException as error:
            self.left = True
            self.end(error)

    async def next(self) -> str:
        self._loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                if self._pieces:
                    return self._pieces.popleft()
                if self.ended:
                    error, self._error = self._error, None
                    raise error or StopAsyncIteration
                waiter = self._loop.create_future()
                self._waiters.add(waiter)
            try:
                await waiter
            finally:
                with self._lock:
                    self._waiters.discard(waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncStream:
    """Like Stream, for `async for`. The answer ends where nothing refers to the stream any more, as when a loop over
    session.astream(...) is left, and where a task that awaits it is cancelled. A stream in a variable needs aclose().
    """

    def __init__(self, session: Session, prompt: Prompt, sampling: SamplingOptions) -> None:
        self._answering = Answering(session, prompt, sampling)
        self._begun = False

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        if not self._begun:
            self._begun = True
            self._answering.begin()
        try:
            return await self._answering.next()
        except asyncio.CancelledError:
            self._answering.left = True
            raise

    @property
    def answer(self) -> Answer:
        """The answer; if it ended with an error or was cancelled, the part that was generated."""
        answering = self._answering
        if answering.unbegun is not None:
            return answering.unbegun
        if answering.request is not None and answering.request.answer is not None:
            return answering.request.answer
        if answering.ended:
            raise KvrunError("there is no answer: an error came before it began")
        raise error_of(-11, "KVRUN_EBUSY", "the answer has not ended; iterate over it, or await aclose()")

    def cancel(self) -> None:
        """From any thread; the iteration then ends, and answer.stop_reason is "cancelled"."""
        self._answering.canceller.cancel()

    async def aclose(self) -> None:
        """Ends the answer where it is, and waits until the session may be used again."""
        if not self._begun:
            self._begun = True
            self._answering.end_unbegun()
        self._answering.left = True
        async for _ in self:
            pass

    def __del__(self) -> None:
        if hasattr(self, "_answering"):  # else the arguments were wrong
            self._answering.left = True
