"""Text from a language model of transformers: its own `generate`, over one program for each step.

`generate` with a compiled model decodes over a cache that grows, so that each step is a program of
a dynamic size. Here the cache has all its places from the start. Each token is a call of one
program of known sizes, which writes the token's keys and values into the cache in place. Drafts
are verified by a program for each of a few sizes ([`drafts`](drafts.py)).
"""

import copy
import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

from .drafts import Draft, candidates_filled_up, whole_cache
from .one_thread import steps_in_one_thread

_FEWEST_PLACES = 64
# Drafts that read more of the model than its logits, or that have other tokens.
_OTHER_DRAFTS = ("assistant_early_exit", "use_mtp", "speculation_type", "assistant_tokenizer")
_DRAFTED = 32  # places for what a draft adds to the longest text


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

    With `assistant_model` or `prompt_lookup_num_tokens`, transformers drafts the next tokens and
    the model verifies them all at once. Greedy decoding has a program for each of a few numbers of
    tokens: one and the looked-up ones and one, or powers of two where a model drafts, whose own
    steps are compiled as well. Where tokens are drawn, sizes are as they come, so that each seed
    draws what it does in transformers.

    Args:
        model: a model of transformers that generates text.
        inputs: the prompt, as for `model.generate`: int64 [batch, length].
        options: those of the backend, as for `torch.compile`.
        kwargs: what else `model.generate` takes: a generation config, an attention mask, a
            streamer, logits processors, the settings of sampling, of beams and of drafts.

    Returns:
        What `model.generate` returns.

    Raises:
        TypeError: the model has no `generate` of transformers.
        ValueError: the call asks for a cache of its own, or for a draft that an encoder's model,
            another tokenizer or the model's own layers make: for these compile the model, and
            call its `generate`.
        RuntimeError: the call asks for a draft, and this transformers has no cache for it.
        OptionError: an option is not known.

    Source: transformers.GenerationMixin.generate, with `cache_implementation="static"`.
    """
    _check(model, kwargs)
    from transformers import CompileConfig

    config = copy.deepcopy(kwargs.get("generation_config") or model.generation_config)
    others = config.update(**kwargs)
    for name in _OTHER_DRAFTS:
        if others.get(name, getattr(config, name, None)):
            raise ValueError(_OTHERWISE.format(what=name))
    if config.use_cache is False:
        raise ValueError(_OTHERWISE.format(what="use_cache=False"))
    compiling = CompileConfig(
        backend="openxla",
        mode=None,
        options=dict(options) if options else None,
    )
    # Else transformers compiles on accelerators alone.
    compiling._compile_all_devices = True
    kwargs["compile_config"] = compiling
    places = _places(model, config, inputs, others)
    if config.prompt_lookup_num_tokens or others.get("assistant_model") is not None:
        return _with_drafts(model, inputs, places, config, kwargs)
    # transformers makes a cache of as many places, if they are enough.
    model._previous_max_cache_length = places
    with steps_in_one_thread(model, config, kwargs):
        return model.generate(inputs, cache_implementation="static", **kwargs)


def _with_drafts(
    model: Any, inputs: torch.Tensor | None, places: int, config: Any, kwargs: dict[str, Any]
) -> Any:
    """The tokens of a call whose next tokens are drafted."""
    import transformers

    if not hasattr(transformers.Cache, "is_croppable"):
        raise RuntimeError(
            f"transformers {transformers.__version__} cannot take tokens back from a static cache, "
            "as drafts need: install 5.24 or newer, or leave out assistant_model and "
            "prompt_lookup_num_tokens"
        )
    compiling, draft = kwargs["compile_config"], kwargs.get("assistant_model")
    # Else a second size makes a program for all sizes, which is slower at each.
    compiling.dynamic = None if config.do_sample else False
    if model.config.is_encoder_decoder or (draft and draft.config.is_encoder_decoder):
        raise ValueError(_OTHERWISE.format(what="a draft for a model with an encoder"))
    if draft is not None:
        if "Assistant" in type(draft).__name__:  # Gemma4AssistantForCausalLM
            raise ValueError(_OTHERWISE.format(what="an assistant that reads the model's states"))
        kwargs["assistant_model"] = Draft(draft, places, compiling)
    with candidates_filled_up(model, config.prompt_lookup_num_tokens, places):
        return model.generate(inputs, cache=whole_cache(model, places), **kwargs)


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


def _places(model: Any, config: Any, inputs: torch.Tensor | None, others: Mapping[str, Any]) -> int:
    """How many places a cache has for all tokens that a call may lead to."""
    prompts = [inputs, others.get("input_ids"), others.get("inputs_embeds")]
    if model.config.is_encoder_decoder:  # those are the encoder's, which are in no growing cache
        prompts = [others.get("decoder_input_ids"), others.get("decoder_inputs_embeds")]
    length = max(
        (p.shape[1] for p in prompts if isinstance(p, torch.Tensor) and p.dim() > 1), default=1
    )
    if config.max_new_tokens is not None:
        total = length + config.max_new_tokens
    else:
        total = max(config.max_length or 0, length + 1)
    # Drafts are verified behind the longest text too.
    if config.prompt_lookup_num_tokens or others.get("assistant_model") is not None:
        total += max(config.prompt_lookup_num_tokens or 0, _DRAFTED)
    return max(_FEWEST_PLACES, 1 << (total - 1).bit_length())
