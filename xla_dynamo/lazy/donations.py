"""Values whose memory the user gives to the results of the next program that reads them.

Memory that nobody can read any more, as that of a parameter before the optimizer's step, is taken
anyway (`slices`). Here the user says that nobody will read a tensor.
"""

import contextlib
import weakref
from collections.abc import Iterator, Sequence

import torch

from xla_dynamo.lazy import contents, placeholders
from xla_dynamo.lazy.contents import Value, cell_of
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import metrics


class _Config:
    def __init__(self) -> None:
        self.is_for_all = False


_config = kept(_Config)
# No test replaces it: values outlive a test.
marked: "weakref.WeakSet[Value]" = weakref.WeakSet()


def set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Let the next program that reads a tensor write a result into its memory, or not.

    The step's program does so, and within `alias_with_buffer_donor_config` any program. The result
    must have the dtype, shape and strides of the tensor's storage. Afterwards, to use the tensor
    is an ExecutionError, as is computing what was recorded with it before.

    Returns:
        Whether it was noted: False where the tensor is still to be computed.
    """
    with contents.lock:
        value = cell_of(tensor).value
        if value.record is not None:
            return False
        if should_donate:
            marked.add(value)
        else:
            marked.discard(value)
    metrics.increment("XlaSetBufferDonation")
    return True


def get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether a program may write a result into a tensor's memory: see `set_buffer_donation`."""
    return cell_of(tensor).value in marked


@contextlib.contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[bool]:
    """Let programs of a block that are not those of a step take the memory of marked tensors, too.

    The block has the setting that was there before.
    """
    before = is_for_all()
    set_for_all(should_alias)
    try:
        yield before
    finally:
        set_for_all(before)


def set_for_all(should_alias: bool) -> None:
    """Set whether all programs take the memory of marked tensors, and not only those of steps."""
    _config.is_for_all = should_alias


def is_for_all() -> bool:
    """Whether all programs take the memory of marked tensors, and not only those of steps."""
    return _config.is_for_all


def assign(
    inputs: Sequence[Value], outputs: Sequence[Value], replaced: list[int], is_step: bool
) -> None:
    """Give outputs that take nobody's memory, in `replaced`, that of marked inputs."""
    if not (is_step or is_for_all()):
        return
    for number, value in enumerate(inputs):
        if value not in marked or number in replaced:
            continue
        for place, output in enumerate(outputs):
            if replaced[place] < 0 and output.geometry == value.geometry:
                replaced[place] = number
                break


def give_away(inputs: Sequence[Value], replaced: Sequence[int]) -> None:
    """Note that a program has taken the memory of marked inputs."""
    for number in replaced:
        if number >= 0 and (value := inputs[number]) in marked:
            marked.discard(value)
            value.buffer = placeholders.GivenAway()  # type: ignore[assignment]
