"""Asynchronous answers: one thread per engine generates all of them together."""
from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
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
        self._queue: queue.SimpleQueue[AsyncStream | None] = queue.SimpleQueue()
        self._batch = Batch(engine)
        self._rows = max_rows
        self._waiting: deque[AsyncStream] = deque()
        self._active: dict[int, AsyncStream] = {}  # by request
        self._thread = threading.Thread(target=self._run, name="kvrun", daemon=True)
        self._stopping = False
        at_exit(self.stop)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def submit(self, stream: AsyncStream) -> None:
        if self._stopping:
            raise KvrunError("the engine is closed")
        self._queue.put(stream)

    def stop(self, wait: bool = True) -> None:
        """Cancels all answers and ends the thread."""
        self._stopping = True
        self._queue.put(None)
        for stream in list(self._active.values()):
            stream.cancel()
        if wait and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        error: BaseException = KvrunError("the engine was closed before the answer began")
        try:
            while True:
                self._receive()
                if self._stopping:
                    for stream in list(self._active.values()):
                        stream.cancel()
                    while self._batch.active:  # answers that have begun end as cancelled
                        self._step()
                    break
                while self._waiting and self._batch.active < self._rows:
                    self._begin(self._waiting.popleft())
                if self._batch.active:
                    self._step()
        except BaseException as e:
            error = e
        for stream in [*self._active.values(), *self._waiting]:
            if stream.request is not None:
                self._batch.take(stream.request)
            stream.end(error)
        self._batch.close()
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

    def _begin(self, stream: AsyncStream) -> None:
        try:
            if stream.canceller.is_set:
                return stream.end_unbegun()
            request = stream.prepare()
            self._batch.add(request)
            self._active[id(request)] = stream
        except Exception as error:
            stream.give_up()
            stream.end(error)

    def _step(self) -> None:
        ended = self._batch.step()
        for stream in list(self._active.values()):
            stream.push()
        for request in ended:
            self._active.pop(id(request)).end(request.error)


class AsyncStream:
    """Like Stream, for `async for`. Leaving the loop or cancelling the task ends the answer."""

    def __init__(self, session: Session, prompt: Prompt, sampling: SamplingOptions) -> None:
        self._session = session
        self._prompt = prompt
        self._sampling = Sampling(sampling)
        self.canceller = self._sampling.canceller
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pieces: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self._turn: Turn | None = None
        self._ended = False
        self.request: Request | None = None
        self._unbegun: Answer | None = None  # it was cancelled before it began

    # ---- on the scheduler's thread

    def prepare(self) -> Request:
        self._turn = self._session.turn(self._prompt)
        self.request = self._turn.request(self._sampling)
        return self.request

    def give_up(self) -> None:
        if self._turn is not None:
            with contextlib.suppress(KvrunError):
                self._turn.give_up()

    def push(self) -> None:
        text = self.request.take_text() if self.request is not None else ""
        if text:
            self._give(text)

    def end(self, error: BaseException | None) -> None:
        self.push()
        if self.request is not None and self.request.answer is not None and self._turn is not None:
            self._turn.end(self.request.answer)
        cancelled = getattr(error, "status_name", "") == "KVRUN_ECANCELLED"
        self._give(None if cancelled else error)

    def end_unbegun(self) -> None:
        """Cancelled before it began: the session is unchanged."""
        import numpy as np

        self._unbegun = Answer("", np.array([], np.uint32), "cancelled", 0, 0.0, 0.0, seed=self._sampling.seed)
        self._give(None)

    def _give(self, item: str | BaseException | None) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, item)
        except RuntimeError:  # the event loop is closed
            self.canceller.cancel()

    # ---- on the event loop

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if not self._ended:
                self._session.model.scheduler().submit(self)
        if self._ended:
            raise StopAsyncIteration
        try:
            item = await self._pieces.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if isinstance(item, str):
            return item
        self._ended = True
        if item is not None:
            raise item
        raise StopAsyncIteration

    @property
    def answer(self) -> Answer:
        """The answer; if it ended with an error or was cancelled, the part that was generated."""
        if self._unbegun is not None:
            return self._unbegun
        if self.request is None or self.request.answer is None:
            raise error_of(-11, "KVRUN_EBUSY", "the answer has not ended; iterate over it, or await aclose()")
        return self.request.answer

    def cancel(self) -> None:
        """From any thread; the iteration then ends, and answer.stop_reason is "cancelled"."""
        self.canceller.cancel()

    async def aclose(self) -> None:
        """Ends the answer where it is, and waits until the session may be used again."""
        if self._loop is None and not self._ended:
            self._ended = True
            self.end_unbegun()
        self.cancel()
        async for _ in self:
            pass

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and hasattr(self, "_ended") and not self._ended:
            self.canceller.cancel()
