"""`torch.distributed`'s backend "xla": tensors of the device 'xla' by PJRT, others by Gloo.

A collective on 'xla' tensors first computes what they are, a program of this process alone. Then
the collective runs as a program of its own, which is compiled once for each shape. So processes
may differ in what they compute and look at between two collectives, as in eager code.
"""

import datetime
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import Work
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import AllgatherOptions

from xla_dynamo.distributed.c10d_forms import (
    all_done,
    check_gathering,
    check_scattering,
    done,
    in_lists,
    kind_of,
    listed,
    on_xla,
    options_of,
    put,
    root_of,
)
from xla_dynamo.distributed.changes_in_torch import change_torch
from xla_dynamo.distributed.meetings import store_of, told_by_caller
from xla_dynamo.distributed.named_group import NamedGroup
from xla_dynamo.distributed.point_to_point import Mailbox, receive
from xla_dynamo.errors import ProcessError
from xla_dynamo.lazy.contents import shows_all
from xla_dynamo.lazy.steps import unlazy, unlazy_with_all
from xla_dynamo.runtime.processes.environment import Seat
from xla_dynamo.runtime.processes.job import Job, joined
from xla_dynamo.runtime.topology import initialize_processes
from xla_dynamo.torch_private import leave_to_python

Tensor: TypeAlias = torch.Tensor


def make_process_group(given: Any, options: Any) -> "XlaProcessGroup":
    """The process group that torch asks for.

    Args:
        given: torch's `DistributedBackendOptions`.
        options: none are there.

    Raises:
        ProcessError: the ranks of torch are not those of the job's processes.
    """
    from xla_dynamo.lazy import registration  # claims torch's place, so not before it is asked for

    # A group of some processes, or torch's own timeout, changes nothing that was said before.
    said = not dist.is_initialized() and (joined() is None or given.timeout != default_pg_timeout)
    patience = given.timeout.total_seconds() if said else None
    initialize_processes(patience, told=told_by_caller(given))
    registration.device()
    here = joined()
    seat = here.seat if here is not None else Seat()
    ranks = list(given.global_ranks_in_group) or list(range(given.group_size))
    if max(ranks) >= seat.size or ranks[given.group_rank] != seat.rank:
        raise ProcessError(
            f"init_process_group says that this is process {given.group_rank} of "
            f"{given.group_size}, and the environment that it is {seat.rank} of {seat.size}: leave "
            "rank and world_size out, or let RANK and WORLD_SIZE say the same"
        )
    change_torch()
    return XlaProcessGroup(store_of(given), given.group_rank, ranks, given.timeout, here)


class XlaProcessGroup(NamedGroup):
    """A group of processes: torch's `ProcessGroup`, whose methods have torch's arguments.

    Each returns a `Work`. What is for 'xla' tensors has run when it returns.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        ranks: Sequence[int],
        timeout: datetime.timedelta,
        job: Job | None,
    ) -> None:
        """Take torch's store, the rank in the group, the global ranks of all, and the job."""
        super().__init__(rank, len(ranks))
        self._rank, self._ranks, self._job = rank, list(ranks), job
        self._own = Mailbox()
        gloo = dist.PrefixStore("gloo", store)
        self._gloo = dist.ProcessGroupGloo(gloo, rank, len(ranks), timeout)

    @property
    def _one(self) -> tuple[list[int], int]:
        """The group, as collectives take it."""
        return self._ranks, len(self._ranks)

    def _run(self, op: Callable[..., Tensor], x: Tensor, *args: Any) -> Tensor:
        """The result of a collective of this group, which is computed by a program of its own."""
        x = x.detach()
        if len(self._ranks) == 1:  # each collective gives one process what it has
            return x.clone()
        with torch.no_grad():
            if not (x.is_contiguous() and shows_all(x)):  # a view may be another in each process
                x = x.clone(memory_format=torch.contiguous_format)
            unlazy_with_all([x])
            result = op(x, *args, *self._one)
            unlazy([result])
        return result

    # --- reductions --------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Reduce each tensor over the processes, in place."""
        tensors, opts = listed(tensors), options_of(dist.AllreduceOptions, opts)
        if not on_xla(tensors):
            return self._gloo.allreduce(tensors, opts)
        for t in tensors:
            put(t, self._reduced(t, opts.reduceOp))
        return done(tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce each tensor over the processes, in place."""
        opts = opts or dist.AllreduceCoalescedOptions()
        if not on_xla(tensors):
            return self._gloo.allreduce_coalesced(tensors, opts)
        for t in tensors:
            put(t, self._reduced(t, opts.reduceOp))
        return done(tensors)

    def reduce(self, tensors: Any, opts: Any = None, *rest: Any) -> Work:
        """Reduce a tensor over the processes; the root's takes the result."""
        tensors, opts = listed(tensors), options_of(dist.ReduceOptions, opts, *rest)
        if not on_xla(tensors):
            return self._gloo.reduce(tensors, opts)
        root = root_of(opts, len(self._ranks))
        for t in tensors:
            reduced = self._reduced(t, opts.reduceOp)
            if self._rank == root:
                put(t, reduced)
        return done(tensors)

    def _reduced(self, t: Tensor, op: Any) -> Tensor:
        kind, factor = kind_of(op)
        if factor is not None:
            t = t * factor
        return self._run(torch.ops.xla.all_reduce.default, t, kind)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Work:
        """Reduce the lists of all processes element by element; each gets the one of its rank."""
        kind = dist.ReduceScatterOptions
        outputs, inputs, opts = in_lists(kind, outputs, inputs, opts, *rest)
        if not on_xla(outputs):
            return self._gloo.reduce_scatter(outputs, inputs, opts)
        for output, parts in zip(outputs, inputs, strict=True):
            if len({p.shape for p in parts}) == 1:
                put(output, self._scattered(torch.stack(list(parts)), opts.reduceOp))
            else:  # of several sizes: each by itself
                reduced = [self._reduced(p, opts.reduceOp) for p in parts]
                put(output, reduced[self._rank])
        return done(outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Reduce a tensor over the processes; each gets its part along the first dimension."""
        opts = opts or dist.ReduceScatterOptions()
        if not on_xla([output]):
            return self._of_gloo("reduce_scatter_single", "_reduce_scatter_base")(
                output, input, opts
            )
        check_scattering(output, input, len(self._ranks))
        parts = input.reshape(len(self._ranks), *output.shape)
        put(output, self._scattered(parts, opts.reduceOp))
        return done([output])

    _reduce_scatter_base = reduce_scatter_single  # torch before 2.13

    def _scattered(self, parts: Tensor, op: Any) -> Tensor:
        kind, factor = kind_of(op)
        if factor is not None:
            parts = parts * factor
        return self._run(torch.ops.xla.reduce_scatter.default, parts, kind, 0)[0]

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`reduce_scatter_single` of each."""
        pairs = zip(outputs, inputs, strict=True)
        return all_done([self.reduce_scatter_single(o, i, opts) for o, i in pairs], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- movements ---------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Give each tensor the elements that the root's has."""
        tensors, opts = listed(tensors), options_of(dist.BroadcastOptions, opts)
        if not on_xla(tensors):
            return self._gloo.broadcast(tensors, opts)
        root = root_of(opts, len(self._ranks))
        for t in tensors:
            put(t, self._run(torch.ops.xla.collective_broadcast.default, t, root))
        return done(tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Give each list the tensors of all processes, by rank."""
        outputs, inputs, opts = in_lists(AllgatherOptions, outputs, inputs, opts)
        if not on_xla(inputs):
            return self._gloo.allgather(outputs, inputs, opts)
        for places, x in zip(outputs, inputs, strict=True):
            self._gather_into(places, x)
        return done([t for places in outputs for t in places])

    def _gather_into(self, places: Sequence[Tensor], x: Tensor) -> None:
        if len({p.shape for p in places}) == 1:
            for place, one in zip(places, self._gathered(x), strict=True):
                put(place, one)
            return
        for rank, place in enumerate(places):  # of several sizes: each by itself
            given = x if rank == self._rank else torch.zeros_like(place)
            put(place, self._run(torch.ops.xla.collective_broadcast.default, given, rank))

    def _gathered(self, x: Tensor) -> Tensor:
        return self._run(torch.ops.xla.all_gather.default, x.unsqueeze(0), 0)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Give a tensor those of all processes, one behind the other."""
        opts = opts or AllgatherOptions()
        if not on_xla([output]):
            return self._of_gloo("all_gather_single", "_allgather_base")(output, input, opts)
        check_gathering(output, input, len(self._ranks))
        put(output, self._gathered(input).reshape(output.shape))
        return done([output])

    _allgather_base = all_gather_single  # torch before 2.13

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`all_gather_single` of each."""
        pairs = zip(outputs, inputs, strict=True)
        return all_done([self.all_gather_single(o, i, opts) for o, i in pairs], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Work:
        """`allgather` of each tensor of a list; `output_lists` has a list for each process."""
        if not on_xla(inputs):
            return self._gloo.allgather_coalesced(output_lists, inputs, opts or AllgatherOptions())
        for number, x in enumerate(inputs):
            self._gather_into([places[number] for places in output_lists], x)
        return done([t for places in output_lists for t in places])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Work:
        """Give the root the tensors of all processes, by rank."""
        kind = dist.GatherOptions
        outputs, inputs, opts = in_lists(kind, outputs, inputs, opts, *rest)
        if not on_xla(inputs):
            return self._gloo.gather(outputs, inputs, opts)
        root = root_of(opts, len(self._ranks))
        for number, x in enumerate(inputs):
            gathered = self._gathered(x)
            if self._rank == root:
                for place, one in zip(outputs[number], gathered, strict=True):
                    put(place, one)
        return done([t for places in outputs for t in places])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest: Any) -> Work:
        """Give each process the tensor of its rank in the root's list."""
        kind = dist.ScatterOptions
        outputs, inputs, opts = in_lists(kind, outputs, inputs, opts, *rest)
        if not on_xla(outputs):
            return self._gloo.scatter(outputs, inputs, opts)
        root = root_of(opts, len(self._ranks))
        for number, output in enumerate(outputs):
            if self._rank == root:
                rows = torch.stack(list(inputs[number]))
            else:
                rows = output.new_zeros(len(self._ranks), *output.shape)
            put(output, self._exchanged(rows)[root])
        return done(outputs)

    def _exchanged(self, rows: Tensor) -> Tensor:
        """Send each process the row of its rank; returns what each has sent."""
        return self._run(torch.ops.xla.all_to_all.default, rows, 0, 0)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Send each process the tensor of its rank in a list."""
        opts = opts or dist.AllToAllOptions()
        if not on_xla(outputs):
            return self._gloo.alltoall(outputs, inputs, opts)
        given = [x.reshape(-1) for x in inputs]
        flat = self._exchange([*given], [o.numel() for o in outputs])
        for output, part in zip(outputs, flat, strict=True):
            put(output, part.reshape(output.shape))
        return done(outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Send each process a part of a tensor, along the first dimension."""
        opts = opts if isinstance(opts, dist.AllToAllOptions) else dist.AllToAllOptions()
        if not on_xla([output]):
            return self._of_gloo("all_to_all_single", "alltoall_base")(
                output, input, output_splits, input_splits, opts
            )
        count = len(self._ranks)
        row = output[:1].numel() if len(output) else input[:1].numel()
        sent = list(input_splits) or [len(input) // count] * count
        taken = list(output_splits) or [len(output) // count] * count
        given = [x.reshape(-1) for x in input.split(sent)]
        parts = self._exchange(given, [n * row for n in taken])
        put(output, torch.cat(parts).reshape(output.shape))
        return done([output])

    alltoall_base = all_to_all_single  # torch before 2.13

    def _exchange(self, given: list[Tensor], taken: Sequence[int]) -> list[Tensor]:
        """Vectors to send by rank, for those of these lengths; padded to the longest of any."""
        longest = max([len(x) for x in given] + list(taken))
        if self._job is not None and len(self._ranks) > 1:
            told = self._job.gather(
                "the sizes of an all_to_all", str(longest).encode(), b"", tuple(self._ranks)
            )
            longest = max(map(int, told))
        pad = torch.nn.functional.pad
        rows = torch.stack([pad(x, (0, longest - len(x))) for x in given])
        return [one[:n] for one, n in zip(self._exchanged(rows), taken, strict=True)]

    # --- the rest ----------------------------------------------------------------------------

    def send(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Send a tensor to a process, which calls `recv`. 'xla' tensors go through the host."""
        if rank == self._rank:
            return self._own.send(tensors, tag)
        if not on_xla(tensors):
            return self._gloo.send(tensors, rank, tag)
        return self._gloo.send([t.detach().cpu().contiguous() for t in tensors], rank, tag)

    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Receive a tensor from a process, which calls `send`."""
        if rank == self._rank:
            return self._own.receive(tensors, tag)
        if not on_xla(tensors):
            return self._gloo.recv(tensors, rank, tag)
        return receive(tensors, lambda hosts: self._gloo.recv(hosts, rank, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive a tensor from any process that sends one."""
        if not on_xla(tensors):
            return self._gloo.recv_anysource(tensors, tag)
        return receive(tensors, lambda hosts: self._gloo.recv_anysource(hosts, tag))

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Wait until all processes of the group have come here."""
        if self._job is not None:
            self._job.agree(f"a barrier of the processes {self._ranks}", b"", tuple(self._ranks))
        return done([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """`barrier`, whose error always names who has not come."""
        self.barrier()

    def _start_coalescing(self, device: Any = None) -> None:
        """Begin a list of collectives. Each runs by itself all the same."""

    def _end_coalescing(self, device: Any = None) -> Work:
        return done([])

    def _get_backend(self, device: Any) -> Any:
        """What runs the collectives of a device's tensors."""
        return self._gloo if torch.device(device).type != "xla" else self

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: the job's coordinator compares what processes come to."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def shutdown(self) -> None:
        """Nothing: the processes leave the job when they end."""

    abort = shutdown

    def _of_gloo(self, *names: str) -> Callable[..., Work]:
        """Gloo's method, by the name that this version of torch has for it."""
        return next(getattr(self._gloo, n) for n in names if hasattr(self._gloo, n))


# Torch calls these inside a compiled model too, when a graph of it has broken at a collective.
for _method in vars(XlaProcessGroup).values():
    if isinstance(_method, types.FunctionType):
        leave_to_python(_method)
