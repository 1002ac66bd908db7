"""torch's loops between the steps of a text have one thread, so that they hinder no step.

They go over the logits of one token, which takes microseconds. A thread of OpenMP that has helped
with them spins for a millisecond, on a core that the next step's program wants.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from xla_dynamo.generation.replaced_methods import method_replaced
from xla_dynamo.runtime.cpu import torch_shares

# Numbers of all logits of a step up to which one thread is enough.
_MOST_NUMBERS = 1 << 20
# What may compute anything between steps.
_USERS = ("logits_processor", "stopping_criteria", "streamer")


@contextlib.contextmanager
def steps_in_one_thread(model: Any, config: Any, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """While this lasts, torch has one thread in this one from the model's first compiled step on.

    Args:
        model: a model of transformers, whose `generate` is called meanwhile.
        config: the generation config of the call.
        kwargs: the other arguments of the call.
    """
    is_users = any(kwargs.get(name) for name in _USERS)
    guided = config.guidance_scale not in (None, 1) or config.watermarking_config is not None
    if is_users or guided or not torch_shares.can_share():
        yield
        return
    before = torch.get_num_threads()
    vocabulary = getattr(model.config.get_text_config(decoder=True), "vocab_size", _MOST_NUMBERS)

    def wrapped(get_compiled_call: Callable[..., Any]) -> Callable[..., Any]:
        def in_one_thread(*args: Any) -> Any:
            call = get_compiled_call(*args)

            def step(*args: Any, **kwargs: Any) -> Any:
                ids = kwargs.get("input_ids")
                if ids is not None and ids.shape[0] * vocabulary <= _MOST_NUMBERS:
                    torch_shares.set_threads_here(1)
                return call(*args, **kwargs)

            return step

        return in_one_thread

    try:
        with method_replaced(model, "get_compiled_call", wrapped):
            yield
    finally:
        if torch.get_num_threads() == 1:  # nobody has chosen another number meanwhile
            torch_shares.set_threads_here(before)
