"""What torch asks a process group about itself, beside its collectives."""

import torch
import torch.distributed as dist


class NamedGroup(dist.ProcessGroup):
    """A group with the names that torch gives it, for tensors of the CPU and of 'xla'."""

    supports_splitting = supports_time_estimate = supports_shrinking = False
    supports_coalescing = False  # what is received is there when its own `wait` returns
    _name = _description = ""

    def getBackendName(self) -> str:  # noqa: N802, torch's name
        """The name by which torch knows the backend."""
        return "xla"

    # Torch keeps both in the backends of a group, of which this one has none.

    @property
    def group_name(self) -> str:
        """The name by which graphs and torch know the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("xla")]

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description
