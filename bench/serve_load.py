"""Load on `xla-dynamo serve`: clients of mixed lengths, in streams, some of whom go away or err.

`python -m bench.serve_load --clients 8 --seconds 30` starts a server of its own, by default of the
tiny model, and checks each answer against `generate` alone. It serves once more with one request at
a time, for the ratio. Run it alone on the machine.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.timing import positive, set_threads

PROMPTS = 12
# Of a hundred requests: so many go away midway, are malformed, ask for a million tokens.
LEAVES, ERRS, ASKS_TOO_MUCH = 6, 4, 2


class Server:
    """A server process, while it is loaded."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        """Start it, and wait until it is ready."""
        cache = os.environ.get("XLA_DYNAMO_CACHE_DIR") or str(folder / "cache")
        command = [sys.executable, "-m", "xla_dynamo", "serve", "--port", "0", *arguments]
        environment = {**os.environ, "XLA_DYNAMO_CACHE_DIR": cache}
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.said = ""  # of its stages
        for line in self.process.stdout:
            if "sizes of batches" in line:
                self.said = line.strip()
            if line.startswith("ready"):
                self.port = int(line.rpartition(":")[2].partition("/")[0])
                break
        else:
            raise SystemExit(f"the server ended with status {self.process.wait()}")
        self.start_seconds = time.perf_counter() - start
        self.memory = self.resident()

    def resident(self) -> int:
        """The memory that it has now, in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self) -> int:
        """End it; returns the exit status."""
        self.process.terminate()
        return self.process.wait(60)


class Load:
    """Clients of one server, and what they saw."""

    def __init__(self, port: int, prompts: list[str], lengths: list[int]) -> None:
        """Take the prompts, and the lengths of the answers that are asked for."""
        self.port, self.prompts, self.lengths = port, prompts, lengths
        self.seen: Counter[str] = Counter()
        self.answers: set[tuple[int, int, str]] = set()
        self.tokens = 0
        self.first: list[float] = []
        self.between: list[float] = []
        self.faults: list[str] = []

    async def run(self, clients: int, seconds: float) -> float:
        """Load the server for so long; returns how long it took."""
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._client(random.Random(number), start + seconds))
        return time.perf_counter() - start

    async def _client(self, draw: random.Random, end: float) -> None:
        while time.perf_counter() < end:
            kind = draw.randrange(100)
            number, tokens = draw.randrange(len(self.prompts)), draw.choice(self.lengths)
            body: Any = {"prompt": self.prompts[number], "max_tokens": tokens, "temperature": 0}
            if kind < ERRS:
                body = draw.choice([b"{", b"[1]", b'{"prompt": 1}', b'{"prompt": "x", "n": -1}'])
                await self._refused(body, "malformed")
            elif kind < ERRS + ASKS_TOO_MUCH:
                await self._refused({**body, "max_tokens": 10**6}, "too much")
            else:
                leaves = kind < ERRS + ASKS_TOO_MUCH + LEAVES
                is_stream = leaves or draw.random() < 0.7
                await self._answered({**body, "stream": is_stream}, number, tokens, leaves)

    async def _send(self, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n"
        kind = "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        writer.write((head + kind).encode() + raw)
        status = int((await reader.readline()).split()[1])
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer, status

    async def _refused(self, body: Any, kind: str) -> None:
        _, writer, status = await self._send(body)
        writer.close()
        self.seen[kind] += 1
        if not 400 <= status < 500:
            self.faults.append(f"{kind}: status {status}")

    async def _answered(self, body: Any, number: int, tokens: int, leaves: bool) -> None:
        asked = time.perf_counter()
        reader, writer, status = await self._send(body)
        if status != 200:
            self.faults.append(f"status {status}: {(await reader.read()).decode()}")
        elif leaves:
            await reader.readline()
            self.seen["gone away"] += 1
        elif body["stream"]:
            text, last = "", asked
            async for line in reader:
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    (self.first if last == asked else self.between).append(now - last)
                    last = now
                    told = json.loads(line[6:])
                    text += told["choices"][0]["text"]
                    self.tokens += (told.get("usage") or {}).get("completion_tokens", 0)
            self._done("streamed", number, tokens, text)
        else:
            told = json.loads((await reader.read()).partition(b"{")[2].join([b"{", b""]))
            self.tokens += told["usage"]["completion_tokens"]
            self._done("in one piece", number, tokens, told["choices"][0]["text"])
        writer.close()

    def _done(self, kind: str, number: int, tokens: int, text: str) -> None:
        self.seen[kind] += 1
        self.answers.add((number, tokens, text))


def percentile(samples: list[float], percent: int) -> str:
    """In milliseconds, as text."""
    ordered = sorted(samples)
    return f"{1e3 * ordered[len(ordered) * percent // 100]:.1f}" if ordered else "-"


def compilations(port: int) -> float:
    """How often the server has compiled since it was ready."""
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return float(families["xla_dynamo:compilations_since_warm_up"].samples[0].value)


def wrong(loads: list[Load], folder: Path) -> list[str]:
    """The answers that are not those of `generate` alone."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts, most = loads[0].prompts, max(loads[0].lengths)
    longest: dict[int, list[int]] = {}
    found = []
    for number, tokens, text in sorted(set().union(*(load.answers for load in loads))):
        if number not in longest:
            ids = tokenizer(prompts[number], return_tensors="pt")
            with torch.no_grad():
                whole = model.generate(**ids, max_new_tokens=most, do_sample=False)
            longest[number] = whole[0, ids["input_ids"].shape[1] :].tolist()
        expected = tokenizer.decode(longest[number][:tokens], skip_special_tokens=True)
        if text != expected:
            found.append(f"prompt {number}, {tokens} tokens: {text!r}, not {expected!r}")
    return found


def main() -> int:
    """Load a server, and print what came of it; returns 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder; without, the tiny model")
    parser.add_argument("--clients", type=positive, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--longest", type=positive, default=256, help="tokens of a request")
    parser.add_argument("--requests", type=positive, default=8, help="in a batch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.model or Path(made) / "tiny"
        if not options.model:
            from xla_dynamo.serving.tiny_model import write_tiny_model

            write_tiny_model(folder)
            set_threads(1)  # which is faster for a model so small
        draw = random.Random(0)
        letters = "abcdefghij klmnopqrst uvwxyz. "
        half = options.longest // 2
        sizes = itertools.islice(itertools.cycle([half // 16, half // 4, half - 1]), PROMPTS)
        prompts = ["".join(draw.choices(letters, k=max(n, 2))) for n in sizes]
        lengths = [1, half // 8, half // 2, half]
        common = ["--model", str(folder), "--longest", str(options.longest)]
        common += ["--requests", str(options.requests), "--batch-tokens", str(8 * options.requests)]
        server = Server(Path(made), common)
        load = Load(server.port, prompts, lengths)
        seconds = asyncio.run(load.run(options.clients, options.seconds))
        one = Load(server.port, prompts, lengths)
        one_seconds = asyncio.run(one.run(1, options.seconds / 3))
        compiled, memory = compilations(server.port), server.resident()
        status = server.stop()
        faults = load.faults + one.faults + wrong([load, one], folder)
    table = Table(
        title=f"xla-dynamo serve, {options.seconds:g} s, starts in {server.start_seconds:.0f} s"
    )
    for column in ("", f"{options.clients} clients", "1 client"):
        table.add_column(column, justify="right" if column else "left")
    pairs = [(load, seconds), (one, one_seconds)]
    for kind in ("streamed", "in one piece", "gone away", "malformed", "too much"):
        table.add_row(f"requests {kind}", *(str(each.seen[kind]) for each, _ in pairs))
    table.add_row("tokens a second", *(f"{each.tokens / s:.0f}" for each, s in pairs))
    for percent in (50, 99):
        table.add_row(
            f"first token, p{percent}, ms", *(percentile(each.first, percent) for each, _ in pairs)
        )
    for percent in (50, 99):
        table.add_row(
            f"between tokens, p{percent}, ms",
            *(percentile(each.between, percent) for each, _ in pairs),
        )
    rate = (load.tokens / seconds) / max(one.tokens / one_seconds, 1e-9)
    grown = (memory - server.memory) / 1e6
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print(f"throughput: {rate:.2f} of one request at a time; memory: {grown:+.0f} MB of "
          f"{server.memory / 1e6:.0f}; compilations: {compiled:.0f}; exit status: {status}; "
          f"wrong: {len(faults)}")  # fmt: skip
    for fault in faults[:10]:
        print(fault)
    return 1 if faults or compiled or status else 0


if __name__ == "__main__":
    sys.exit(main())
