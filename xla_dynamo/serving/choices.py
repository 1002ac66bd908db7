"""Several choices in one answer: each is a request of its own, and their answers become one."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any


def merged_bodies(bodies: Sequence[dict[str, Any]], request_id: str) -> dict[str, Any]:
    """One answer of several, of OpenAI's protocol, that answer the same prompt."""
    choices = [{**body["choices"][0], "index": i} for i, body in enumerate(bodies)]
    usage = dict(bodies[0]["usage"])
    usage["completion_tokens"] = sum(body["usage"]["completion_tokens"] for body in bodies)
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return {**bodies[0], "id": request_id, "choices": choices, "usage": usage}


async def events_of(parts: Any) -> AsyncGenerator[str, None]:
    """The events of a stream one by one, of which transformers joins some."""
    async with contextlib.aclosing(parts):
        async for part in parts:
            for event in part.split("\n\n"):
                if event:
                    yield f"{event}\n\n"


async def merged_streams(streams: Sequence[Any], request_id: str) -> AsyncGenerator[str, None]:
    """The events of several streams as they come, each with the number of its choice."""
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    async def pump(number: int, parts: Any) -> None:
        try:
            async for event in events_of(parts):
                queue.put_nowait(_numbered(event, number, request_id))
        except Exception as error:
            queue.put_nowait(error)
        queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(i, parts)) for i, parts in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                left -= 1
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _numbered(event: str, number: int, request_id: str) -> str:
    try:
        told = json.loads(event.removeprefix("data: "))
        told["choices"][0]["index"] = number
    except (ValueError, KeyError):  # an error
        return event
    return f"data: {json.dumps({**told, 'id': request_id})}\n\n"
