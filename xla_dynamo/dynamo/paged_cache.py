"""Keep the key-value cache of transformers' continuous batching inside of the compiled graph.

`PagedAttentionCache.update` writes the keys and values of new tokens into a cache that all layers
share, and reads those of all tokens back. transformers keeps it out of graphs, so there would be
two graphs for each layer. Two facts allow more. The layers write to rows that are apart, so all
writes may wait until the program is over. And what a layer reads is either older than the call, or
among the rows that the layer has at hand. So attention to both is one operator, whose kernel reads
each request's own rows.
"""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.torch_private import (
    InstructionTranslator,
    effect_types,
    register_effectful_op,
)

_CACHE = "transformers.generation.continuous_batching.cache"
_MODELS = "transformers.modeling_utils"
# What an update leaves among the arguments of the attention function behind it.
_PAGES = "pages_of_xla_dynamo"
# Of the functions that are replaced in a graph, the source's digests: another release of
# transformers may do something else.
_KNOWN = {
    "PagedAttentionCache": {"b2e32368cbfdf65a"},
    "FullAttentionCacheAllocator": {"38ffee2b3818ed73"},
    "SlidingAttentionCacheAllocator": {"7cd1400ea34be023"},
}

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "write_rows(Tensor x, Tensor index, Tensor rows) -> ()", tags=(torch.Tag.pt2_compliant_tag,)
)
_library.define(
    "attend_to_pages(Tensor query, Tensor[] found, Tensor mask, Tensor[] new, Tensor rows,"
    " Tensor read, Tensor starts_q, Tensor starts_k, int first, int between, float? scale=None)"
    " -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _paged_attention(
    query: torch.Tensor,
    found: Sequence[torch.Tensor],
    mask: torch.Tensor,
    new: Sequence[torch.Tensor],
    rows: torch.Tensor,
    read: torch.Tensor,
    starts_q: torch.Tensor,
    starts_k: torch.Tensor,
    first: int,
    between: int,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of tokens to the keys of their own requests, as scaled dot products under a mask.

    Args:
        query: [1, heads, tokens, size].
        found: the keys, and the values, to attend to: each [1, kv heads, keys, size].
        mask: [1, 1, tokens, keys], which is added to the scores; of the keys of other requests it
            must make nothing.
        new: those among them of the tokens themselves: each [1, kv heads, tokens, size].
        rows: the cache that the others are in, [rows, kv heads, size].
        read: of each key, its row, behind the first one, [keys]. A request's last keys are those of
            its tokens, and are not read from the cache.
        starts_q: where each request's tokens begin, and where the last one's end, [requests + 1].
        starts_k: likewise its keys.
        first: the row from which on others are counted.
        between: how many rows behind a key its value is.
        scale: of the scores; None for one over the root of the size.

    Returns:
        [1, heads, tokens, size].
    """
    keys, values = found
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
    )


def _attended(query: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


torch.library.impl(
    "xla::attend_to_pages", "CompositeExplicitAutograd", _paged_attention, lib=_library
)
torch.library.register_fake("xla::attend_to_pages", _attended, lib=_library)


def _write_rows(x: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows into x. The schema does not say so: it is an effect, which has its order."""
    x.index_copy_(0, index, rows)


def _nothing(*_: Any) -> None:
    return None


torch.library.impl("xla::write_rows", "CompositeExplicitAutograd", _write_rows, lib=_library)
torch.library.register_fake("xla::write_rows", _nothing, lib=_library)
register_effectful_op("xla::write_rows", effect_types.ORDERED)


@functools.cache
def _is_known(owner: type, update: Callable[..., Any]) -> bool:
    """Whether the update of a class has the source that `_update` stands for."""
    try:
        source = inspect.getsource(inspect.unwrap(update))
    except (OSError, TypeError):  # there is none
        return False
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    return digest in _KNOWN.get(owner.__name__, ())


@torch.compiler.assume_constant_result
def _is_for_us() -> bool:
    """Whether Dynamo traces for this backend."""
    backend: Any = InstructionTranslator.current_tx().output.compiler_fn
    while backend is not None and not getattr(backend, "__module__", "").startswith("xla_dynamo"):
        backend = getattr(backend, "compiler_fn", None)
    return backend is not None


@torch.compiler.assume_constant_result
def _kind_of(allocator: Any) -> str:
    """How the caches of a class are read and written: "full", "sliding" or "" if it is unknown."""
    if not _is_known(allocator, allocator.update):
        return ""
    return str(allocator.__name__).removesuffix("AttentionCacheAllocator").lower()


def _update(
    cache: Any, keys: torch.Tensor, values: torch.Tensor, layer: int, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`PagedAttentionCache.update` in a graph. Dynamo traces this.

    Args:
        cache: the cache.
        keys: those of the new tokens, [1, heads, tokens, head size].
        values: likewise.
        layer: the number of the layer.
        kwargs: of the attention function; what is for all layers becomes what is for this one.

    Returns:
        The keys and values to attend to, [1, heads, tokens read, head size].
    """
    allocator = cache.layer_to_allocator[layer]
    kwargs["cu_seq_lens_k"] = kwargs["cu_seq_lens_k"][allocator.layer_type].to(torch.int32)
    kwargs["max_length_k"] = kwargs["max_length_k"][allocator.layer_type]
    read = kwargs["read_index"][allocator.index]
    write = kwargs["write_index"][allocator.index]
    whole = allocator.cache_tensor
    rows = whole.view(-1, *whole.shape[2:])  # of all layers, the keys and the values
    first = 2 * allocator.layer_indices.index(layer) * allocator.tokens_per_page
    starts = first, first + allocator.tokens_per_page
    new = [x.squeeze(0).transpose(0, 1) for x in (keys, values)]
    found = keys, values
    if read.numel() > 0:
        number = _numbers(allocator, read, write)
        found = tuple(
            _read(rows, read + start, x, number).transpose(0, 1).unsqueeze(0)
            for x, start in zip(new, starts, strict=True)
        )
        lengths = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
        between = allocator.tokens_per_page
        kwargs[_PAGES] = (keys, values), rows, read, *lengths, first, between
    for x, start in zip(new, starts, strict=True):
        torch.ops.xla.write_rows(rows, write + start, x)
    return found


def _numbers(allocator: Any, read: torch.Tensor, write: torch.Tensor) -> torch.Tensor:
    """For each row to be read, which of the new rows it is, from 1; 0 if it is in the cache."""
    if _kind_of(type(allocator)) == "sliding":  # there the index says so
        is_new = read == allocator.sentinel_index
        return torch.where(is_new, is_new.cumsum(0), 0)
    order = torch.arange(1, write.shape[0] + 1, device=write.device)
    return torch.where(read[:, None] == write, order, 0).amax(1)


def _read(
    rows: torch.Tensor, index: torch.Tensor, new: torch.Tensor, number: torch.Tensor
) -> torch.Tensor:
    fresh = new.index_select(0, (number - 1).clamp(min=0))
    return torch.where((number > 0)[:, None, None], fresh, rows.index_select(0, index))


def _attending(outside: Callable[..., Any]) -> Callable[..., Any]:
    """The attention of transformers by scaled dot products, which takes what an update has left."""

    @functools.wraps(outside, updated=())
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        pages = kwargs.pop(_PAGES, None)
        plain = not dropout and all(
            kwargs.get(name) is None for name in ("softcap", "position_bias", "s_aux")
        )
        if pages is None or attention_mask is None or not plain:
            return outside(
                module,
                query,
                key,
                value,
                attention_mask,
                dropout=dropout,
                scaling=scaling,
                **kwargs,
            )
        new, *others = pages
        made = torch.ops.xla.attend_to_pages(
            query, (key, value), attention_mask, new, *others, scaling
        )
        return made.transpose(1, 2).contiguous(), None

    return attend


def trace_paged_caches() -> None:
    """Let Dynamo trace the update of a paged cache for this backend, if transformers is there.

    Other backends, and releases of transformers that are not known, have it out of graphs as ever.
    """
    cache: Any = getattr(sys.modules.get(_CACHE), "PagedAttentionCache", None)
    if cache is not None and not _is_ours(cache.update) and _is_known(cache, cache.update):
        cache.update = _replaced(_updating(cache.update))
    functions: Any = getattr(sys.modules.get(_MODELS), "ALL_ATTENTION_FUNCTIONS", None)
    if functions is not None and not _is_ours(functions["sdpa"]):
        functions.register("sdpa", _replaced(_attending(functions["sdpa"])))


def _is_ours(function: Callable[..., Any]) -> bool:
    return hasattr(function, "in_graphs_of_xla_dynamo")


def _replaced(function: Callable[..., Any]) -> Callable[..., Any]:
    function.in_graphs_of_xla_dynamo = True  # type: ignore[attr-defined]
    return function


def _updating(outside: Callable[..., Any]) -> Callable[..., Any]:
    """The update of a paged cache by transformers, which is ours in graphs for this backend."""

    @functools.wraps(outside, updated=())
    def update(self: Any, keys: Any, values: Any, layer: int, kwargs: dict[str, Any]) -> Any:
        is_plain = kwargs.get("block_table") is None and not torch.is_grad_enabled()
        is_traced = torch.compiler.is_dynamo_compiling() and is_plain and _is_for_us()
        if is_traced and _kind_of(type(self.layer_to_allocator[layer])) != "":
            return _update(self, keys, values, layer, kwargs)
        return outside(self, keys, values, layer, kwargs)

    return update
