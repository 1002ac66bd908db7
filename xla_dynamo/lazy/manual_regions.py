"""Values inside manual regions: shards, of which each device has another.

They have no elements that one tensor could show, so they are never computed by themselves: they
stay pending until what leaves the region is computed.
"""

from collections.abc import Iterable
from typing import Any

from xla_dynamo.errors import ShardingError
from xla_dynamo.lazy.contents import Value

ENTRY, EXIT = "xla::full_to_shard", "xla::shard_to_full"


class _Seen:
    def __init__(self) -> None:
        self.any = False  # no test replaces it: values outlive a test


_seen = _Seen()


def is_inside(name: str, values: Iterable[Value]) -> bool:
    """Whether the results of an operator, by its name and what it reads, are inside a region."""
    if name == EXIT:
        return False
    if name == ENTRY:
        _seen.any = True
    return name == ENTRY or (_seen.any and any(map(is_shard, values)))


def is_shard(value: Value) -> bool:
    """Whether a value is pending inside a region."""
    return value.record is not None and value.record.is_inside_region


def were_entered() -> bool:
    """Whether any region was ever entered on the device."""
    return _seen.any


def refuse(values: Iterable[Any]) -> None:
    """Raise ShardingError if a value to be computed is inside a region."""
    if not _seen.any:
        return
    for value in values:
        if is_shard(value):
            place = value.record.place
            at = "" if place is None else f"\n{place.stack_trace()}"
            raise ShardingError(
                f"a tensor of shape {tuple(value.geometry[1])} is read inside of a manual region, "
                "where each device has another shard of it: leave the region first, by "
                f"disable_manual_sharding(t, partition_spec, full_shape){at}"
            )
