"""A model on a device, devices, memory plans."""
from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._check import bytes_of, count_of, path_of, whole
from ._errors import KvrunError, invalid
from ._generate import Batch, Loading, Request, Sampling, random_seed
from ._model import Model, Tokenizing
from ._runtime import (NULL, Canceller, Handle, Struct, check, encoded_path, ffi, fields_of, fill_array, fill_text,
                       from_array, lib, native_file, running, text_of, token_array)
from ._types import Answer, DeviceInfo, Plan, Policy, made
from ._vectors import scores_of, vectors_of

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._runtime import Floats, Tokens
    from ._session import Session
    from ._types import Prompt, SamplingOptions


_DriverFiles = dict(ffi.typeof("kvrun_device_options").fields)["set_driver_files"].type


@ffi.callback(_DriverFiles)  # type: ignore[untyped-decorator]
def _set_driver_files(files: Any, payload: Any) -> None:
    os.environ["VK_DRIVER_FILES"] = os.environ["VK_ICD_FILENAMES"] = os.fsdecode(ffi.string(files))


def _cache_folder() -> str | None:
    """Folder in which the program keeps compiled shaders and knowledge about drivers."""
    own = os.environ.get("KVRUN_CACHE_DIR", "")
    if own:
        return None if own == "off" else own
    for variable, below in (("XDG_CACHE_HOME", "kvrun"), ("HOME", ".cache/kvrun")):
        folder = os.environ.get(variable, "")
        if folder.startswith("/"):
            return os.path.join(folder, below)
    return None


def _probe() -> str | None:
    own = os.environ.get("KVRUN_PROBE", "")
    if own:
        return None if own == "off" else own
    path = native_file("kvrun-probe")
    return path if os.access(path, os.X_OK) else None


def device_options(device: str | int | None, backend: str | None, **more: Any) -> Struct:
    """A device by name; if none is given, from the variables KVRUN_DEVICE and KVRUN_BACKEND."""
    chosen = os.environ.get("KVRUN_DEVICE") or None if device is None else str(device)
    o = Struct("kvrun_device_options", device=chosen, backend=backend or os.environ.get("KVRUN_BACKEND") or None,
               cache_dir=_cache_folder(), probe=_probe(), **more)
    o.p.set_driver_files = _set_driver_files
    return o


def devices(backend: str | None = None) -> list[DeviceInfo]:
    """All devices, usable ones first, the best one first of all."""
    options = device_options(None, backend)
    out = ffi.new("kvrun_devices **")
    with running():
        check(lib.kvrun_devices_list(out, options.p))
    try:
        found = []
        for i in range(lib.kvrun_devices_count(out[0])):
            info = Struct("kvrun_device_info")
            check(lib.kvrun_devices_get(out[0], i, info.p))
            found.append(made(DeviceInfo, fields_of(info.p)))
        return found
    finally:
        lib.kvrun_devices_free(out[0])


def policies() -> list[Policy]:
    """All KV-cache policies."""
    found = []
    for i in range(lib.kvrun_policy_count()):
        info = Struct("kvrun_policy_info")
        check(lib.kvrun_policy_get(i, info.p))
        found.append(made(Policy, fields_of(info.p)))
    return found


def weight_options(gpu_layers: int | None, cpu_moe_layers: int, weights_budget: int | str | None, fit: bool, *,
                   kv: str | None = None, ctx: int = 0) -> Struct:
    return Struct("kvrun_weight_options", no_fit=not fit, gpu_layers=gpu_layers,
                  budget_bytes=bytes_of(weights_budget, "weights_budget"), cpu_moe_layers=cpu_moe_layers,
                  ctx=count_of(ctx, "fit_ctx"), kv=kv)


def plan(model: str | os.PathLike[str], *, kv: str = "fp16", ctx: int | str = 0, memory: int | str | None = None,
         device: str | int | None = None, split: str | None = None, backend: str | None = None, ubatch: int = 512,
         gpu_layers: int | None = None, cpu_moe_layers: int = 0, weights_budget: int | str | None = None,
         fit: bool | None = None) -> Plan:
    """Whether a context of `ctx` tokens fits; only the model's header is read. ctx 0: the trained context.

    memory: in total, such as "8G"; None: the device's free memory.
    device, split, gpu_layers, cpu_moe_layers, weights_budget, fit: as for Engine. If `memory` is given and none of the
        last four, all weights lie on the device.
    """
    where = device_options(device, backend, split=split)
    placed = None
    if memory is None or gpu_layers is not None or cpu_moe_layers or weights_budget or fit is not None:
        placed = weight_options(gpu_layers, cpu_moe_layers, weights_budget, fit is not False)
    options = Struct("kvrun_plan_options", model_path=path_of(model, "model"), kv=kv, ctx=count_of(ctx, "ctx"),
                     memory_bytes=bytes_of(memory, "memory"), ubatch=ubatch, device=where.p,
                     weights=placed and placed.p)
    out = Struct("kvrun_plan")
    with running():
        check(lib.kvrun_plan_memory(out.p, options.p))
    return made(Plan, fields_of(out.p))


def lora_text(loras: Iterable[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]]) -> str | None:
    """kvrun_engine_options.loras: "FILE:SCALE,FILE:SCALE"."""
    if isinstance(loras, (str, bytes, os.PathLike)):
        raise TypeError("loras is a path; give a list of them")
    pairs = [x if isinstance(x, tuple) else (x, None) for x in loras]
    return ",".join(path_of(path, "a path of loras") + ("" if scale is None else f":{scale}")
                    for path, scale in pairs) or None


class Engine(Tokenizing):
    """A model on a device. Any number of threads may use it.

    model: a .gguf file, or the first part of a split one.
    device: index in devices(), part of a name, or a backend's name; None: the best GPU. backend: only this one's.
        Several, as "0,1", divide the layers among them: split="20,12" gives 20 to the first and 12 to the second, or
        any numbers in that proportion; None: by measured speed and free memory.
    kv_budget: memory for the caches of all sessions, such as "8G"; None: the device's free memory.
    max_rows: most answers in one step. ubatch: prompt tokens that go through a layer together.
    host_budget, offload_dir: for policies that fetch from host memory; see kvrun_host_memory_options.
    progress: called with the loaded share. canceller: stops loading.
    draft_model: guesses tokens for draft_max: a small model with the same vocabulary, or a file made for the model
        (EAGLE-3, DFlash, DSpark, an assistant), or "mtp": the prediction layer of the model itself; None: tokens are
        looked up in the text.
    loras: LoRA adapters of the model, .gguf files, or pairs of a file and a scale.
    mmproj: the model's encoder of images or sounds, or both, a .gguf file: the model reads them (image(), audio(),
        image_tokens()).
        image_min_tokens, image_max_tokens: limits of an image's tokens where its size decides; 0: the encoder's.
    gpu_layers: the weights of this many layers, the last ones, lie on the device, which reads the others in host
        memory; None: all that fit. cpu_moe_layers: the experts of this many layers, the first ones, lie in host memory.
        weights_budget: most bytes of weights on the device. fit: more weights move to host memory until a cache of
        fit_ctx tokens under each of the policies fit_kv fits; fit_ctx 0: 8192, at most the trained context.
    check: every operation also runs on the cpu backend. f32: no f16 or int8 arithmetic of matrix units.
    """

    def __init__(self, model: str | os.PathLike[str], *, device: str | int | None = None, split: str | None = None,
                 backend: str | None = None, kv_budget: int | str | None = None, max_rows: int = 8, ubatch: int = 512,
                 prefill_block: int = 0, host_budget: int | str | None = None,
                 offload_dir: str | os.PathLike[str] | None = None,
                 progress: Callable[[float], None] | None = None, canceller: Canceller | None = None,
                 check_operations: bool = False, f32: bool = False,
                 draft_model: str | os.PathLike[str] | None = None,
                 loras: Iterable[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] = (),
                 mmproj: str | os.PathLike[str] | None = None, image_min_tokens: int = 0, image_max_tokens: int = 0,
                 gpu_layers: int | None = None,
                 cpu_moe_layers: int = 0, weights_budget: int | str | None = None, fit: bool = True,
                 fit_kv: str = "fp16", fit_ctx: int = 0) -> None:
        self.path = path_of(model, "model")
        where = device_options(device, backend, split=split, check=check_operations, f32_matmul=f32)
        canceller = Canceller.of(canceller)
        loading = Loading(progress)
        weights = weight_options(gpu_layers, cpu_moe_layers, weights_budget, fit, kv=fit_kv, ctx=fit_ctx)
        options = Struct("kvrun_engine_options", model_path=self.path, device=where.p, weights=weights.p,
                         max_rows=max_rows, ubatch=ubatch, prefill_block=prefill_block,
                         kv_budget_bytes=bytes_of(kv_budget, "kv_budget"), canceller=canceller.pointer,
                         draft_model=None if draft_model is None else path_of(draft_model, "draft_model"),
                         loras=lora_text(loras), mmproj=None if mmproj is None else path_of(mmproj, "mmproj"),
                         image_min_tokens=image_min_tokens, image_max_tokens=image_max_tokens,
                         **loading.fields)
        out = ffi.new("kvrun_engine **")
        try:
            with running([canceller.pointer]):
                status = lib.kvrun_engine_open(out, options.p)
                if loading.error is not None:
                    raise loading.error
                check(status)
            handle = Handle(out[0], lib.kvrun_engine_free, "engine")
        except BaseException:
            lib.kvrun_engine_free(out[0])
            raise
        self._handle = handle
        self._model: Model | None = Model(handle)
        if host_budget is not None or offload_dir is not None:
            memory = Struct("kvrun_host_memory_options", budget_bytes=bytes_of(host_budget, "host_budget"),
                            offload_dir=None if offload_dir is None else path_of(offload_dir, "offload_dir"))
            check(lib.kvrun_engine_set_host_memory(self._handle.pointer, memory.p))

    def __repr__(self) -> str:
        return f"<kvrun.Engine {self.path!r}{' (closed)' if self._handle.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the engine; its sessions stay usable until they are closed too. Asynchronous streams are cancelled."""
        model, self._model = self._model, None
        self._handle = Handle(None, lib.kvrun_engine_free, "engine")
        if model is not None:
            model.end_answers()

    def __reduce__(self) -> Any:
        raise TypeError("a kvrun.Engine cannot be pickled; open one in each process")

    @property
    def model(self) -> Model:
        """What sessions share with it."""
        if self._model is None:
            raise KvrunError("the engine is closed")
        return self._model

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the model's file: numbers and flags in decimal, arrays as type and length."""
        key, value = ffi.new("char **"), ffi.new("char **")
        out = {}
        for i in range(lib.kvrun_metadata_count(self._handle.pointer)):
            check(lib.kvrun_metadata_get(self._handle.pointer, i, key, value))
            out[text_of(key[0])] = text_of(value[0])
        return out

    def set_lora_scales(self, scales: Sequence[float]) -> None:
        """Sets the scales of the adapters (loras), in their order, for all that is computed from now on.

        A session that holds tokens goes on only with the scales that these were read with: reset it, or set those back.
        """
        values = [float(s) for s in scales]
        check(lib.kvrun_engine_set_lora_scales(self._handle.pointer, values, len(values)))

    # ---- vectors

    def embed(self, texts: Sequence[str | Sequence[int] | Tokens], *, pooling: str = "model",
              normalise: bool = True) -> Floats:
        """A vector for each text, or list of tokens: (texts, vector_dim). Every model makes them; encoders, as BERT,
        process many at once.

        pooling: "mean", "first" or "last" state of the tokens; "model": as the file says, else the mean. normalise:
            to length 1.
        """
        import numpy as np

        if isinstance(texts, str):
            raise TypeError("texts is a text; give a list of them")
        tokens = [self.tokenize(t, end=True) if isinstance(t, str) else token_array(t) for t in list(texts)]
        out = vectors_of(self._handle, tokens, self.info.vector_dim, pooling)
        if normalise:
            length = np.linalg.norm(out, axis=1, keepdims=True)
            out /= np.where(length > 0, length, 1)
        return out

    def score(self, query: str, documents: Sequence[str]) -> Floats:
        """How well documents answer a query, by a reranker's classifier: (documents), the larger the better."""
        return scores_of(self._handle, query, documents)

    # ---- images and sounds

    def image(self, pixels: Any) -> dict[str, str]:
        """A part of a message that is an image: {"type": "image", "id": ...}. pixels: (height, width, 3) u8, red, green
        and blue, such as numpy.asarray(PIL.Image.open(file).convert("RGB"))."""
        import numpy as np

        array = np.ascontiguousarray(pixels)
        if array.ndim != 3 or array.shape[2] != 3:
            raise ValueError(f"pixels have the shape {array.shape}, expected (height, width, 3)")
        if array.dtype != np.uint8:  # numbers from 0 to 1 would be black
            raise TypeError(f"pixels have the type {array.dtype}, expected uint8")
        out = ffi.new("uint64_t *")
        check(lib.kvrun_image_add(self._handle.pointer, from_array(array.reshape(-1), "uint8_t[]"), array.shape[1],
                                  array.shape[0], out))
        return {"type": "image", "id": f"{out[0]:016x}"}

    def audio(self, samples: Any) -> dict[str, str]:
        """A part of a message that is a sound: {"type": "audio", "id": ...}. samples: one channel of floats in -1 .. 1,
        info.audio_rate in a second, such as librosa.load(file, sr=engine.info.audio_rate)[0]."""
        import numpy as np

        array = np.asarray(samples)
        if array.ndim != 1:
            raise ValueError(f"samples have the shape {array.shape}, expected one channel: (samples,)")
        if array.dtype.kind != "f":  # whole numbers are not in -1 .. 1
            raise TypeError(f"samples have the type {array.dtype}, expected floats")
        array = np.ascontiguousarray(array, np.float32)
        out = ffi.new("uint64_t *")
        check(lib.kvrun_audio_add(self._handle.pointer, from_array(array, "float[]"), array.size, out))
        return {"type": "audio", "id": f"{out[0]:016x}"}

    def image_tokens(self, image: dict[str, str]) -> Tokens:
        """The tokens of an image of image(), or a sound of audio(), for a prompt that is no conversation."""
        import numpy as np

        tokens: Tokens = fill_array(
            np.uint32, "uint32_t[]", 1024,
            lambda memory, room, count: lib.kvrun_image_tokens(self._handle.pointer, int(image["id"], 16), memory, room,
                                                               count))
        return tokens

    @property
    def chat_templates(self) -> list[str]:
        """Valid names for `template`: those in the file, then the built-in ones."""
        names: list[str] = []
        while True:
            name = fill_text(
                64, lambda memory, room, count: lib.kvrun_chat_template_name(self._handle.pointer, len(names), memory,
                                                                             room, count)).decode("utf-8", "replace")
            if not name:
                return names
            names.append(name)

    # ---- sessions

    def session(self, *, kv: str | None = None, ctx: int | str = 0, chat: bool | str | None = None,
                system: str | None = None, variables: dict[str, Any] | None = None, checkpoints: int = 4,
                seed: int = 1) -> Session:
        """A sequence of tokens under one KV-cache policy.

        kv: the policy, as for `kvrun run --kv`; None: fp16. ctx: most tokens, such as 4096 or "4k"; 0: what fits, at
            most the trained context.
        chat: whether texts are messages of a conversation: True, a template's name or text, or False. None: True if the
            model's file has a template. system: instructions of the conversation. variables: for the template.
        checkpoints: number of states to return to under policies that compress. seed: of the policy's random choices.
        """
        from ._session import Session

        out = ffi.new("kvrun_session **")
        options = Struct("kvrun_session_options", kv=kv, ctx=count_of(ctx, "ctx"), checkpoints=checkpoints, seed=seed)
        template = self.chat_template_of(chat)
        with running():
            check(lib.kvrun_session_open(out, self._handle.pointer, options.p))
        handle = Handle(out[0], lib.kvrun_session_free, "session")
        return Session(self, self.model, handle, template, variables, system)

    def restore(self, path: str | os.PathLike[str], *, checkpoints: int = 4) -> Session:
        """A session from a file of Session.save(): on the same device its next token is that of the saved session."""
        from ._session import restored

        out = ffi.new("kvrun_session **")
        options = Struct("kvrun_restore_options", checkpoints=checkpoints)
        with running():
            check(lib.kvrun_session_restore_with(out, self._handle.pointer, encoded_path(path_of(path, "path")),
                                                 options.p))
        handle = Handle(out[0], lib.kvrun_session_free, "session")
        return restored(self, self.model, handle, path_of(path, "path"))

    def plan(self, *, kv: str = "fp16", ctx: int | str = 0, memory: int | str | None = None) -> Plan:
        """Whether a context fits. memory: in total; None: the memory that this engine has for its caches."""
        if memory is not None:
            return plan(self.path, kv=kv, ctx=ctx, memory=memory)
        info = self.info
        total = info.weight_bytes + info.host_weight_bytes + info.kv_budget_bytes * 10 // 9
        for _ in range(16):  # other memory grows with it, by less than a quarter
            p = plan(self.path, kv=kv, ctx=ctx, memory=total)
            if p.cache_bytes == info.kv_budget_bytes:
                break
            total = p.weight_bytes + p.activation_bytes + p.prompt_bytes + p.reserve_bytes + info.kv_budget_bytes
        return p

    # ---- answers

    def generate(self, prompts: Iterable[Prompt], *, n: int = 1, kv: str | None = None, ctx: int | str = 0,
                 chat: bool | str | None = None, system: str | None = None,
                 **sampling: Unpack[SamplingOptions]) -> list[list[Answer]]:
        """n answers to each prompt; all are generated together, and a prompt is read once for its n answers. Choice i
        has seed + i, or one from a random seed of each prompt.

        Returns the answers per prompt. Raises the first error of any of them.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is a text; give a list of them")
        prompts = list(prompts)
        if whole(n, "n") < 1:
            raise invalid(f"n is {n}, expected at least 1")
        Sampling(sampling)
        rows = self.info.max_rows
        batch = Batch(self._handle)
        waiting = deque(enumerate(prompts))
        out: list[list[Answer | None]] = [[None] * n for _ in prompts]
        place: dict[int, tuple[int, int]] = {}
        sessions: dict[int, Session] = {}
        try:
            while waiting or batch.active:
                while waiting and (not batch.active or batch.active + n <= rows):
                    at, prompt = waiting.popleft()
                    first = self.session(kv=kv, ctx=ctx, chat=chat, system=system, checkpoints=0)
                    of: Request | None = None
                    turn = first.turn(prompt)
                    forks = [first.fork() for _ in range(n - 1)]
                    seed = sampling.get("seed")
                    seed = random_seed() if seed is None else seed
                    for i, session in enumerate([first, *forks]):
                        options: SamplingOptions = {**sampling, "seed": (seed + i) % 2**64}
                        request = turn.request(Sampling(options), session)
                        batch.add(request, of)
                        of = of or request
                        place[id(request)] = (at, i)
                        sessions[id(request)] = session
                for request in batch.step():
                    if request.error is not None:
                        raise request.error
                    at, i = place.pop(id(request))
                    out[at][i] = request.answer
                    sessions.pop(id(request)).close()
        finally:
            batch.close()
            for session in sessions.values():
                session.close()
        return [[a for a in answers if a is not None] for answers in out]

    def decode(self, sessions: Iterable[Session], tokens: Sequence[int] | Tokens) -> Floats:
        """One step for callers that sample: appends tokens[i] to sessions[i]; returns logits (sessions, vocab)."""
        import numpy as np

        array, sessions = token_array(tokens), list(sessions)
        if len(array) != len(sessions):
            raise invalid(f"{len(array)} tokens for {len(sessions)} sessions")
        list_ = ffi.new("kvrun_session *[]", [s.handle.pointer for s in sessions])
        logits = np.empty((len(sessions), self.info.vocab), np.float32)
        with running():
            check(lib.kvrun_decode(list_, from_array(array, "uint32_t[]"), len(sessions),
                                   from_array(logits, "float[]"), NULL))
        for session in sessions:
            session.end_of_answer = None
        return logits
