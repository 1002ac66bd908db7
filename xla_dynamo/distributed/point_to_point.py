"""Send and receive tensors of the device 'xla' through the host's memory, by Gloo.

XLA's own point-to-point operations are parts of one program that both processes run, and nobody
knows which program that is before both have called. Gloo's run by themselves. Gloo connects no
process with itself: what a process sends to itself is kept here until it receives it.
"""

import collections
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import Work

from xla_dynamo.distributed.c10d_forms import done
from xla_dynamo.errors import ProcessError


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


class Mailbox:
    """What a process sends to itself: of each tag, the first is received first."""

    def __init__(self) -> None:
        """Make an empty one."""
        self._sent: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._counts: collections.Counter[tuple[str, int]] = collections.Counter()

    def send(self, tensors: Sequence[torch.Tensor], tag: int) -> Work:
        """Keep copies of tensors for the receipt of the same number."""
        self._sent[tag, self._next("sent", tag)] = [t.detach().clone() for t in tensors]
        return done(tensors)

    def receive(self, tensors: Sequence[torch.Tensor], tag: int) -> Work:
        """Receive tensors, which may be sent later, until somebody waits for them."""
        number = self._next("received", tag)
        return _OwnReceipt(lambda: self._sent.pop((tag, number), None), tensors)

    def _next(self, what: str, tag: int) -> int:
        self._counts[what, tag] += 1
        return self._counts[what, tag]


class _OwnReceipt(Work):
    """A tensor that a process sends to itself."""

    def __init__(
        self, take: Callable[[], list[torch.Tensor] | None], targets: Sequence[torch.Tensor]
    ) -> None:
        super().__init__()
        self._take, self._targets = take, targets
        self._is_over = False

    def wait(self, timeout: Any = None) -> bool:
        if self._is_over:
            return True
        sent = self._take()
        if sent is None:
            raise ProcessError("a process waits for a tensor that it has not sent to itself yet")
        with torch.no_grad():
            for tensor, target in zip(sent, self._targets, strict=True):
                target.copy_(tensor)
        self._is_over = True
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return self._is_over

    is_success = is_completed

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return list(self._targets)
