"""Receive tensors of the device 'xla' through the host's memory, by Gloo.

XLA's own point-to-point operations are parts of one program that both processes run, and nobody
knows which program that is before both have called. Gloo's run by themselves.
"""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import Work


class Receipt(Work):
    """A tensor that is on its way: `wait` puts it where it is to go."""

    def __init__(
        self, work: Work, hosts: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
    ) -> None:
        """Take Gloo's work, the host's tensors that it fills, and where they are to go."""
        super().__init__()
        self._work, self._hosts, self._targets = work, hosts, targets
        self._is_over = False

    def wait(self, timeout: Any = datetime.timedelta(0)) -> bool:
        """Wait until the tensor is there; raises what Gloo raises."""
        if self._is_over:
            return True
        if timeout:
            self._work.wait(timeout)
        else:
            self._work.wait()
        with torch.no_grad():
            for host, target in zip(self._hosts, self._targets, strict=True):
                target.copy_(host)
        self._is_over = True
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether it is there."""
        return self._is_over or self._work.is_completed()

    def is_success(self) -> bool:
        """Whether it is there."""
        return self._is_over

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        self.wait()
        return list(self._targets)

    def source_rank(self) -> int:
        """The rank in the group of the process that sent it."""
        return self._work._source_rank()

    _source_rank = source_rank


def receive(tensors: Sequence[torch.Tensor], start: Callable[[list[torch.Tensor]], Work]) -> Work:
    """Receive 'xla' tensors; `start` begins to fill tensors of the host."""
    hosts = [torch.empty(t.shape, dtype=t.dtype, device="cpu") for t in tensors]
    return Receipt(start(hosts), hosts, list(tensors))
