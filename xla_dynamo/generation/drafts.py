"""Drafts of the next tokens, in a few sizes, so that few programs verify them.

transformers asks a generator of candidates for the tokens that may come next, and runs the model
on all of them at once. How many there are changes from call to call. Here they are filled up to
one of a few sizes. In greedy decoding this changes no token, as the model keeps a candidate only
if it would have chosen the same.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xla_dynamo.generation.replaced_methods import method_replaced


def whole_cache(model: Any, places: int) -> Any:
    """A `StaticCache` of transformers that can be cropped: every layer keeps all places.

    A sliding layer of transformers keeps its window alone, so that it cannot go back. The mask
    hides what lies before the window.
    """
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

    cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=places)
    cache.layers = [
        StaticLayer(max_cache_len=places) if type(layer) is StaticSlidingWindowLayer else layer
        for layer in cache.layers
    ]
    return cache


class Draft:
    """An assistant model whose steps are compiled, over a static cache; else the model itself."""

    def __init__(self, model: Any, places: int, compiling: Any) -> None:
        """Take transformers' assistant, the places of its cache, and its `CompileConfig`."""
        self._model, self._places, self._compiling = model, places, compiling

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *args: Any, generation_config: Any, **kwargs: Any) -> Any:
        """The assistant's candidates, as its own `generate` gives them."""
        config = copy.copy(generation_config)
        config.compile_config = self._compiling
        if kwargs.get("cache") is None:
            kwargs["cache"] = whole_cache(self._model, self._places)
        return self._model.generate(*args, generation_config=config, **kwargs)


@contextlib.contextmanager
def candidates_filled_up(model: Any, most: int | None, places: int) -> Iterator[None]:
    """While this lasts, transformers verifies candidates of the model in a few sizes.

    Args:
        model: a model of transformers.
        most: the most candidates that there are; None where the number has no bound. Then sizes
            of what is verified are powers of two.
        places: those of the cache, which candidates do not go beyond.
    """
    embedded = getattr(
        model.config.get_text_config(decoder=True), "max_position_embeddings", places
    )
    longest = min(places, embedded)

    def wrapped(get_candidate_generator: Callable[..., Any]) -> Callable[..., Any]:
        def filled_up(**kwargs: Any) -> Any:
            generator = get_candidate_generator(**kwargs)
            config = kwargs["generation_config"]
            # Of these the results depend on how many candidates there are: each draws a number.
            if not config.do_sample and config.assistant_ensemble_weight is None:
                _fill_up(generator, most, longest)
            return generator

        return filled_up

    with method_replaced(model, "_get_candidate_generator", wrapped):
        yield


def _fill_up(generator: Any, most: int | None, longest: int) -> None:
    """Let a generator of transformers give its candidates in a few sizes.

    Args:
        generator: what is changed; transformers asks for its class, so that it is not wrapped.
        most: as for `candidates_filled_up`.
        longest: the most tokens of a text and its candidates.
    """
    get, update = generator.get_candidates, generator.update_candidate_strategy
    found = 0

    def get_candidates(ids: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        nonlocal found
        candidates, logits = get(ids, **kwargs)
        found = candidates.shape[1] - ids.shape[1]
        size = most or (1 << found.bit_length()) - 1
        if not found or ids.shape[1] + size > longest:
            found = 0
            return ids, None
        missing = candidates[:, -1:].expand(-1, size - found)
        return torch.cat((candidates, missing), dim=1), logits

    def update_candidate_strategy(ids: torch.Tensor, scores: torch.Tensor, matches: int) -> None:
        # What was filled up tells nothing of the draft.
        update(ids, scores[:, : found + 1], min(matches, found))

    generator.get_candidates = get_candidates
    generator.update_candidate_strategy = update_candidate_strategy
