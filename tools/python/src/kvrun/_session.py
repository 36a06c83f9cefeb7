"""One sequence of tokens under one KV-cache policy, as a conversation or as plain text."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ._check import path_of, whole
from ._errors import KvrunError, error_of, invalid
from ._generate import Batch, Request, Sampling
from ._runtime import (NULL, Canceller, Handle, Struct, check, encoded_path, ffi, fields_of, fill_array, fill_text,
                       from_array, lib, running, token_array)
from ._types import Answer, FetchInfo, SessionInfo, made
from ._vectors import pooling_number, reading

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self, Unpack

    from ._aio import AsyncStream
    from ._engine import Engine
    from ._model import Model
    from ._runtime import Tokens
    from ._types import Message, Prompt, SamplingOptions

NOTE_FORMAT = 1  # of the note in a session's file


class EndOfAnswer(NamedTuple):
    """Where the last answer ended, valid while no other tokens have followed."""

    position: int
    unread: Tokens  # of its prompt and its tokens; an answer that continues it reads them
    owed: Tokens  # those that belong before a text that follows


class Turn:
    """A prompt as the session's next tokens, and the change of the conversation when it is answered."""

    def __init__(self, session: Session, prompt: Tokens, messages: Sequence[Message] | None,
                 goes_on: bool = False, taken_back: bool = False) -> None:
        self._session = session
        self.prompt = prompt
        self._messages = messages  # with the question; None: no conversation
        self._goes_on = goes_on  # the answer continues the last message, which is the assistant's
        self._first = len(session)  # position of the prompt
        self.taken_back = taken_back  # the prompt was in the session before

    def give_up(self) -> None:
        """The answer does not begin: the session becomes what it was."""
        if self.taken_back:
            end, none = self._session.end_of_answer, self.prompt[:0]
            self._session.prefill(self.prompt, logits=False)
            self._session.end_of_answer = None if end is None else EndOfAnswer(len(self._session), none, none)

    def request(self, sampling: Sampling, session: Session | None = None) -> Request:
        """The answer with these options. session: a fork of the turn's session that answers instead."""
        own = self._session
        chat = None
        if self._messages is not None and own.chat is not False:
            chat = own.model.chat_options(self._messages, variables=own.variables, goes_on=self._goes_on,
                                          template=None if own.chat is True else str(own.chat))
        form = own.model.form(sampling.grammar, sampling.json_schema, chat)
        handle = (own if session is None else session).handle
        check(lib.kvrun_session_set_grammar(handle.pointer, NULL if form is None else form.pointer))
        request = Request(handle, self.prompt, sampling)
        request.form = form
        return request

    def end(self, answer: Answer) -> None:
        session = self._session
        if self._messages is not None:
            *before, last = self._messages
            if self._goes_on and isinstance(last.get("content"), str):
                session.messages = [*before, {**last, "content": last["content"] + answer.text}]
            else:
                session.messages = [*self._messages, {"role": "assistant", "content": answer.text}]
        if session.handle.closed:
            return
        # The last token that is chosen is not read, nor is the rest of a cancelled prompt. The next answer reads
        # them if it continues this one. A text that follows comes behind all of the answer's text: not behind a stop
        # string, which the answer does not have, nor behind a prompt that was cancelled.
        import numpy as np

        tokens, held = np.concatenate([self.prompt, answer.tokens]), len(session)
        count = self._first + len(tokens) - held
        unread = tokens[len(tokens) - count:] if 0 <= count <= len(tokens) else tokens[:0]
        owed = unread if len(answer.tokens) and answer.stop_reason != "stop" else unread[:0]
        session.end_of_answer = EndOfAnswer(held, unread, owed)


class Stream:
    """A streamed answer: an iterator over pieces of text. `answer` is the whole answer once it has ended.

    cancel() may be called from any thread; the iteration then ends, and answer.stop_reason is "cancelled".
    """

    def __init__(self, engine: Handle, turn: Turn, request: Request) -> None:
        self._turn = turn
        self._request = request
        self._error: BaseException | None = None  # to be raised once
        self._batch: Batch | None = Batch(engine)
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
        """Ends the answer, from any thread; the iteration then ends."""
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
    """A sequence of tokens, made by Engine.session() or Engine.restore(). One thread at a time may use it.

    It stays usable when its engine is closed. messages: the conversation so far.
    """

    def __init__(self, engine: Engine, model: Model, handle: Handle, chat: bool | str,
                 variables: dict[str, Any] | None, system: str | None, messages: Sequence[Message] = ()) -> None:
        self.engine = engine
        self._model: Model | None = model
        self.end_of_answer: EndOfAnswer | None = None  # None: there was none, or other tokens followed
        self.unfinished: Turn | None = None  # of an asynchronous answer: its thread has yet to call end()
        self.handle = handle
        self.chat = chat  # False: texts are plain; True: the file's template; else a template
        self.variables = variables
        self.messages: list[Message] = list(messages)
        if system is not None:
            if chat is False:
                raise invalid("system instructions need a chat template: give chat='chatml' or "
                              "another of Engine.chat_templates")
            self.messages.insert(0, {"role": "system", "content": system})

    def __repr__(self) -> str:
        return f"<kvrun.Session of {self.engine.path!r}{' (closed)' if self.handle.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the cache. A closed engine is freed with the last of its sessions."""
        self.handle.free()
        self._model = None

    def __reduce__(self) -> Any:
        raise TypeError("a kvrun.Session cannot be pickled; save() writes it to a file")

    @property
    def model(self) -> Model:
        """What it needs of the engine."""
        if self._model is None:
            raise KvrunError("the session is closed")
        return self._model

    # ---- what is in it

    @property
    def info(self) -> SessionInfo:
        """Information about the cache; also available while the session is in use."""
        out = Struct("kvrun_session_info")
        check(lib.kvrun_session_get_info(self.handle.pointer, out.p))
        return made(SessionInfo, fields_of(out.p))

    @property
    def fetch_info(self) -> FetchInfo:
        """What a policy that fetches from host memory has transferred."""
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
                self.handle.pointer, whole(layer, "layer"), whole(kv_head, "kv_head"), memory, room, count))
        return found

    # ---- going back, copies, files

    def fork(self) -> Session:
        """An independent session with the same tokens; pages of the cache are shared until one session writes."""
        out = ffi.new("kvrun_session **")
        with running():
            check(lib.kvrun_session_fork(out, self.handle.pointer))
        handle = Handle(out[0], lib.kvrun_session_free, "session")
        fork = Session(self.engine, self.model, handle, self.chat, self.variables, None, self.messages)
        fork.end_of_answer = self.end_of_answer
        return fork

    def truncate(self, n_tokens: int) -> None:
        """Removes the tokens from position n_tokens on, if that is exact; see exact_position()."""
        check(lib.kvrun_session_truncate(self.handle.pointer, whole(n_tokens, "n_tokens")))
        self.end_of_answer = None

    def exact_position(self, n_tokens: int) -> int:
        """The nearest position at or before n_tokens to which truncate() can go back."""
        out = ffi.new("uint32_t *")
        check(lib.kvrun_session_exact_position(self.handle.pointer, whole(n_tokens, "n_tokens"), out))
        return int(out[0])

    def keep_common(self, tokens: Sequence[int] | Tokens) -> int:
        """Truncates the session to its common beginning with `tokens`, leaving at least one of them to read; returns
        how many it then holds."""
        array = token_array(tokens)
        out = ffi.new("uint32_t *")
        check(lib.kvrun_session_keep_common(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), out))
        self.end_of_answer = None
        return int(out[0])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the packed cache, the tokens and the conversation to a file; on failure the file is unchanged."""
        import json

        note = json.dumps({"kvrun_python": NOTE_FORMAT, "chat": self.chat, "variables": self.variables,
                           "messages": self.messages, "owed": [int(t) for t in self._owed()]}).encode()
        with running():
            check(lib.kvrun_session_save(self.handle.pointer, encoded_path(path_of(path, "path")), note, len(note)))

    # ---- answers

    def turn(self, prompt: Prompt) -> Turn:
        """The part of a prompt that the session does not hold yet."""
        if self.unfinished is not None:
            raise error_of(-11, "KVRUN_EBUSY", "an asynchronous answer of the session has not ended")
        if isinstance(prompt, str):
            if self.chat is False:
                return self._text(prompt)
            return self._conversation([*self.messages, {"role": "user", "content": prompt}])
        if isinstance(prompt, Mapping):
            raise TypeError("the prompt is one message; give a list of messages")
        if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
            return self._conversation(list(prompt))  # type: ignore[arg-type]
        tokens = token_array(cast("Tokens", prompt))
        return Turn(self, tokens, None) if len(tokens) else self._continuation()

    def _text(self, text: str) -> Turn:
        import numpy as np

        owed = self._owed()
        tokens = self.model.tokenize(text, bos=len(self) + len(owed) == 0)
        return Turn(self, np.concatenate([owed, tokens]) if len(tokens) else tokens, None)

    def _owed(self) -> Tokens:
        """Tokens of the last answer that belong before a text that follows now."""
        end = self.end_of_answer
        return token_array([]) if end is None or end.position != len(self) else end.owed

    def _conversation(self, messages: list[Message]) -> Turn:
        template = None if isinstance(self.chat, bool) else self.chat
        goes_on = messages[-1].get("role") == "assistant"
        tokens = self.model.chat_tokens(messages, template=template, variables=self.variables, goes_on=goes_on)
        return Turn(self, tokens[self.keep_common(tokens):], messages, goes_on)

    def _continuation(self) -> Turn:
        """No new tokens: the answer continues the last one, or what was read."""
        held = len(self)
        end = self.end_of_answer
        if end is not None and end.position != held:  # of a call that failed, the part before has followed
            end = None
        goes_on = end is not None and bool(self.messages) and self.messages[-1].get("role") == "assistant"
        messages = self.messages if goes_on else None
        if end is not None and len(end.unread):
            return Turn(self, end.unread, messages, goes_on)
        if not held:
            raise invalid("the session is empty: there is nothing to continue")
        tokens = self.tokens
        tokens = tokens[self.keep_common(tokens):]  # logits come out of the last token, which is read again
        self.end_of_answer = end
        return Turn(self, tokens, messages, goes_on, taken_back=True)

    def stream(self, prompt: Prompt, **sampling: Unpack[SamplingOptions]) -> Stream:
        """Answers a prompt; iterate over the pieces of text.

        prompt: a text: the next message of the conversation, or without a template plain text that follows the last
            answer's; a list of messages: the whole conversation, of which only the new part is read, and whose last
            message is continued if it is the assistant's; tokens: appended unchanged to `tokens`, which lacks the last
            token of an answer that ended by a limit; no tokens, []: the last answer, or what was read, is continued.
        """
        checked = Sampling(sampling)
        turn = self.turn(prompt)
        try:
            return Stream(self.model.handle, turn, turn.request(checked))
        except BaseException:
            turn.give_up()
            raise

    def ask(self, prompt: Prompt, **sampling: Unpack[SamplingOptions]) -> Answer:
        """The whole answer; arguments as for stream()."""
        with self.stream(prompt, **sampling) as stream:
            for _ in stream:
                pass
        return stream.answer

    def astream(self, prompt: Prompt, **sampling: Unpack[SamplingOptions]) -> AsyncStream:
        """Like stream(), for `async for`. Streams of one engine are generated together, on a separate thread.

        `async for text in session.astream(...)` ends the answer where the loop is left, and the session is usable again
        soon after. A stream that a variable holds needs `await stream.aclose()`, which waits for that.
        """
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
        """Appends tokens without generating. Returns the logits (vocab) of the last one; None without `logits`.

        If it is interrupted or cancelled, tokens of finished blocks stay in the session (len()), the others do not."""
        import numpy as np

        array = token_array(prompt)
        out = np.empty(self.model.info.vocab, np.float32) if logits else None
        with reading(canceller) as options:
            check(lib.kvrun_prefill(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), options,
                                    NULL if out is None else from_array(out, "float[]")))
        self.end_of_answer = None
        return out

    def hidden_states(self, prompt: Sequence[int] | Tokens) -> npt.NDArray[np.float32]:
        """Appends tokens; returns the model's last hidden state of each, after the final norm: (tokens, dim)."""
        import numpy as np

        array = token_array(prompt)
        out = np.empty((len(array), self.model.info.dim), np.float32)
        with reading() as options:
            check(lib.kvrun_hidden_states(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), options,
                                          from_array(out, "float[]")))
        self.end_of_answer = None
        return out

    def embed(self, prompt: Sequence[int] | Tokens, pooling: str = "model") -> npt.NDArray[np.float32]:
        """Appends tokens; returns one vector (vector_dim) for all of them, not normalised. pooling: "mean", "first",
        "last", or "model": as in the file."""
        import numpy as np

        how = pooling_number(pooling)
        array = token_array(prompt)
        out = np.empty(self.model.info.vector_dim, np.float32)
        with reading() as options:
            check(lib.kvrun_embed(self.handle.pointer, from_array(array, "uint32_t[]"), len(array), how, options,
                                  from_array(out, "float[]")))
        self.end_of_answer = None
        return out


def restored(engine: Engine, model: Model, handle: Handle, path: str) -> Session:
    """A session with the conversation from its file's note; files of other programs have none."""
    import json

    data = fill_text(
        4096, lambda memory, room, count: lib.kvrun_session_read_note(encoded_path(path), memory, room, count))
    try:
        note = json.loads(data) if data else {}
    except ValueError:
        note = {}
    if not isinstance(note, dict) or note.get("kvrun_python") != NOTE_FORMAT:
        return Session(engine, model, handle, False, None, None)
    session = Session(engine, model, handle, note["chat"], note["variables"], None, note["messages"])
    owed = token_array(note.get("owed", []))
    session.end_of_answer = EndOfAnswer(len(session), owed, owed) if len(owed) else None
    return session
