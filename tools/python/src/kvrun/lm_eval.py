"""kvrun as a model of lm-evaluation-harness (PyPI lm-eval):

    python -m kvrun.lm_eval run --model kvrun --model_args path=model.gguf,kv=kivi2 --tasks arc_easy --limit 50

The continuation of each request is read by decode steps, so its likelihood is measured under the packed cache.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import TemplateLM  # type: ignore[import-untyped,import-not-found,unused-ignore]
from lm_eval.api.registry import register_model  # type: ignore[import-untyped,import-not-found,unused-ignore]

from ._engine import Engine

if TYPE_CHECKING:
    from ._runtime import Floats
    from ._session import Session
    from ._types import SamplingOptions

Scored = tuple[float, bool]  # log likelihood of a continuation; whether greedy sampling gives it


def _scores(logits: Floats, tokens: Sequence[int]) -> list[tuple[float, bool]]:
    """For one token per row: its log probability, and whether it is the most likely token."""
    top = logits.max(axis=1, keepdims=True)
    norm = np.log(np.exp((logits - top).astype(np.float64)).sum(axis=1)) + top[:, 0]
    return [(float(row[t] - n), int(row.argmax()) == t) for row, n, t in zip(logits, norm, tokens)]


LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # names of one option


def _first(options: dict[str, Any], *names: str, otherwise: Any) -> Any:
    return next((options[name] for name in names if options.get(name) is not None), otherwise)


def _sampling(options: dict[str, Any]) -> SamplingOptions:
    """Of generation_kwargs, as other models of the harness take them: what is not given has no effect."""
    temperature = float(_first(options, "temperature", otherwise=1 if options.get("do_sample") else 0))
    return {"temperature": temperature if _first(options, "do_sample", otherwise=True) else 0.0,
            "top_k": max(0, int(_first(options, "top_k", otherwise=0))),  # of some models -1: all
            "top_p": float(_first(options, "top_p", otherwise=1)),
            "min_p": float(_first(options, "min_p", otherwise=0)),
            "repeat_penalty": float(_first(options, "repetition_penalty", otherwise=1)),
            "seed": options.get("seed")}


@register_model("kvrun")  # type: ignore[untyped-decorator,misc,unused-ignore]
class KvrunLM(TemplateLM):  # type: ignore[misc,unused-ignore]
    """model_args: path, kv, ctx, max_rows, chat (a template's name, for --apply_chat_template). --device: kvrun's."""

    def __init__(self, path: str, kv: str = "fp16", ctx: int = 0, device: str | None = None, max_rows: int = 8,
                 chat: str | None = None, **unused: Any) -> None:
        super().__init__()
        self.engine = Engine(path, device=device, max_rows=int(max_rows))
        self.kv, self._ctx, self.chat = kv, int(ctx) or self.engine.info.ctx_train, chat
        self._name = path

    @property
    def eot_token_id(self) -> int:
        info = self.engine.info
        token = info.eos if info.eos is not None else info.bos
        return token if token is not None else 0

    @property
    def prefix_token_id(self) -> int:
        bos = self.engine.info.bos
        return bos if bos is not None else self.eot_token_id

    @property
    def max_length(self) -> int:
        return self._ctx

    @property
    def tokenizer_name(self) -> str:
        return self._name.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Without the beginning of an answer, the harness continues a last message of the assistant."""
        goes_on = not add_generation_prompt and chat_history[-1].get("role") == "assistant"
        return self.engine.chat_text(chat_history, template=self.chat, answer=add_generation_prompt, goes_on=goes_on)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        """In texts of a chat template control tokens are written out and become tokens: where the template begins a
        text with BOS, none is added."""
        tokens = [int(t) for t in self.engine.tokenize(string, bos=bool(add_special_tokens), special=True)]
        bos = self.engine.info.bos
        return tokens[1:] if add_special_tokens and bos is not None and tokens[:2] == [bos, bos] else tokens

    def _session(self) -> Session:
        return self.engine.session(kv=self.kv, ctx=self._ctx, chat=False, checkpoints=0)

    def _fitting(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        """Truncates from the left what is too long, as the harness does."""
        tokens = [*context, *continuation][-self._ctx:]
        n = min(len(continuation), len(tokens) - 1)
        return tuple(tokens[:len(tokens) - n]), tokens[len(tokens) - n:]

    def _loglikelihood_tokens(self, requests: list[Any], disable_tqdm: bool = False, **unused: Any) -> list[Scored]:
        by_context: dict[tuple[int, ...], list[tuple[int, list[int]]]] = defaultdict(list)
        for i, (_, context, continuation) in enumerate(requests):
            head, tail = self._fitting(context or [self.prefix_token_id], continuation)
            by_context[head].append((i, tail))
        out: list[Scored] = [(0.0, True)] * len(requests)
        rows = self.engine.info.max_rows
        for context, asked in by_context.items():  # each context is read once for all of its continuations
            with self._session() as first:
                logits = first.prefill(context)
                assert logits is not None
                for at in range(0, len(asked), rows):
                    self._score_together(first, logits, asked[at:at + rows], out)
        return out

    def _score_together(self, first: Session, logits: Floats, asked: list[tuple[int, list[int]]],
                        out: list[Scored]) -> None:
        going = [(i, tail, first.fork()) for i, tail in asked]
        rows = np.repeat(logits[None], len(going), axis=0)
        at = 0
        while going:
            tokens = [tail[at] for _, tail, _ in going]
            for (i, _, _), (score, greedy) in zip(going, _scores(rows, tokens)):
                out[i] = (out[i][0] + score, out[i][1] and greedy)
            at += 1
            for i, tail, session in going:
                if at == len(tail):
                    session.close()
            going = [g for g in going if at < len(g[1])]
            if going:
                rows = self.engine.decode([s for _, _, s in going], [tail[at - 1] for _, tail, _ in going])

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Windows as long as the context, each predicted from its first token on."""
        out = []
        for request in requests:
            tokens = self.tok_encode(request.args[0])
            total, at = 0.0, 0
            while at < len(tokens):
                window = tokens[at:at + self._ctx - 1]
                head = [self.prefix_token_id if at == 0 else tokens[at - 1]]
                total += self._loglikelihood_tokens([(None, head, window)])[0][0]
                at += len(window)
            out.append(total)
        return out

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        out = []
        for request in requests:
            prompt, options = request.args
            until = options.get("until") or []
            sampling = _sampling(options)
            sampling["max_tokens"] = n = int(_first(options, *LENGTHS, otherwise=256))
            sampling["stop"] = [until] if isinstance(until, str) else list(until)
            sampling["repeat_last_n"] = self._ctx
            tokens = self.tok_encode(prompt, add_special_tokens=self.engine.info.adds_bos)[-max(1, self._ctx - n):]
            with self._session() as session:
                answer = session.ask(tokens, **sampling)
            out.append(answer.text)
        return out


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-untyped,import-not-found,unused-ignore]

    cli_evaluate()
