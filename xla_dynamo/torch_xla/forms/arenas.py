"""Names of `torch_xla.core.xla_model` that move the tensors of nested values to the device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.torch_xla.forms.values import for_each_instance, for_each_instance_rewrite


class ToXlaTensorArena:
    """Converts some tensors of a nested value, all of them by one call of a function.

    The value has lists, tuples, sets, dictionaries and their keys, `DataWrapper`s, and objects with
    attributes.
    """

    def __init__(
        self,
        convert_fn: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
        select_fn: Callable[[Any], bool],
    ) -> None:
        """Take the function, and which leaves of a value it is to convert.

        Args:
            convert_fn: takes a list of tensors, and returns as many.
            select_fn: takes a leaf, and says whether it is converted.
        """
        self._convert, self._selects = convert_fn, select_fn

    def transform(self, inputs: Any) -> Any:
        """A value of the same structure, whose selected leaves are converted."""
        chosen: list[Any] = []
        for_each_instance(inputs, self._selects, chosen.append)
        made = iter(self._convert(chosen) if chosen else ())
        return for_each_instance_rewrite(inputs, self._selects, lambda _: next(made))


def send_cpu_data_to_device(
    datas: Any, device: torch.device | str, input_sharding: Any = None
) -> Any:
    """A value with its tensors of the CPU on a device.

    Args:
        datas: the value; a tensor by itself stands for a list of it.
        device: the device.
        input_sharding: a `ShardingSpec`, or another object with `apply`, that shards each tensor.
    """

    def moved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        made = [tensor.to(device) for tensor in tensors]
        if input_sharding is not None:
            made = [input_sharding.apply(tensor) for tensor in made]
        return made

    def is_of_the_cpu(value: Any) -> bool:
        return type(value) is torch.Tensor and value.device.type == "cpu"

    given = [datas] if isinstance(datas, torch.Tensor) else datas
    return ToXlaTensorArena(moved, is_of_the_cpu).transform(given)
