"""The gate and the engine in this process, with a model that is not compiled."""

import asyncio
import contextlib
import json
import re

import pytest
import torch
from prometheus_client import generate_latest

from xla_dynamo.serving.batching import PaddedManager
from xla_dynamo.serving.engine import Engine
from xla_dynamo.serving.gate import Gate
from xla_dynamo.serving.loading import load
from xla_dynamo.serving.measurements import Measurements
from xla_dynamo.serving.prepare import Prepared
from xla_dynamo.serving.request_forms import Bounds
from xla_dynamo.serving.server import made_application
from xla_dynamo.serving.sizes import Sizes

TOKENS = 100


@contextlib.contextmanager
def opened(folder, in_work=8, cache_tokens=256):
    """A gate whose model works in a thread."""
    model, tokenizer = load(folder)
    sizes = Sizes(128, 3, 16, cache_tokens, page=16)
    measurements = Measurements("tiny")
    engine = Engine(Prepared(PaddedManager(model, sizes), sizes, 0, 0.0), measurements)
    engine.start()
    gate = Gate(measurements, 1000, in_work)
    gate.engine = engine
    bounds = Bounds("tiny", 128, 127, 127)
    gate.application = made_application(model, tokenizer, engine, bounds, measurements)
    try:
        yield gate
    finally:
        engine.stop()


async def ask(gate, prompt, tokens, path="/v1/completions", **more):
    """The status and the body of an answer."""
    raw = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}).encode()
    sent, parts = [], [{"type": "http.request", "body": raw}]
    kind = (b"content-type", b"application/json")
    method = "POST" if path.startswith("/v1") else "GET"
    scope = {"type": "http", "path": path, "method": method, "headers": [kind], "query_string": b""}

    async def receive():
        if not parts:
            await asyncio.Event().wait()  # the client stays
        return parts.pop()

    async def send(message):
        sent.append(message)

    await gate(scope, receive, send)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:]).decode()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_dies(alone, monkeypatch, stream):
    """Who waits is told, and so is whoever comes later; nobody waits for ever."""

    async def run(gate):
        assert (await ask(gate, "x", 5))[0] == 200
        assert (await ask(gate, "", 0, "/health"))[0] == 200

        def fail(*_):
            raise torch.OutOfMemoryError('no memory left for "x"')

        monkeypatch.setattr(gate.engine._manager.runner, "compute_batch", fail)
        status, said = await asyncio.wait_for(ask(gate, "x", 5, stream=stream), 60)
        assert status == (200 if stream else 503)
        told = said.partition("data: ")[2].partition("\n")[0] if stream else said
        assert json.loads(told)["error"]["type"] == "server_error"
        assert "no memory left" in told
        await until(lambda: not gate.engine.is_alive())
        status, said = await ask(gate, "", 0, "/health")
        assert (status, "the worker has died" in said) == (503, True)
        status, said = await ask(gate, "x", 5, stream=stream)
        assert (status, "the worker has died" in said) == (503, True)
        assert gate.engine.unfinished() == 0

    with opened(alone.folder) as gate:
        asyncio.run(run(gate))


def test_more_requests_than_may_wait(alone):
    async def run(gate):
        first = [asyncio.create_task(ask(gate, f"first {n}", TOKENS)) for n in range(2)]
        await until(lambda: gate.engine.unfinished() == 2)
        status, said = await ask(gate, "third", 1)
        assert (status, json.loads(said)["error"]["code"]) == (429, "too_many_requests")
        assert [status for status, _ in await asyncio.gather(*first)] == [200, 200]
        assert (await ask(gate, "later", 1))[0] == 200

    with opened(alone.folder, in_work=2) as gate:
        asyncio.run(run(gate))


def test_a_full_cache_computes_requests_anew(alone):
    """The cache holds less than all want: the answers are the same."""
    prompts = [f"a long prompt of number {n}, and so on" for n in range(6)]

    async def run(gate):
        return await asyncio.gather(*(ask(gate, prompt, 80) for prompt in prompts))

    with opened(alone.folder, cache_tokens=144) as gate:
        found = asyncio.run(run(gate))
        told = generate_latest(gate._measurements.registry).decode()
    again = re.search(r"^vllm:num_preemptions_total.* (\S+)$", told, re.MULTILINE)
    assert float(again[1]) > 0
    texts = [json.loads(said)["choices"][0]["text"] for _, said in found]
    assert texts == [alone.completed(prompt, 80) for prompt in prompts]


def test_a_closing_server_takes_nothing(alone):
    async def run(gate):
        gate.is_closing = True
        assert (await ask(gate, "x", 1))[0] == (await ask(gate, "", 0, "/health"))[0] == 503

    with opened(alone.folder) as gate:
        asyncio.run(run(gate))
