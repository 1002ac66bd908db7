"""Choose the next token of each request of a batch, by what the request asks for."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from xla_dynamo.serving.grammars import Grammar
from xla_dynamo.serving.stops import StopFinder


@dataclasses.dataclass
class Sampling:
    """How a request that does not take the likeliest token draws it.

    Attributes:
        warpers: what transformers does to the logits before.
        generator: the source of the request's random numbers.
    """

    warpers: LogitsProcessorList
    generator: torch.Generator

    @classmethod
    def of(cls, config: Any, seed: int | None) -> "Sampling | None":
        """The sampling of a generation configuration; None where the likeliest token is wanted.

        Args:
            config: transformers' `GenerationConfig`: `do_sample`, `temperature` (0 means the
                likeliest token), `top_k` and `top_p`.
            seed: of the random numbers; None for another one each time.
        """
        if not config.do_sample or config.temperature == 0:
            return None
        warpers = LogitsProcessorList()
        if config.temperature not in (None, 1.0):
            warpers.append(TemperatureLogitsWarper(config.temperature))
        if config.top_k:
            warpers.append(TopKLogitsWarper(config.top_k))
        if config.top_p is not None and config.top_p < 1:
            warpers.append(TopPLogitsWarper(config.top_p))
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return cls(warpers, generator)

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Draw a token, [1], int64, from logits, [vocabulary], float32."""
        scores = self.warpers(torch.empty(1, 0, dtype=torch.int64), logits[None])
        return torch.multinomial(scores.softmax(-1)[0], 1, generator=self.generator)


@dataclasses.dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer, and how likely the model held it.

    Attributes:
        token: its number.
        logprob: the natural logarithm of its probability, before temperature, penalties and bias.
        likeliest: the likeliest tokens in its place, each with its logarithm, in order.
    """

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]


@dataclasses.dataclass
class Choosing:
    """How the tokens of one request are chosen, and what came of it. A thread at a time uses it.

    Attributes:
        sampling: draws tokens; None for the likeliest ones.
        bias: is added to the logits of tokens.
        presence: is taken from the logits of tokens that the answer has already.
        frequency: likewise, for each time that it has them.
        grammar: what the answer has to fit, or None.
        stops: finds the strings that end the answer, or None.
        text_of: the text that a token adds to the answer; needed where there are stop strings.
        top: how many likeliest tokens to note for each; None to note nothing.
        noted: what was noted for each token of the answer.
        is_over: whether the answer was ended by a stop string, or because it is complete.
        error: why the request has failed, or "".
    """

    sampling: Sampling | None = None
    bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    presence: float = 0.0
    frequency: float = 0.0
    grammar: Grammar | None = None
    stops: StopFinder | None = None
    text_of: Callable[[int], str] | None = None
    top: int | None = None
    noted: list[TokenLogprob] = dataclasses.field(default_factory=list)
    is_over: bool = False
    error: str = ""
    _counts: Counter[int] = dataclasses.field(default_factory=Counter)

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest tokens are taken, and nothing is asked of them."""
        asks = self.sampling, self.bias, self.presence, self.frequency, self.grammar, self.stops
        return self.top is None and not any(asks)

    def choose(self, logits: torch.Tensor) -> int:
        """The next token, of logits, [vocabulary], float32, which stay as they are.

        Afterwards `is_over` says whether it is the last one.
        """
        changed = self._changed(logits)
        try:
            if self.grammar is not None:
                self.grammar.refuse(changed)
            token = self._drawn(changed)
            if self.grammar is not None:
                self.grammar.take(token)
                self.is_over = self.grammar.is_over
        except RuntimeError as error:  # of a grammar: the other requests of the batch go on
            self.error, self.is_over = str(error), True
            return int(logits.argmax())
        if self.presence or self.frequency:
            self._counts[token] += 1
        if self.top is not None:
            self._note(logits, token, self.top)
        if self.stops is not None and self.text_of is not None:
            self.stops.feed(self.text_of(token))
            self.is_over |= self.stops.is_found
        return token

    def _drawn(self, logits: torch.Tensor) -> int:
        return int(logits.argmax() if self.sampling is None else self.sampling.draw(logits))

    def _changed(self, logits: torch.Tensor) -> torch.Tensor:
        found = logits.clone()
        if self.bias:
            found[list(self.bias)] += torch.tensor(list(self.bias.values()))
        if self._counts:
            counts = torch.tensor(list(self._counts.values()), dtype=torch.float32)
            found[list(self._counts)] -= self.presence + self.frequency * counts
        return found

    def _note(self, logits: torch.Tensor, token: int, top: int) -> None:
        logprobs = logits.log_softmax(-1)
        best = logprobs.topk(top)
        likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        self.noted.append(TokenLogprob(token, float(logprobs[token]), tuple(likeliest)))
