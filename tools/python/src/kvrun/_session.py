"""One sequence of tokens under one KV-cache policy, as a conversation or as plain text."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ._errors import error_of
from ._generate import Batch, Request, raise_lost
from ._runtime import (NULL, Canceller, Handle, Struct, check, encoded, ffi, fields_of, fill_array, fill_text,
                       from_array, lib, running, token_array)
from ._types import Answer, FetchInfo, SessionInfo, made
from ._vectors import pooling_number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self, Unpack

    from ._aio import AsyncStream
    from ._engine import Engine
    from ._runtime import Tokens
    from ._types import Message, Prompt, SamplingOptions

NOTE_FORMAT = 1  # of the note in a session's file


class Turn:
    """A prompt as the session's next tokens, and the change of the conversation when it is answered."""

    def __init__(self, session: Session, prompt: Tokens, messages: list[Message] | None) -> None:
        self._session = session
        self.prompt = prompt
        self._messages = messages  # with the question; None: no conversation

    def request(self, sampling: SamplingOptions, session: Session | None = None) -> Request:
        """The answer with these options. session: a fork of the turn's session that answers instead."""
        own = self._session
        options: Any = dict(sampling)
        gbnf, schema = options.pop("grammar", None), options.pop("json_schema", None)
        chat = None
        if self._messages is not None and own.chat is not False:
            chat = own.engine.chat_options(self._messages, variables=own.variables,
                                           template=None if own.chat is True else str(own.chat))
        form = own.engine.form(gbnf, schema, chat)
        handle = (own if session is None else session).handle
        check(lib.kvrun_session_set_grammar(handle.pointer, NULL if form is None else form.pointer))
        request = Request(handle, self.prompt, options)
        request.form = form
        return request

    def end(self, answer: Answer) -> None:
        if self._messages is not None:
            self._session.messages = [*self._messages, {"role": "assistant", "content": answer.text}]


class Stream:
    """A streamed answer: an iterator over pieces of text. `answer` is the whole answer once it has ended.

    cancel() may be called from any thread; the iteration then ends, and answer.stop_reason is "cancelled".
    """

    def __init__(self, engine: Engine, turn: Turn, request: Request) -> None:
        self._turn = turn
        self._request = request
        self._error: BaseException | None = None  # to be raised once
        self._batch: Batch | None = Batch(engine.handle)
        self._batch.add(request)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            text = self._request.take_text()
            if text:
                return text
            if self._batch is None:
                error, self._error = self._error, None
                raise error or StopIteration
            self._batch.step()
            if not self._batch.active:
                self._end()
                self._error = self._request.error

    def _end(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.close()
            if self._request.answer is not None:
                self._turn.end(self._request.answer)

    @property
    def answer(self) -> Answer:
        """The answer; if it ended with an error, the part that was generated."""
        if self._request.answer is None:
            raise error_of(-11, "KVRUN_EBUSY", "the answer has not ended; iterate over it, or close() it")
        return self._request.answer

    @property
    def tokens(self) -> list[int]:
        """Tokens so far."""
        return list(self._request.tokens)

    def cancel(self) -> None:
        self._request.canceller.cancel()

    def close(self) -> None:
        """Ends the answer at its current state; the session may be used again."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and hasattr(self, "_batch"):
            self.close()


class Session:
    """A sequence of tokens, made by Engine.session() or Engine.restore(). One thread at a time may use it."""

    def __init__(self, engine: Engine, handle: Handle, chat: bool | str, variables: dict[str, Any] | None,
                 system: str | None, messages: Sequence[Message] = ()) -> None:
        self.engine = engine
        self.handle = handle
        self.chat = chat  # False: texts are plain; True: the file's template; else a template
        self.variables = variables
        self.messages: list[Message] = list(messages)
        if system is not None:
            if chat is False:
                raise error_of(-1, "KVRUN_EINVALID", "system instructions need a chat template: give chat='chatml' or "
                               "another of Engine.chat_templates")
            self.messages.insert(0, {"role": "system", "content": system})

    def __repr__(self) -> str:
        return f"<kvrun.Session of {self.engine.path!r}{' (closed)' if self.handle.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.handle.free()

    # ---- what is in it

    @property
    def info(self) -> SessionInfo:
        """Information about the cache; also available while the session is in use."""
        out = Struct("kvrun_session_info")
        check(lib.kvrun_session_get_info(self.handle.pointer, out.p))
        return made(SessionInfo, fields_of(out.p))

    @property
    def fetch_info(self) -> FetchInfo:
        out = Struct("kvrun_fetch_info")
        check(lib.kvrun_session_get_fetch_info(self.handle.pointer, out.p))
        return made(FetchInfo, fields_of(out.p))

    def __len__(self) -> int:
        return self.info.n_tokens

    @property
    def tokens(self) -> Tokens:
        """The tokens in the cache, oldest first; also available while the session is in use."""
        import numpy as np

        tokens: Tokens = fill_array(
            np.uint32, "uint32_t[]", self.info.n_tokens + 16,
            lambda memory, room, count: lib.kvrun_session_tokens(self.handle.pointer, memory, room, count))
        return tokens

    def tiers(self, layer: int, kv_head: int) -> npt.NDArray[np.uint8]:
        """The tier of each token: 0 f16, 1 salient, 2 regular, 3 evicted."""
        import numpy as np

        found: npt.NDArray[np.uint8] = fill_array(
            np.uint8, "uint8_t[]", self.info.n_tokens + 16, lambda memory, room, count: lib.kvrun_session_tiers(
                self.handle.pointer, layer, kv_head, memory, room, count))
        return found

    # ---- going back, copies, files

    def fork(self) -> Session:
        """An independent session with the same tokens; pages of the cache are shared until one session writes."""
        out = ffi.new("kvrun_session **")
        with running():
            check(lib.kvrun_session_fork(out, self.handle.pointer))
        handle = Handle(out[0], lib.kvrun_session_free, "session")
        return Session(self.engine, handle, self.chat, self.variables, None, self.messages)

    def truncate(self, n_tokens: int) -> None:
        """Removes the tokens from position n_tokens on, if that is exact; see exact_position()."""
        check(lib.kvrun_session_truncate(self.handle.pointer, n_tokens))

    def exact_position(self, n_tokens: int) -> int:
        """The nearest position at or before n_tokens to which truncate() can go back."""
        out = ffi.new("uint32_t *")
        check(lib.kvrun_session_exact_position(self.handle.pointer, n_tokens, out))
        return int(out[0])

    def keep_common(self, tokens: Sequence[int] | Tokens) -> int:
        """Truncates the session to its common beginning with `tokens`, leaving at least one of them to read; returns
        how many it then holds."""
        array = token_array(tokens)
        out = ffi.new("uint32_t *")
        check(lib.kvrun_session_keep_common(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), out))
        return int(out[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the packed cache, the tokens and the conversation to a file; on failure the file is unchanged."""
        import json

        note = json.dumps({"kvrun_python": NOTE_FORMAT, "chat": self.chat, "variables": self.variables,
                           "messages": self.messages}).encode()
        with running():
            check(lib.kvrun_session_save(self.handle.pointer, encoded(os.fspath(path)), note, len(note)))

    # ---- answers

    def turn(self, prompt: Prompt) -> Turn:
        """The part of a prompt that the session does not hold yet."""
        if isinstance(prompt, str):
            if self.chat is False:
                return Turn(self, self.engine.tokenize(prompt, bos=len(self) == 0), None)
            return self._conversation([*self.messages, {"role": "user", "content": prompt}])
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], Mapping):
            return self._conversation(prompt)
        return Turn(self, token_array(cast("Tokens", prompt)), None)

    def _conversation(self, messages: list[Message]) -> Turn:
        template = None if isinstance(self.chat, bool) else self.chat
        tokens = self.engine.chat_tokens(messages, template=template, variables=self.variables)
        return Turn(self, tokens[self.keep_common(tokens):], messages)

    def stream(self, prompt: Prompt, **sampling: Unpack[SamplingOptions]) -> Stream:
        """Answers a prompt; iterate over the pieces of text.

        prompt: a text: the next message of the conversation, or plain text without a template; a list of messages: the
            whole conversation, of which only the new part is read; tokens: appended unchanged.
        """
        turn = self.turn(prompt)
        return Stream(self.engine, turn, turn.request(sampling))

    def ask(self, prompt: Prompt, **sampling: Unpack[SamplingOptions]) -> Answer:
        """The whole answer; arguments as for stream()."""
        with self.stream(prompt, **sampling) as stream:
            for _ in stream:
                pass
        return stream.answer

    def astream(self, prompt: Prompt, **sampling: Unpack[SamplingOptions]) -> AsyncStream:
        """Like stream(), for `async for`. Streams of one engine are generated together, on a separate thread."""
        from ._aio import AsyncStream

        return AsyncStream(self, prompt, sampling)

    async def aask(self, prompt: Prompt, **sampling: Unpack[SamplingOptions]) -> Answer:
        """The whole answer, as astream()."""
        stream = self.astream(prompt, **sampling)
        async for _ in stream:
            pass
        return stream.answer

    def prefill(self, prompt: Sequence[int] | Tokens, *, logits: bool = True,
                canceller: Canceller | None = None) -> npt.NDArray[np.float32] | None:
        """Appends tokens without generating. Returns the logits (vocab) of the last one; None without `logits`."""
        import numpy as np

        array = token_array(prompt)
        canceller = canceller or Canceller()
        options = Struct("kvrun_generate_options", canceller=canceller.pointer)
        out = np.empty(self.engine.info.vocab, np.float32) if logits else None
        with running([canceller.pointer]):
            check(lib.kvrun_prefill(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), options.p,
                                    NULL if out is None else from_array(out, "float[]")))
        raise_lost()
        return out


    def hidden_states(self, prompt: Sequence[int] | Tokens) -> npt.NDArray[np.float32]:
        """Appends tokens; returns the model's last hidden state of each, after the final norm: (tokens, dim)."""
        import numpy as np

        array = token_array(prompt)
        canceller = Canceller()
        options = Struct("kvrun_generate_options", canceller=canceller.pointer)
        out = np.empty((len(array), self.engine.info.dim), np.float32)
        with running([canceller.pointer]):
            check(lib.kvrun_hidden_states(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), options.p,
                                          from_array(out, "float[]")))
        return out

    def embed(self, prompt: Sequence[int] | Tokens, pooling: str = "model") -> npt.NDArray[np.float32]:
        """Appends tokens; returns one vector (vector_dim) for all of them, not normalised. pooling: "mean", "first",
        "last", or "model": as in the file."""
        import numpy as np

        how = pooling_number(pooling)
        array = token_array(prompt)
        canceller = Canceller()
        options = Struct("kvrun_generate_options", canceller=canceller.pointer)
        out = np.empty(self.engine.info.vector_dim, np.float32)
        with running([canceller.pointer]):
            check(lib.kvrun_embed(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), how, options.p,
                                  from_array(out, "float[]")))
        return out


def restored(engine: Engine, handle: Handle, path: str) -> Session:
    """A session with the conversation from its file's note; files of other programs have none."""
    import json

    data = fill_text(
        4096, lambda memory, room, count: lib.kvrun_session_read_note(encoded(path), memory, room, count))
    try:
        note = json.loads(data) if data else {}
    except ValueError:
        note = {}
    if not isinstance(note, dict) or note.get("kvrun_python") != NOTE_FORMAT:
        return Session(engine, handle, False, None, None)
    return Session(engine, handle, note["chat"], note["variables"], None, note["messages"])
