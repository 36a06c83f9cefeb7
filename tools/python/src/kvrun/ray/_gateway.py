"""The HTTP side: takes requests, asks the replica that the router chooses, streams its answer."""
from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ._keys import keys_of
from ._replica import PASSED, Ask

ATTEMPTS = 6  # if replicas die before the client has received anything
PAUSE = 0.1  # seconds before the second attempt; twice as long before each further one
MOST_BODY = 64 << 20  # bytes
log = logging.getLogger("ray.serve")


def error(status: int, message: str, kind: str, **headers: str) -> Response:
    """An error in the form of OpenAI's API."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return JSONResponse(body, status, {k.replace("_", "-"): v for k, v in headers.items()})


class Gateway:
    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                return error(413, f"the body is larger than {MOST_BODY} bytes", "invalid_request_error")
        try:
            parsed = json.loads(body) if body else None
        except ValueError:
            parsed = None  # the replica reports the fault
        query = request.url.query
        ask = Ask(request.method, request.url.path + ("?" + query if query else ""),
                  {k: v for k, v in request.headers.items() if k in PASSED}, body, keys_of(parsed))
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE * 2**(attempt - 1))
            try:
                answer = self._replicas.answer.remote(ask)
                status, headers = await anext(answer)
                if headers.get("Content-Type", headers.get("content-type", "")).startswith("text/event-stream"):
                    return StreamingResponse(self._rest(answer), status, headers)
                return Response(b"".join([piece async for piece in answer]), status, headers)
            except BackPressureError:
                return error(429, "all replicas are busy and the queue is full; try again later", "rate_limit_error",
                             retry_after="1")
            except (RayError, RayServeException, OSError, StopAsyncIteration) as e:  # the replica died: ask another
                log.warning("a replica failed before its answer began (attempt %d): %s", attempt + 1,
                            str(e).splitlines()[0] if str(e) else type(e).__name__)
        return error(503, "replicas failed one after the other; try again", "server_error", retry_after="2")

    async def _rest(self, answer: Any) -> AsyncIterator[bytes]:
        """What was said is the client's already, so a failure is an event of the stream, and then its end."""
        ended = False
        try:
            async for piece in answer:
                yield piece
            ended = True
        except (RayError, RayServeException, OSError) as e:
            ended = True
            log.warning("a replica failed within an answer: %s", str(e).splitlines()[0] if str(e) else type(e).__name__)
            yield b'data: {"error": {"message": "the replica failed; ask again", "type": "server_error"}}\n\n'
            raise RuntimeError("the replica failed within its answer") from None  # ends the stream
        finally:
            if not ended:
                answer.cancel()  # the client has disconnected
