"""A language model of transformers becomes text: its own `generate`, over compiled programs."""

from .tokens import generate

__all__ = ["generate"]
