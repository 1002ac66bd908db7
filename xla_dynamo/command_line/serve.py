"""Serve a language model by OpenAI's protocol, compiled, with continuous batching.

  xla-dynamo serve --model folder --port 8000
  xla-dynamo serve                              a tiny model of random weights, to try

The server is transformers' own. It listens at once, and answers when the model is compiled for all
sizes of batches, which /health tells; later processes find what was compiled in the disk cache.
SIGTERM ends it: what was begun is finished within --grace seconds.
"""

import argparse
import importlib.util
from pathlib import Path

from xla_dynamo.command_line import targets
from xla_dynamo.command_line.failures import CommandFailure

SUMMARY = "serve a language model, compiled, by OpenAI's protocol"
# What `xla_dynamo.serving` imports, and the extra that brings it.
NEEDED = (
    "transformers",
    "fastapi",
    "uvicorn",
    "pydantic",
    "openai",
    "prometheus_client",
    "llguidance",
)
_EXTRA = "pip install 'xla-dynamo[serving]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    add = parser.add_argument
    add("--model", type=Path, metavar="FOLDER", help="of config.json, weights and a tokenizer")
    add("--name", help="what requests call the model (the folder's name)")
    add("--host", default="127.0.0.1", help="the address to listen at (%(default)s)")
    add("--port", type=int, default=8000, help="likewise; 0 takes a free one (%(default)s)")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    add("--dtype", choices=dtypes, default="auto", help="of the weights (as they are saved)")
    kinds = ("none", "int8", "int8-dynamic", "int4")
    add("--quantize", choices=kinds, default="none", help="linear layers, by torchao")
    sizes = parser.add_argument_group("sizes, for which the model is compiled")
    add = sizes.add_argument
    add("--longest", type=_positive, help="tokens of a prompt and its answer (2048 at most)")
    add("--requests", type=_positive, default=16, help="in a batch (%(default)s)")
    add("--batch-tokens", type=_positive, default=256, help="in a batch (%(default)s)")
    add("--cache-tokens", type=_positive, help="of all requests (4 times --longest)")
    targets.add_options(parser)
    bounds = parser.add_argument_group("bounds of what one may ask for")
    add = bounds.add_argument
    add("--max-prompt", type=_positive, metavar="TOKENS", help="of a prompt (as --longest allows)")
    add("--max-tokens", type=_positive, metavar="TOKENS", help="of an answer (likewise)")
    add("--max-body", type=_positive, default=1 << 20, metavar="BYTES", help="(%(default)s)")
    add("--max-waiting", type=_positive, default=64, help="requests beside a batch (%(default)s)")
    add("--grace", type=_seconds, default=30.0, help="seconds to finish what was begun (30)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes; returns the exit status.

    Raises:
        CommandFailure: a package is missing, the model cannot be loaded or compiled, or the
            address is taken.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailure(f"serve needs {', '.join(missing)}: {_EXTRA}")
    folder = arguments.model
    if folder is not None and not (folder / "config.json").is_file():  # before the slow imports
        raise CommandFailure(f"{folder} is no folder of a model: it has no config.json")
    options = targets.options_of(arguments)
    from xla_dynamo.errors import XlaDynamoError
    from xla_dynamo.serving.server import Server, Settings

    settings = Settings(
        model=arguments.model,
        name=arguments.name,
        host=arguments.host,
        port=arguments.port,
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        longest=arguments.longest,
        requests=arguments.requests,
        batch_tokens=arguments.batch_tokens,
        cache_tokens=arguments.cache_tokens,
        prompt=arguments.max_prompt,
        answer=arguments.max_tokens,
        body=arguments.max_body,
        waiting=arguments.max_waiting,
        grace=arguments.grace,
        options=dict(options),
    )
    try:
        server = Server(settings)
        status = server.run()
    except XlaDynamoError as error:
        raise CommandFailure(str(error)) from error
    if server.failure is not None:
        if isinstance(server.failure, XlaDynamoError):
            raise CommandFailure(str(server.failure))
        raise server.failure
    return status
