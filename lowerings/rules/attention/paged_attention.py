"""Attention of continuous batching: each token attends to the keys of its own request."""

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.rules.attention.attention import attend, attention_scores, scale_of
from xla_dynamo.lowerings.table import Context, lowers


@lowers("xla.attend_to_pages.default")
def attend_to_pages(
    ctx: Context,
    query: Value,
    found: tuple[Value, Value],
    mask: Value,
    new: tuple[Value, Value],
    rows: Value,
    read: Value,
    starts_q: Value,
    starts_k: Value,
    first: int,
    between: int,
    scale: float | None = None,
) -> Value:
    """A kernel reads the rows of each request; else all that was found is attended to by a mask."""
    settings = {"first": first, "between": between, "scale": scale_of(query, scale)}
    made = call(
        ctx, "paged_attention", query, *new, rows, read, starts_q, starts_k, mask, **settings
    )
    if made is None:
        made, _ = attend(ctx, attention_scores(ctx, query, found[0], False, mask, scale), found[1])
    return build.cast(made, build.dtype_of(query))
