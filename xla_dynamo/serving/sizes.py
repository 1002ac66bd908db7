"""The sizes that a server compiles for: a few bounds, to which batches are padded."""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

from xla_dynamo.errors import OptionError

# Bounds grow by this factor: but for the smallest ones, a batch is padded to less than so many
# times its tokens.
_GROWTH = 4
# Dynamo makes a program of its own for a size of 1, and none of the others serves it.
_LEAST_TOKENS = 2


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much a server holds and computes at a time.

    Attributes:
        longest: the most tokens of a request, its prompt and its answer together.
        requests: the most requests in one forward; others wait.
        batch_tokens: the most tokens in one forward; longer prompts are computed in pieces.
        cache_tokens: how many tokens the cache of keys and values holds, for all requests.
        page: how many tokens a page of the cache holds; prompts share whole pages.
    """

    longest: int
    requests: int
    batch_tokens: int
    cache_tokens: int
    page: int = 32

    def __post_init__(self) -> None:
        """Check that the longest request fits.

        Raises:
            OptionError: a size is too small for another one.
        """
        for name, least in (("longest", 2), ("requests", 2), ("batch_tokens", 4), ("page", 4)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.batch_tokens <= self.requests:
            raise OptionError(
                f"batch_tokens must be more than requests, since each request that generates has a "
                f"token in a batch: {self.batch_tokens} is not more than {self.requests}"
            )
        if self.cache_tokens < self.longest:
            raise OptionError(
                f"cache_tokens must be at least longest, since a request must fit into the cache: "
                f"{self.cache_tokens} is less than {self.longest}"
            )

        if self.cache_tokens <= self.page:
            raise OptionError(
                f"cache_tokens must be more than page, since a request that begins a page holds "
                f"another one: {self.cache_tokens} is not more than {self.page}"
            )

    @classmethod
    def of(
        cls,
        config: Any,
        *,
        longest: int | None = None,
        requests: int = 16,
        batch_tokens: int = 256,
        cache_tokens: int | None = None,
    ) -> "Sizes":
        """The sizes for a model.

        Args:
            config: the model's configuration, of transformers; `max_position_embeddings` bounds
                the default of `longest`.
            longest: see `Sizes`; None for 2048, or less if the model has fewer positions.
            requests: see `Sizes`.
            batch_tokens: see `Sizes`.
            cache_tokens: see `Sizes`; None for four of the longest requests.

        Raises:
            OptionError: `longest` is more than the model's positions, or see `Sizes`.
        """
        positions = getattr(config, "max_position_embeddings", None)
        if longest is None:
            longest = min(2048, positions or 2048)
        elif positions is not None and longest > positions:
            raise OptionError(f"longest is {longest}, and the model has {positions} positions")
        return cls(longest, requests, batch_tokens, cache_tokens or 4 * longest)

    @property
    def blocks(self) -> int:
        """How many pages hold `cache_tokens` tokens."""
        return -(-self.cache_tokens // self.page)

    def token_bounds(self) -> list[int]:
        """The numbers of tokens that a batch is padded to, ascending."""
        return _bounds(_LEAST_TOKENS, self.batch_tokens)

    def read_bounds(self, most: int) -> list[int]:
        """The numbers of tokens to be read from the cache that a batch is padded to, ascending.

        Args:
            most: how many tokens the cache really holds, which is `cache_tokens` rounded up.
        """
        return _bounds(min(2 * self.page, most), most)


def _bounds(least: int, most: int) -> list[int]:
    """From the most down, each a part of the one before, and none less than the least."""
    found = [most]
    while (smaller := -(-found[0] // _GROWTH)) >= least and smaller < found[0]:
        found.insert(0, smaller)
    return found


def bound_of(size: int, bounds: Sequence[int]) -> int:
    """The least of some bounds, in ascending order, that is no less than a size."""
    return bounds[bisect.bisect_left(bounds, size)]
