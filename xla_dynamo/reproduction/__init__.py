"""A dumped program alone: `run.py` compares it with eager torch."""

from xla_dynamo.reproduction.run import main

__all__ = ["main"]
