"""A replica: `kvrun serve` on one device, on a socket known only to this replica."""
from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import aiohttp

from .._engine import devices
from .._errors import DeviceError, KvrunError
from .._program import program
from ._keys import Keys

START_SECONDS = 600  # enough for a large model on a slow disk
PASSED = ("authorization", "x-api-key", "content-type", "accept")  # request headers passed on
GIVEN = ("content-type", "retry-after")  # response headers passed back
PR_SET_PDEATHSIG = 1


class Ask(NamedTuple):
    """A request from the gateway to a replica."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    keys: Keys | None


def _dies_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def claim_device(folder: str) -> tuple[str, int]:
    """The first GPU of this machine that no other replica uses: its index, and the lock that reserves it."""
    found = [i for i, d in enumerate(devices()) if d.usable and not d.is_cpu]
    for index in found:
        lock = os.open(os.path.join(folder, f"kvrun-device-{index}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return str(index), lock
        except OSError:
            os.close(lock)
    raise DeviceError(f"no GPU is free: this machine has {len(found)}, each with a replica; give Ray as many "
                      "vulkan_device resources as there are GPUs, or name a device")


def key_of(options: Sequence[str]) -> str | None:
    """A key that a server with these options takes; None: it asks for none."""
    given: dict[str, str] = {}
    for i, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name in ("--api-key", "--api-key-file"):
            given[name] = value if equals else "".join(options[i + 1:i + 2])
    keys = [key.strip() for key in given.get("--api-key", "").split(",")]
    if given.get("--api-key-file"):
        with open(given["--api-key-file"], encoding="utf-8", errors="surrogateescape") as file:
            keys += [line.rstrip("\r\n") for line in file if not line.startswith("#")]
    return next((key for key in keys if key), None)


class Replica:
    """options: of `kvrun serve`, such as ["--kv", "kivi2"]. device: as for --device; None: a free GPU."""

    def __init__(self, model: str, device: str | None, sessions: str | None, parallel: int, options: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvrun-replica-")
        self._lock = -1
        if device is None:
            device, self._lock = claim_device(tempfile.gettempdir())
        self._socket = os.path.join(self._folder.name, "socket")
        command = [program(), "serve", model, "--unix", self._socket, "--device", device, "--parallel", str(parallel),
                   "--queue", str(parallel), *options]
        if sessions is not None:
            command += ["--sessions", sessions]
        self._log_path = os.path.join(self._folder.name, "log")
        with open(self._log_path, "wb") as log:
            self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=_dies_with_parent)
        self._parallel = parallel
        self._stopping = False
        self._http: aiohttp.ClientSession | None = None
        self._wait_until_ready()
        key = key_of(options)
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}  # of its own requests
        threading.Thread(target=self._end_with_server, daemon=True).start()

    def _end_with_server(self) -> None:
        """Ends the replica when its server has ended: Ray starts another one, and the router drops this one at once."""
        code = self._server.wait()
        if not self._stopping:
            print(f"kvrun serve ended with {code}: {self._log()}", flush=True)
            os._exit(1)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self._server.poll() is not None:
                raise KvrunError(f"kvrun serve ended with {self._server.returncode}: {self._log()}")
            if os.path.exists(self._socket) and self._healthy():
                return
            time.sleep(0.05)
        raise KvrunError(f"kvrun serve is not ready after {START_SECONDS} s: {self._log()}")

    def _healthy(self) -> bool:
        """Sends one request without the event loop, which does not run yet."""
        import http.client
        import socket

        connection = http.client.HTTPConnection("localhost", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30)
        try:
            connection.sock.connect(self._socket)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _log(self) -> str:
        with open(self._log_path, errors="replace") as log:
            lines = log.read().splitlines()
        return next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "it said nothing")

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.UnixConnector(self._socket, limit=0)
            self._http = aiohttp.ClientSession("http://localhost", connector=connector,
                                               timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)
        return self._http

    async def answer(self, ask: Ask) -> AsyncIterator[Any]:
        """The status and headers, then the body as it comes. An answer nobody reads any more ends: its connection is
        closed."""
        headers = {k: v for k, v in ask.headers.items() if k.lower() in PASSED}
        async with self._session().request(ask.method, ask.path, data=ask.body or None, headers=headers) as response:
            yield response.status, {k: v for k, v in response.headers.items() if k.lower() in GIVEN}
            async for chunk in response.content.iter_any():
                yield chunk

    async def _get(self, path: str) -> bytes:
        async with self._session().get(path, headers=self._headers) as response:
            data: bytes = await response.read()
            if response.status != 200:
                raise RuntimeError(f"kvrun serve answers {path} with {response.status}")
            return data

    def pids(self) -> tuple[int, int]:
        """Process ids of this replica and its server, for tests that kill them."""
        return os.getpid(), self._server.pid

    async def kv_load(self) -> dict[str, float]:
        """Share of the cache budget that answers under way have, and that of places that are taken."""
        metrics = {}
        for line in (await self._get("/metrics")).decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name and not name.startswith("#"):
                metrics[name] = float(value)
        kinds = ("f16_bytes", "code_bytes", "param_bytes", "overhead_bytes")
        rows = json.loads(await self._get("/slots"))
        used = sum(float(row["kv"][kind]) for row in rows if row["is_processing"] for kind in kinds)
        queued = metrics.get("kvrun_requests_queued", 0.0)
        return {"kv_share": used / max(1.0, metrics.get("kvrun_kv_budget_bytes", 1.0)),
                "place_share": (metrics.get("kvrun_answers_active", 0.0) + queued) / self._parallel}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return await self.kv_load()

    async def check_health(self) -> None:
        if self._server.poll() is not None:
            raise RuntimeError(f"kvrun serve ended with {self._server.returncode}: {self._log()}")
        status = 0
        async with self._session().get("/health", timeout=aiohttp.ClientTimeout(total=20)) as response:
            status = response.status
        if status != 200:
            raise RuntimeError(f"kvrun serve is not well: /health says {status}")

    def __del__(self) -> None:
        """Ray has waited for active requests; conversations are saved with each answer."""
        self._stopping = True
        server = getattr(self, "_server", None)
        if server is not None and server.poll() is None:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        if getattr(self, "_lock", -1) >= 0:
            os.close(self._lock)
        if self.__dict__.get("_http") is not None:
            try:
                asyncio.get_running_loop().create_task(self._http.close())  # type: ignore[union-attr]
            except RuntimeError:
                pass  # its loop has ended, and so have its sockets
