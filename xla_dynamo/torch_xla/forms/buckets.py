"""Names of `torch_xla.core.xla_model` that exchange lists of tensors in buckets of some size.

XLA merges collectives of one program by itself. Buckets bound how much it may merge.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

import xla_dynamo

Tensor: TypeAlias = torch.Tensor
Groups: TypeAlias = Sequence[Sequence[int]] | None
_MEGABYTE = 1024 * 1024


class CoalescingBuckets:
    """Calls a collective with tensors in buckets, instead of with all of them at once."""

    def __init__(
        self,
        func: Callable[..., Any],
        input_list: list[Tensor],
        output_list: list[Tensor] | None = None,
        bucket_cap_mb: int = 160,
    ) -> None:
        """Take the collective and its tensors.

        Args:
            func: takes a tensor or a list of tensors, and the outputs for them or None. It returns
                one result for each.
            input_list: the tensors.
            output_list: as many tensors, which take the results.
            bucket_cap_mb: how many megabytes a bucket has at most; one tensor may be larger.

        Raises:
            TypeError: one of the lists is no list of tensors.
            ValueError: the lists have different lengths.
        """
        _check_list("input_list", input_list)
        if output_list is not None:
            _check_list("output_list", output_list)
            if len(output_list) != len(input_list):
                raise ValueError(
                    f"output_list has {len(output_list)} tensors, and input_list has "
                    f"{len(input_list)}: give one output for each input"
                )
        self._function, self._inputs, self._outputs = func, input_list, output_list
        self._most = bucket_cap_mb * _MEGABYTE

    def __call__(self) -> list[Tensor]:
        """The results of all tensors, in their order."""
        made: list[Tensor] = []
        for bucket in self._buckets():
            inputs = [self._inputs[i] for i in bucket]
            outputs = None if self._outputs is None else [self._outputs[i] for i in bucket]
            if len(bucket) == 1:
                made.append(self._function(inputs[0], None if outputs is None else outputs[0]))
            else:
                made.extend(self._function(inputs, outputs))
        return made

    def _buckets(self) -> Iterator[list[int]]:
        """The indices of the tensors of each bucket."""
        bucket: list[int] = []
        held = 0
        for index, tensor in enumerate(self._inputs):
            size = _bytes_of(tensor)
            # A tensor larger than a bucket takes what is before it along, if that is little.
            fits_behind = held < self._most / 2 and held + size <= 2 * self._most
            if size > self._most and fits_behind:
                yield [*bucket, index]
                bucket, held = [], 0
                continue
            if bucket and held + size > self._most:
                yield bucket
                bucket, held = [], 0
            bucket.append(index)
            held += size
        if bucket:
            yield bucket


def _check_list(name: str, given: Any) -> None:
    if not isinstance(given, list) or not all(isinstance(t, torch.Tensor) for t in given):
        raise TypeError(f"{name} is a list of tensors, and not {type(given).__name__}")


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def all_gather_bucketized(
    input_list: list[Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: list[Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[Tensor]:
    """`all_gather` of a list of tensors, in buckets.

    Args:
        input_list: the tensors.
        dim: as for `all_gather`.
        groups: likewise.
        output: likewise.
        pin_layout: likewise.
        bucket_cap_mb: how many megabytes a bucket has at most.

    Raises:
        TypeError, ValueError: as `CoalescingBuckets`.
        ShardingError, ProcessError: as `all_gather`.
    """

    def gathered(inputs: Any, outputs: Any) -> Any:
        return xla_dynamo.all_gather(inputs, dim, groups, outputs, pin_layout)

    return CoalescingBuckets(gathered, input_list, output, bucket_cap_mb)()


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: list[Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[Tensor]:
    """`reduce_scatter` of a list of tensors, in buckets.

    Args:
        reduce_type: as for `reduce_scatter`.
        input_list: the tensors.
        scale: as for `reduce_scatter`.
        scatter_dim: likewise.
        shard_count: likewise.
        groups: likewise.
        output: likewise.
        pin_layout: likewise.
        bucket_cap_mb: how many megabytes a bucket has at most.

    Raises:
        TypeError, ValueError: as `CoalescingBuckets`.
        ShardingError, ProcessError: as `reduce_scatter`.
    """

    def scattered(inputs: Any, outputs: Any) -> Any:
        return xla_dynamo.reduce_scatter(
            reduce_type, inputs, scale, scatter_dim, shard_count, groups, outputs, pin_layout
        )

    return CoalescingBuckets(scattered, input_list, output, bucket_cap_mb)()


def all_reduce_bucketized_gradients(
    gradients: list[Tensor],
    scale: float,
    groups: Groups,
    pin_layout: bool,
    bucket_cap_mb: int = 0,
) -> None:
    """Sum gradients over processes, in place and in buckets.

    Args:
        gradients: the tensors.
        scale: as for `all_reduce`.
        groups: likewise.
        pin_layout: likewise.
        bucket_cap_mb: how many megabytes a bucket has at most. With 0 each tensor is one.

    Raises:
        TypeError: the gradients are no list of tensors.
        ShardingError, ProcessError: as `all_reduce`.
    """

    def reduced(inputs: Any, _: Any) -> Any:
        several = inputs if isinstance(inputs, list) else [inputs]
        xla_dynamo.all_reduce("sum", several, scale, groups, pin_layout=pin_layout)
        return inputs

    CoalescingBuckets(reduced, gradients, None, bucket_cap_mb)()
