"""Choose the next token of each request of a batch, by what the request asks for."""

import dataclasses
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


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
