"""Structured answers: which tokens may come next for an answer to be JSON, or fit a schema.

The grammars are llguidance's.
"""

import json
import threading
from collections.abc import Sequence
from typing import Any

import llguidance
import llguidance.hf
import numpy as np
import torch
from llguidance import LLMatcher

# Between tokens of JSON is nothing: a model that may write spaces may write them for ever.
_COMPACT: Any = {"whitespace_flexible": False}


class SchemaError(ValueError):
    """A JSON schema is wrong, or has what answers cannot be kept to."""


class Grammar:
    """What one answer may be; knows what it is so far."""

    def __init__(self, matcher: Any) -> None:
        """Take a matcher of llguidance at its beginning."""
        self._matcher = matcher

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete, and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def refuse(self, logits: torch.Tensor) -> None:
        """Make the logits, [vocabulary], float32, of tokens that may not come next -inf, in place.

        Raises:
            RuntimeError: the grammar has become too large to go on.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = torch.from_numpy(np.unpackbits(packed, bitorder="little")).bool()
        logits.masked_fill_(~allowed[: len(logits)], -torch.inf)

    def take(self, token: int) -> None:
        """Take the next token of the answer.

        Raises:
            RuntimeError: it does not fit, or the grammar has become too large to go on.
        """
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            said = self._matcher.get_error()
            raise RuntimeError(f"the answer cannot go on by its schema: {said}")


class Grammars:
    """Makes grammars for a tokenizer, which is looked at when the first one is wanted."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        """Take a fast tokenizer of transformers, how many logits its model has, and what ends it.

        `ends` are the tokens that end an answer; without any, the tokenizer's own.
        """
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, list(ends)
        self._lock = threading.Lock()
        self._known: Any = None

    def of(self, schema: Any) -> Grammar:
        """The grammar of a JSON schema. May take a second: call it outside of an event loop.

        Args:
            schema: as JSON has it: a dict, or a bool.

        Raises:
            SchemaError: it is no schema, or has keywords that are not supported.
        """
        try:
            written = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
        except ValueError as error:
            raise SchemaError(str(error)) from error
        tokens = self._tokens()
        if said := LLMatcher.validate_grammar(written, tokens):
            raise SchemaError(said)
        return Grammar(LLMatcher(tokens, written, log_level=0))

    def _tokens(self) -> Any:
        with self._lock:
            if self._known is None:
                n = max(self._vocabulary, len(self._tokenizer))
                self._known = llguidance.hf.from_tokenizer(
                    self._tokenizer, n_vocab=n, eos_token=self._ends or None
                )
            return self._known
