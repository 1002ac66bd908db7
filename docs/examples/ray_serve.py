"""Many machines: Ray Serve in front of `xla-dynamo serve`, one server to a replica.

  pip install 'ray[serve]' 'xla-dynamo[serving]'
  serve run docs.examples.ray_serve:app model=/path/to/folder replicas=4 cpus=8

Ray starts the replicas where there are processors, sends requests to the one with the fewest, and
starts another where one dies. Each replica is a process of Ray's that owns a server, and hands
requests and answers through, streams as they come. A folder that the machines share as their
XLA_DYNAMO_CACHE_DIR lets all but the first start warm.
"""

import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

# Of an answer that passes through: what says how it is to be read.
_KEPT = ("content-type", "retry-after", "x-request-id")


@serve.deployment(health_check_period_s=5, graceful_shutdown_timeout_s=60)
class Replica:
    """A server of its own, and who passes requests on to it."""

    def __init__(self, arguments: list[str]) -> None:
        """Start the server with these arguments, and wait until it is ready."""
        command = [sys.executable, "-m", "xla_dynamo", "serve", "--port", "0", *arguments]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        ready = next((line for line in self._server.stdout if line.startswith("ready")), None)
        if ready is None:
            raise RuntimeError(f"the server ended with status {self._server.wait()}")
        self._address = ready.rpartition(" at ")[2].strip().removesuffix("/v1")
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> StreamingResponse:
        """Pass a request on, and its answer back."""
        if self._session is None:  # it belongs to the loop that it is made in
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        answer = await self._session.request(
            request.method,
            self._address + request.url.path,
            data=await request.body(),
            headers={"content-type": request.headers.get("content-type", "application/json")},
        )
        headers = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
        return StreamingResponse(_parts(answer), answer.status, headers)

    def check_health(self) -> None:
        """Raise an error where the server is not well; Ray then starts another replica."""
        with urllib.request.urlopen(f"{self._address}/health", timeout=5) as answer:
            answer.read()

    def __del__(self) -> None:
        """End the server, which finishes what it has begun."""
        if hasattr(self, "_server"):
            self._server.terminate()
            self._server.wait(60)


async def _parts(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The parts of an answer; a client that goes away closes the request to the server, too."""
    try:
        async for part in answer.content.iter_any():
            yield part
    finally:
        answer.close()


def app(arguments: dict[str, Any]) -> serve.Application:
    """The deployment, of `model`, `replicas` and `cpus`: a folder, and two numbers."""
    given = ["--model", str(arguments["model"])] if "model" in arguments else []
    options = {"num_cpus": float(arguments.get("cpus", 4))}
    replicas = int(arguments.get("replicas", 1))
    deployed = Replica.options(num_replicas=replicas, ray_actor_options=options)
    return deployed.bind(given)
