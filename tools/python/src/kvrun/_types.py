"""Results of calls as named tuples, with the fields of kvrun.h's structs."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import TypeAlias

    from ._runtime import Canceller, Floats, Tokens

    Message = Mapping[str, Any]  # role, content, ..., as OpenAI's API has them
    Prompt: TypeAlias = str | Sequence[Message] | Sequence[int] | Tokens
    LogitsHook = Callable[[Floats], None]

STOP_REASONS = ("length", "context", "end", "stop", "cancelled")  # in the order of kvrun_stop_reason


class DeviceInfo(NamedTuple):
    """A device: fields of kvrun_device_info."""

    usable: bool
    is_cpu: bool
    backend: str
    name: str
    driver: str
    type: str
    refused: str
    memory_bytes: int
    free_bytes: int
    max_buffer_bytes: int


class EngineInfo(NamedTuple):
    """A loaded model and its device: fields of kvrun_engine_info. bos, eos: None if the model has none."""

    vocab: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dim: int
    ctx_train: int
    bos: int | None
    eos: int | None
    adds_bos: bool
    has_chat_template: bool
    architecture: str
    name: str
    device_name: str
    device_driver: str
    backend: str
    weight_bytes: int
    activation_bytes: int
    kv_budget_bytes: int
    kv_used_bytes: int
    max_rows: int
    device_is_cpu: bool
    host_weight_bytes: int
    weights: str
    reads_images: bool
    encodes: bool
    vector_dim: int
    n_scores: int
    n_params: int
    tensor_bytes: int
    audio_rate: int


class SessionInfo(NamedTuple):
    """A session's cache: fields of kvrun_session_info."""

    n_tokens: int
    ctx: int
    kv: str
    f16_bytes: int
    code_bytes: int
    param_bytes: int
    overhead_bytes: int
    total_bytes: int
    f16_equivalent: int
    takes_drafts: bool


class FetchInfo(NamedTuple):
    """Transfers of a policy that fetches: fields of kvrun_fetch_info."""

    fetch: int
    steps: int
    f16_share: float
    fetched_bytes: int
    hidden_seconds: float
    open_seconds: float
    host_bytes: int
    file_bytes: int


class Plan(NamedTuple):
    """Whether a context fits: fields of kvrun_plan. weight_bytes lie on the device, host_weight_bytes in host memory; a
    token of a decode step reads device_token_bytes and host_token_bytes of them."""

    fits: bool
    evicts: bool
    ctx: int
    ctx_train: int
    most_tokens: int
    kept_tokens: int
    memory_bytes: int
    weight_bytes: int
    activation_bytes: int
    prompt_bytes: int
    reserve_bytes: int
    cache_bytes: int
    kv_bytes: int
    kv_f16_bytes: int
    stored_bits: float
    host_weight_bytes: int
    device_token_bytes: int
    host_token_bytes: int


class Policy(NamedTuple):
    """A KV-cache policy; `source` is its paper."""

    name: str
    summary: str
    source: str


class Answer(NamedTuple):
    """A finished answer. stop_reason: "length", "context", "end", "stop" or "cancelled". seed: that it was sampled
    with."""

    text: str
    tokens: Tokens
    stop_reason: str
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    drafted: int = 0
    drafts_accepted: int = 0
    seed: int = 0


class SamplingOptions(TypedDict, total=False):
    """Keywords of all functions that generate; defaults are those of kvrun.h, but for `seed`. None: the default.

    max_tokens: None: until the model ends its answer or the context is full.
    temperature: 0 is greedy. top_k, top_p, min_p: candidates. repeat_penalty over the last repeat_last_n tokens.
    presence_penalty, frequency_penalty: subtracted from the logits of tokens in the answer, once or per occurrence.
    top_n_sigma, typical_p, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent: further samplers.
    dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n: penalty of tokens that lengthen a repetition; it
        ends at one of the texts dry_sequence_breakers.
    mirostat: 1 or 2, in place of the other cuts, with a mean surprise of mirostat_tau bits and a rate mirostat_eta.
    min_keep: typical_p, top_p, min_p and XTC each leave at least this many tokens.
    adaptive_target, adaptive_decay: adaptive-p, probability that tokens should have, and weight of those before.
    logit_bias: per token, added to its logit; -inf: it is never chosen.
    seed: the same seed on the same device gives the same tokens; of several choices, choice i has seed + i. None: a
        random one, which Answer.seed reports.
    stop: texts that end the answer and are not part of it.
    ignore_eos: continue after tokens that end an answer. special: control tokens of the answer are shown as text.
    logits: called before each token with the logits of all tokens, an array that it may change: -inf excludes a token.
        The array is the library's memory, valid during the call. The function may read the engine and its sessions
        (len(), tokens, info); calls that need the engine's turn raise Busy.
    draft_max: most tokens that are guessed and verified in one step, within the engine's max_rows; the answer is the
        same, and may be faster. 0: none.
    json_schema: the answer is JSON that is valid under this schema, an object or a text; {} is any JSON.
    grammar: the answer follows this grammar in GBNF; its rule root is the answer. Of a conversation, both apply behind
        the template's reasoning.
    progress: called with the share of the prompt that has been read.
    canceller: stops the answer, from any thread.
    """

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    top_n_sigma: float
    typical_p: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    min_keep: int
    adaptive_target: float
    adaptive_decay: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool
    special: bool
    draft_max: int
    json_schema: Mapping[str, Any] | str
    grammar: str
    logits: LogitsHook
    progress: Callable[[float], None]
    canceller: Canceller


T = TypeVar("T")


def made(kind: type[T], fields: dict[str, Any]) -> T:
    """A result of this kind from the fields of a struct; flags become bool."""
    flags = {n for n, t in kind.__annotations__.items() if getattr(t, "__forward_arg__", t) == "bool"}
    names: tuple[str, ...] = getattr(kind, "_fields")
    return kind(*(bool(fields[n]) if n in flags else fields[n] for n in names))
