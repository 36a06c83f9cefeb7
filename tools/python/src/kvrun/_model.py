"""A loaded model as its sessions need it: tokens, templates, the thread of asynchronous answers."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._check import text as check_text
from ._errors import invalid
from ._runtime import (NO_TOKEN, Handle, Struct, check, ffi, fields_of, fill_array, fill_text, from_array, lib,
                       token_array)
from ._types import EngineInfo, made

if TYPE_CHECKING:
    from ._aio import Scheduler
    from ._runtime import Tokens
    from ._types import Message

NO_BOS, SPECIAL, END = 1, 2, 4  # KVRUN_TOKENS_


class Tokenizing:
    """What an engine, and a model that outlives it, do with tokens and templates."""

    _handle: Handle

    @property
    def handle(self) -> Handle:
        return self._handle

    @property
    def info(self) -> EngineInfo:
        """What was loaded, where it lies, and the memory in use now."""
        out = Struct("kvrun_engine_info")
        check(lib.kvrun_engine_get_info(self._handle.pointer, out.p))
        fields = fields_of(out.p)
        for name in ("bos", "eos"):
            fields[name] = None if fields[name] == NO_TOKEN else fields[name]
        return made(EngineInfo, fields)

    # ---- tokens and templates

    def tokenize(self, text: str, *, bos: bool = True, special: bool = False, end: bool = False) -> Tokens:
        """The tokens of a text. bos: with the token that begins a text. special: control tokens written in the text
        become tokens; do not use it for a user's text. end: with the token that the file names for texts that are
        embedded."""
        import numpy as np

        data = check_text(text, "text").encode("utf-8", "surrogateescape")
        flags = (0 if bos else NO_BOS) | (SPECIAL if special else 0) | (END if end else 0)
        tokens: Tokens = fill_array(
            np.uint32, "uint32_t[]", len(data) + 8, lambda memory, room, count: lib.kvrun_tokenize(
                self._handle.pointer, data, len(data), flags, memory, room, count))
        return tokens

    def detokenize(self, tokens: Sequence[int] | Tokens, *, special: bool = False) -> str:
        """The text of tokens; control tokens are included only with `special`."""
        array = token_array(tokens)
        return fill_text(
            len(array) * 8, lambda memory, room, count: lib.kvrun_detokenize(
                self._handle.pointer, from_array(array, "uint32_t[]"), len(array), SPECIAL
                if special else 0, memory, room, count)).decode("utf-8", "replace")

    def chat_options(self, messages: Sequence[Message] | None, *, tools: Sequence[dict[str, Any]] | None = None,
                     variables: dict[str, Any] | None = None, template: str | None = None,
                     answer: bool = True, goes_on: bool = False) -> Struct:
        """template: a name, or the text of a Jinja template; None: the file's own. goes_on: the answer continues the
        last message."""
        import json

        text = template is not None and "{" in template
        for message in messages or ():
            if not isinstance(message, Mapping):
                raise TypeError(f"a message is {message!r}, expected a dictionary")
        return Struct("kvrun_chat_options",
                      messages_json=None if messages is None else json.dumps([*map(dict, messages)]),
                      tools_json=None if tools is None else json.dumps(list(tools)),
                      variables_json=None if variables is None else json.dumps(variables),
                      template_text=template if text else None, template_name=None if text else template,
                      no_answer=2 if goes_on else not answer)

    def chat_tokens(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None,
                    variables: dict[str, Any] | None = None, template: str | None = None,
                    answer: bool = True, goes_on: bool = False) -> Tokens:
        """The tokens of a conversation, with messages in the form of OpenAI's API. answer: with the beginning of one.

        variables: for the template, such as {"enable_thinking": False}. goes_on: the answer continues the last message,
            which is the assistant's.
        """
        import numpy as np

        o = self.chat_options(messages, tools=tools, variables=variables, template=template, answer=answer,
                              goes_on=goes_on)
        tokens: Tokens = fill_array(
            np.uint32, "uint32_t[]", 1024,
            lambda memory, room, count: lib.kvrun_chat_tokens(self._handle.pointer, o.p, memory, room, count))
        return tokens

    def chat_text(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None,
                  variables: dict[str, Any] | None = None, template: str | None = None, answer: bool = True,
                  goes_on: bool = False) -> str:
        """The text of a conversation by its template; arguments as for chat_tokens()."""
        o = self.chat_options(messages, tools=tools, variables=variables, template=template, answer=answer,
                              goes_on=goes_on)
        return fill_text(
            4096, lambda memory, room, count: lib.kvrun_chat_text(self._handle.pointer, o.p, memory, room, count)
        ).decode("utf-8", "replace")

    def form(self, gbnf: str | None, json_schema: Mapping[str, Any] | str | None, chat: Struct | None) -> Handle | None:
        """What answers must follow behind a conversation's reasoning: a grammar or a JSON schema; None: nothing."""
        import json

        if gbnf is not None and json_schema is not None:
            raise invalid("grammar and json_schema are both given; give one of them")
        if gbnf is None and json_schema is None:
            return None
        schema = json_schema if json_schema is None or isinstance(json_schema, str) else json.dumps(json_schema)
        options = Struct("kvrun_grammar_options", gbnf=gbnf, json_schema=schema,
                         **({} if chat is None else {"chat": chat.p}))
        out = ffi.new("kvrun_grammar **")
        check(lib.kvrun_grammar_new(out, self._handle.pointer, options.p))
        return Handle(out[0], lib.kvrun_grammar_free, "grammar") if out[0] else None

    def chat_template_of(self, chat: bool | str | None) -> bool | str:
        """How a session uses texts: False: as plain text; True: as messages of the file's template; or a template.
        Raises an error for a template that does not exist or cannot be read."""
        if chat is None:
            return self.info.has_chat_template
        if not isinstance(chat, (bool, str)):
            raise TypeError(f"chat is {chat!r}, expected True, False, or a template's name or text")
        if chat is not False:
            o = self.chat_options(None, template=None if chat is True else chat)
            check(lib.kvrun_chat_get_features(self._handle.pointer, o.p, Struct("kvrun_chat_features").p))
        return chat


class Model(Tokenizing):
    """What the engine and its sessions share. The library's engine is freed with the last reference to it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._scheduler: Scheduler | None = None
        self._lock = threading.Lock()

    def scheduler(self) -> Scheduler:
        """The thread shared by asynchronous answers of the engine."""
        from ._aio import Scheduler

        with self._lock:
            if self._scheduler is None or self._scheduler.ended:
                self._scheduler = Scheduler(self._handle, self.info.max_rows)
            return self._scheduler

    def end_answers(self, wait: bool = True) -> None:
        """Cancels asynchronous answers."""
        with self._lock:
            scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.stop(wait)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and getattr(self, "_scheduler", None) is not None:
            self.end_answers(wait=False)
