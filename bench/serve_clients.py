"""Clients of `xla-dynamo serve`: what they ask, what they see, and what of it is wrong."""

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

PROMPTS = 24
# Of a hundred requests: so many go away midway, are malformed, ask for a million tokens, want
# an answer that fits a schema, and have a string that stops it.
LEAVES, ERRS, ASKS_TOO_MUCH, FITS, STOPS = 6, 4, 2, 4, 8
STOP = "e"
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "maximum": 9}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
# Seconds: what was sent so long before a signal has been read by the server.
_READ = 0.3
_PATIENCE = 120
_FIT_TOKENS = 40
_LETTERS = "abcdefghij klmnopqrst uvwxyz. "


class Asked(NamedTuple):
    """A request whose answer is known beforehand: a prompt's number, tokens, and a stop string."""

    prompt: int
    tokens: int
    stop: str


class Lost(Exception):
    """An answer did not come, or not to its end."""


def prompts_and_lengths(longest: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Prompts and lengths of answers, short and long, that fit into so many tokens of a letter."""
    draw, half = random.Random(seed), longest // 2
    sizes = itertools.islice(itertools.cycle([half // 16, half // 4, half - 1]), PROMPTS)
    prompts = ["".join(draw.choices(_LETTERS, k=max(n, 2))) for n in sizes]
    return prompts, [1, half // 8, half // 2, half]


class Load:
    """Clients of one server, and what they saw.

    Attributes:
        seen: how many requests there were, by kind.
        answers: each text that came, with what was asked.
        tokens: how many came in all.
        first: seconds from a request to its first token, of streams.
        between: seconds between the tokens of streams.
        lost: what did not come, in words.
        faults: what came and is wrong, in words.
        ended: when the server was told to end, or None.
    """

    def __init__(self, port: int, prompts: list[str], lengths: list[int]) -> None:
        """Take the prompts, and the lengths of the answers that are asked for."""
        self.port, self.prompts, self.lengths = port, prompts, lengths
        self.seen: Counter[str] = Counter()
        self.answers: set[tuple[Asked, str]] = set()
        self.tokens = 0
        self.first: list[float] = []
        self.between: list[float] = []
        self.lost: list[str] = []
        self.faults: list[str] = []
        self.ended: float | None = None
        self.seconds = 0.0

    async def run(self, clients: int, seconds: float) -> None:
        """Load the server for so long."""
        start = time.perf_counter()
        await self._clients(clients, start + seconds)
        self.seconds = time.perf_counter() - start

    async def run_until(self, clients: int, seconds: float, end: Any) -> None:
        """Load the server for so long, then call `end`, and go on until it refuses."""
        start = time.perf_counter()
        running = asyncio.create_task(self._clients(clients, float("inf")))
        await asyncio.sleep(seconds)
        self.seconds = time.perf_counter() - start
        self.ended = time.perf_counter()
        end()
        await running

    async def _clients(self, clients: int, end: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._client(random.Random(number), end))

    async def _client(self, draw: random.Random, end: float) -> None:
        while time.perf_counter() < end:
            sent = time.perf_counter()
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._request(draw)
            except (OSError, EOFError, Lost, TimeoutError) as error:
                if self.ended is None or sent < self.ended - _READ:
                    self.lost.append(f"{type(error).__name__}: {error}")
                if self.ended is not None:
                    return

    async def _request(self, draw: random.Random) -> None:
        kind = draw.randrange(100)
        number, tokens = draw.randrange(len(self.prompts)), draw.choice(self.lengths)
        body: Any = {"prompt": self.prompts[number], "max_tokens": tokens, "temperature": 0}
        is_stream = draw.random() < 0.7
        if (kind := kind - ERRS) < 0:
            bad = [b"{", b"[1]", b'{"prompt": 1}', b'{"prompt": "x", "n": -1}']
            await self._refused(draw.choice(bad), "malformed")
        elif (kind := kind - ASKS_TOO_MUCH) < 0:
            await self._refused({**body, "max_tokens": 10**6}, "too much")
        elif (kind := kind - LEAVES) < 0:
            await self._left({**body, "stream": True})
        elif (kind := kind - FITS) < 0:
            how = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
            fit = {"prompt": "a pet", "max_tokens": _FIT_TOKENS, "response_format": how}
            text = await self._answered({**fit, "stream": is_stream, "temperature": 1.0})
            self.seen["of a schema"] += 1
            if not _fits(text):
                self.faults.append(f"does not fit its schema: {text!r}")
        else:
            stop = STOP if kind < STOPS else ""
            more = {"stop": stop} if stop else {}
            text = await self._answered({**body, **more, "stream": is_stream})
            self.seen["streamed" if is_stream else "in one piece"] += 1
            self.answers.add((Asked(number, tokens, stop), text))

    async def _send(self, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n"
        kind = "Content-Type: application/json\r\nConnection: close\r\n\r\n"
        writer.write((head + kind).encode() + raw)
        line = await reader.readline()
        if not line:
            raise Lost("the connection ended before an answer")
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer, int(line.split()[1])

    async def _refused(self, body: Any, kind: str) -> None:
        _, writer, status = await self._send(body)
        writer.close()
        self.seen[kind] += 1
        if status == 503 and self.ended is not None:
            raise Lost("refused, since the server ends")
        if not 400 <= status < 500:
            self.faults.append(f"{kind}: status {status}")

    async def _left(self, body: Any) -> None:
        reader, writer, _ = await self._send(body)
        await reader.readline()
        writer.close()
        self.seen["gone away"] += 1

    async def _answered(self, body: Any) -> str:
        asked = time.perf_counter()
        reader, writer, status = await self._send(body)
        try:
            if status != 200:
                raise Lost(f"status {status}: {(await reader.read()).decode()}")
            if body["stream"]:
                return await self._streamed(reader, asked)
            told = json.loads((await reader.read()).partition(b"{")[2].join([b"{", b""]))
            self.tokens += told["usage"]["completion_tokens"]
            return str(told["choices"][0]["text"])
        except json.JSONDecodeError as error:
            raise Lost(f"half of an answer: {error}") from error
        finally:
            writer.close()

    async def _streamed(self, reader: asyncio.StreamReader, asked: float) -> str:
        text, last, is_whole = "", asked, False
        async for line in reader:
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                (self.first if last == asked else self.between).append(now - last)
                last = now
                told = json.loads(line[6:])
                if "error" in told:
                    raise Lost(str(told["error"]))
                text += told["choices"][0]["text"]
                self.tokens += (told.get("usage") or {}).get("completion_tokens", 0)
            is_whole |= line.startswith(b"data: [DONE]")
        if not is_whole:
            raise Lost(f"a stream that broke off behind {len(text)} letters")
        return text


def _fits(text: str) -> bool:
    """Whether a text is JSON by SCHEMA."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    is_pet = isinstance(found, dict) and set(found) == {"kind", "age"}
    return is_pet and found["kind"] in ("cat", "dog") and int(found["age"]) == found["age"]


def percentile(samples: list[float], percent: int) -> str:
    """In milliseconds, as text."""
    return f"{1e3 * quantile(samples, percent):.1f}" if samples else "-"


def quantile(samples: list[float], percent: int) -> float:
    """What so many percent of some samples are below, or nan of none."""
    ordered = sorted(samples)
    return ordered[len(ordered) * percent // 100] if ordered else float("nan")


def rate(load: Load) -> float:
    """Tokens a second."""
    return load.tokens / max(load.seconds, 1e-9)


def wrong(loads: list[Load], folder: Path) -> dict[str, list[str]]:
    """By "truncated", "mixed up" and "wrong", the answers that are not those of `generate` alone.

    A truncated one is the beginning of what was to come; a mixed-up one is another prompt's.
    """
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts, most = loads[0].prompts, max(loads[0].lengths)
    longest: dict[int, list[int]] = {}

    def expected(asked: Asked) -> str:
        if asked.prompt not in longest:
            ids = tokenizer(prompts[asked.prompt], return_tensors="pt")
            with torch.no_grad():
                whole = model.generate(**ids, max_new_tokens=most, do_sample=False)
            longest[asked.prompt] = whole[0, ids["input_ids"].shape[1] :].tolist()
        tokens = longest[asked.prompt][: asked.tokens]
        text = str(tokenizer.decode(tokens, skip_special_tokens=True))
        return text.partition(asked.stop)[0] if asked.stop else text

    found: dict[str, list[str]] = {"truncated": [], "mixed up": [], "wrong": []}
    for asked, text in sorted(set().union(*(load.answers for load in loads))):
        right = expected(asked)
        if text != right:
            others = {
                expected(asked._replace(prompt=n)) for n in range(len(prompts)) if n != asked.prompt
            }
            is_other = any(other.startswith(text[:8]) for other in others) and len(text) >= 8
            kind = "truncated" if right.startswith(text) else "mixed up" if is_other else "wrong"
            found[kind].append(f"{kind}: {asked}: {text!r}, not {right!r}")
    return found
