"""Text from a language model of transformers: its own `generate`, over one program for each step.

`generate` with a compiled model decodes over a cache that grows, so that each step is a program of
a dynamic size. Here the cache has all its places from the start. Each token is a call of one
program of known sizes, which writes the token's keys and values into the cache in place.
"""

import copy
import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

_FEWEST_PLACES = 64
# What decoding with a draft takes back of a cache, a static one has no operation for.
_DRAFTS = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")


def generate(
    model: Any,
    inputs: torch.Tensor | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """The tokens that `model.generate` returns, decoded by compiled programs.

    The prompt runs as the model does without this function. Every further token is a call of
    `torch.compile(model, backend="openxla")`, over transformers' `StaticCache`, whose places are
    the next power of two, 64 at least, above the longest text that may come of the call. There is
    one program for each batch and number of places, which the first call compiles.

    Args:
        model: a model of transformers that generates text.
        inputs: the prompt, as for `model.generate`: int64 [batch, length].
        options: those of the backend, as for `torch.compile`.
        kwargs: what else `model.generate` takes: a generation config, an attention mask, a
            streamer, logits processors, the settings of sampling and of beams.

    Returns:
        What `model.generate` returns.

    Raises:
        TypeError: the model has no `generate` of transformers.
        ValueError: the call asks for a cache of its own, or for a draft: for both compile the
            model, and call its `generate`.
        OptionError: an option is not known.

    Source: transformers.GenerationMixin.generate, with `cache_implementation="static"`.
    """
    _check(model, kwargs)
    from transformers import CompileConfig

    config = copy.deepcopy(kwargs.get("generation_config") or model.generation_config)
    others = config.update(**kwargs)
    for name in _DRAFTS:
        if others.get(name, getattr(config, name, None)) is not None:
            raise ValueError(_OTHERWISE.format(what=name))
    if config.use_cache is False:
        raise ValueError(_OTHERWISE.format(what="use_cache=False"))
    compiling = CompileConfig(
        backend="openxla", mode=None, options=dict(options) if options else None
    )
    # Else transformers compiles on accelerators alone.
    compiling._compile_all_devices = True
    # transformers makes a cache of as many places, if they are enough.
    model._previous_max_cache_length = _places(config, inputs, others)
    return model.generate(inputs, cache_implementation="static", compile_config=compiling, **kwargs)


_OTHERWISE = (
    "xla_dynamo.generate has a cache of its own, and was given {what}: call "
    'model.compile(backend="openxla"), and then model.generate'
)


def _check(model: Any, kwargs: Mapping[str, Any]) -> None:
    if importlib.util.find_spec("transformers") is None or not hasattr(model, "generation_config"):
        raise TypeError(
            f"xla_dynamo.generate takes a model of transformers that generates text, and was given "
            f"a {type(model).__name__}"
        )
    for name in ("past_key_values", "cache", "cache_implementation", "compile_config"):
        if kwargs.get(name) is not None:
            raise ValueError(_OTHERWISE.format(what=name))


def _places(config: Any, inputs: torch.Tensor | None, others: Mapping[str, Any]) -> int:
    """How many places a cache has for all tokens that a call may lead to."""
    prompts = (inputs, others.get("input_ids"), others.get("inputs_embeds"))
    length = max(
        (p.shape[1] for p in prompts if isinstance(p, torch.Tensor) and p.dim() > 1), default=1
    )
    if config.max_new_tokens is not None:
        total = length + config.max_new_tokens
    else:
        total = max(config.max_length or 0, length + 1)
    return max(_FEWEST_PLACES, 1 << (total - 1).bit_length())
