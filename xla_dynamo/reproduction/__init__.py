"""A dumped program alone: `run.py` compares it with eager torch, `minify` makes it small."""

from xla_dynamo.reproduction.run import main

__all__ = ["main"]
