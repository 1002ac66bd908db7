"""What stands before the application: health, metrics, bounds, and clients that go away."""

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from xla_dynamo.serving.engine import Engine
from xla_dynamo.serving.measurements import Measurements
from xla_dynamo.serving.request_forms import RequestError, error_body

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

ANSWERED = ("/v1/chat/completions", "/v1/completions")
_KNOWN = {("GET", "/v1/models"), *(("POST", path) for path in ANSWERED)}
# Seconds for a body to come.
_PATIENCE = 60
_log = logging.getLogger("xla_dynamo.serving")


class _ClientIsGone(Exception):
    pass


class Gate:
    """An ASGI application around transformers' own, which comes when the model is ready.

    Attributes:
        application: answers what passes; None while the model is loaded and compiled.
        engine: works on requests; None likewise.
        is_closing: whether no more requests are taken.
    """

    def __init__(self, measurements: Measurements, body: int, in_work: int) -> None:
        """Take the most bytes of a body, and the most requests in work, waiting ones included."""
        self.application: Application | None = None
        self.engine: Engine | None = None
        self.is_closing = False
        self._measurements = measurements
        self._body, self._in_work = body, in_work
        self._taken = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path == "/health":
            await self._health(send)
        elif path == "/metrics":
            text = generate_latest(self._measurements.registry)
            await _answer(send, 200, text, CONTENT_TYPE_LATEST)
        else:
            try:
                if (method, path) not in _KNOWN:
                    is_path = path in {known for _, known in _KNOWN}
                    raise RequestError(405 if is_path else 404, f"no {method} {path} here")
                self._check_open()
                await self._pass(scope, receive, send)
            except RequestError as error:
                self._measurements.refused(error.status)
                await _answer_json(send, error.status, error.body())
            except _ClientIsGone:
                self._measurements.refused(499)

    def _state(self) -> str:
        if self.is_closing:
            return "the server is closing"
        if self.engine is None:
            return "the model is being loaded and compiled"
        return "" if self.engine.is_alive() else "the worker has died"

    async def _health(self, send: Send) -> None:
        state = self._state()
        body = {"status": "unhealthy", "reason": state} if state else {"status": "ok"}
        await _answer_json(send, 503 if state else 200, body)

    def _check_open(self) -> None:
        if state := self._state():
            raise RequestError(503, state, code="unavailable")

    async def _pass(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request to the application, and its answer to the client."""
        body = await self._read(scope, receive)
        is_work = scope["path"] in ANSWERED
        if is_work and self._taken >= self._in_work:
            message = f"{self._taken} requests are in work or wait, which is the most; try later"
            raise RequestError(429, message, code="too_many_requests")
        # Not the client's, which may be another request's: the engine knows requests by it.
        request_id = uuid.uuid4().hex
        headers = [pair for pair in scope["headers"] if pair[0] != b"x-request-id"]
        named = {**scope, "headers": [*headers, (b"x-request-id", request_id.encode())]}
        self._taken += is_work
        try:
            await self._run(named, body, receive, send)
        finally:
            self._taken -= is_work
            if self.engine is not None:
                self.engine.cancel_request(request_id)

    async def _run(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        """Run the application until it has answered, or the client is gone."""
        is_gone = asyncio.Event()
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            if messages:
                return messages.pop()
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        is_begun = is_answered = False

        async def answer(message: Message) -> None:
            nonlocal is_begun, is_answered
            is_begun = True
            await send(message)
            is_answered = message["type"] == "http.response.body" and not message.get("more_body")

        assert self.application is not None
        application = asyncio.ensure_future(self.application(scope, replay, answer))
        watcher = asyncio.ensure_future(watch())
        try:
            await asyncio.wait({application, watcher}, return_when=asyncio.FIRST_COMPLETED)
            is_gone.set()
            if not is_answered and not application.done():
                raise _ClientIsGone  # the application is cancelled below
            await application
        except asyncio.CancelledError:
            if not self.is_closing:
                raise
            if is_begun:
                raise _ClientIsGone from None
            raise RequestError(503, "the server ended before the answer did") from None
        finally:
            for task in (application, watcher):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _read(self, scope: Message, receive: Receive) -> bytes:
        """The body of a request.

        Raises:
            RequestError: it is too large, or does not come.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0")
        too_large = RequestError(
            413, f"the body has more than {self._body} bytes", code="body_too_large"
        )
        if length.isdigit() and int(length) > self._body:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientIsGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._body:
                        raise too_large
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            late = f"the body did not come in {_PATIENCE} s"
            raise RequestError(408, late, code="timeout") from None


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _answer_json(send: Send, status: int, body: Any) -> None:
    await _answer(send, status, json.dumps(body).encode(), "application/json")


async def _answer(send: Send, status: int, body: bytes, kind: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_answers(measurements: Measurements) -> dict[Any, Any]:
    """For FastAPI: by what is raised, what answers with OpenAI's error object."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse
    from transformers.cli.serving.utils import CBWorkerDeadError

    def answer(status: int, body: Any) -> Any:
        measurements.refused(status)
        return JSONResponse(body, status)

    async def refused(_: Any, error: Any) -> Any:
        return answer(error.status, error.body())

    async def raised(_: Any, error: Any) -> Any:
        return answer(error.status_code, error_body(error.status_code, str(error.detail)))

    async def not_json(_: Any, error: Any) -> Any:
        first = error.errors()[0]
        return answer(400, error_body(400, f"the body is not an object of JSON: {first['msg']}"))

    async def dead(_: Any, error: Any) -> Any:
        return answer(503, error_body(503, str(error), code="unavailable"))

    async def failed(_: Any, error: Any) -> Any:
        _log.error("a request failed", exc_info=error)
        return answer(500, error_body(500, f"{type(error).__name__}: {error}"))

    return {
        RequestError: refused,
        HTTPException: raised,
        RequestValidationError: not_json,
        CBWorkerDeadError: dead,
        Exception: failed,
    }
