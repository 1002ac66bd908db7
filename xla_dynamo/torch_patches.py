"""Everything that we change in torch for all threads, and the gate between traces and exports.

Most changes are made once and stay: kernels of a few operators that ask a thread's own switch
(`switched`, for `whole_resampling` and `refused_calls`), sizes in the shapes of resampling's
gradients, the table of backends (`torch_threads`) and the empty module in the place of torch's own
openxla (`registration`), Dynamo's limit of graphs, its rules for paged caches and recurrent layers
and a listener to its log (`dynamo`), a hook behind optimizers (`changes`), our operators, what the
device 'xla' registers (`lazy.registration`), the addresses and sizes that storages tell
(`lazy.storages`), what `torch.accelerator` asks of it (`lazy.accelerator`), and, with a process
group of the backend 'xla', the code of torch's device meshes and DTensors that leaves this device
to torch_xla (`distributed.device_meshes`) and the methods of DDP's Reducer that make maps of used
parameters (`distributed.reducers`), what runs draws of DTensors (`distributed.shared_draws`), and
the device of a group (`distributed.changes_in_torch`). Where scripts of PyTorch/XLA run, kernels
that libraries register for the key "XLA" are our device's (`torch_xla.kernels.user_kernels`), and
tensors with a mark have more attributes (`torch_xla.forms.sharded_tensors`). The
flag "is compiling" is set for a block to one that says so in one thread alone (`torch_threads`).
Torch's switches that `patch` of its configuration sets are each thread's own. Two switches are set
for a block, and are torch's for all threads meanwhile: oneDNN, while a recurrent layer is traced,
and the kind of attention, while a function for JAX is traced.

Torch's own exports change more for all threads: `run_decompositions` the kernels of all composite
operators, `torch.export.export` the flags that tell that torch compiles and exports. A trace that
met those would be another one. So while an export runs, none of ours does, nor does Dynamo's. What
nobody can keep apart is that `torch.compile`, called while another thread is in
`torch.export.export`, warns that it does nothing there.

The order of locks: a thread may wait at the gate while it holds Dynamo's compile lock or the
`running` of the device 'xla'. An export holds neither while it waits. Once it is alone it holds the
compile lock, and asks for no other.
"""

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from xla_dynamo.torch_private import DispatchKey, OpOverload, compile_lock, forget_kernels

Kernel: TypeAlias = Callable[..., Any]


class Switch(threading.local):
    """Whether the kernels that ask it are in use, in each thread by itself."""

    is_on = False

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Use the kernels in this block."""
        before, self.is_on = self.is_on, True
        try:
            yield
        finally:
            self.is_on = before


def switched(
    switch: Switch, op: OpOverload, key: DispatchKey, make: Callable[[Kernel], Kernel]
) -> None:
    """Give torch's Python dispatcher another kernel in the threads where a switch is on.

    The second time it does nothing, unless somebody has put back a table that was saved before.

    Args:
        switch: says whether the kernel is in use.
        op: the operator; nothing is done if it has no kernel under the key.
        key: of the kernel, in `op.py_kernels`.
        make: makes the kernel from torch's own.
    """
    own = op.py_kernels.get(key)
    if own is None or getattr(own, "switch", None) is switch:
        return
    other = make(own)

    @functools.wraps(own)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return (other if switch.is_on else own)(*args, **kwargs)

    kernel.switch = switch  # type: ignore[attr-defined]
    op.py_kernels[key] = kernel
    forget_kernels(op)


class _Gate:
    """Lets traces of several threads overlap, and an export run alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tracing: collections.Counter[int] = collections.Counter()  # by thread
        self._exporting: int | None = None

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Wait until no other thread exports; others wait meanwhile."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._exporting in (None, me))
            self._tracing[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._tracing[me] -= 1
                if not self._tracing[me]:
                    del self._tracing[me]
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody traces or exports; inside of either this does nothing."""
        me = threading.get_ident()
        if self._exporting == me or me in self._tracing:
            yield
            return
        self._enter(me)
        try:
            yield
        finally:
            with self._changed:
                self._exporting = None
                self._changed.notify_all()
            compile_lock.release()

    def _enter(self, me: int) -> None:
        while True:
            compile_lock.acquire()
            with self._changed:
                if self._is_free():
                    self._exporting = me
                    return
            # Who traces on the device 'xla' must not wait for a lock that is held for it.
            compile_lock.release()
            with self._changed:
                self._changed.wait_for(self._is_free)

    def _is_free(self) -> bool:
        return self._exporting is None and not self._tracing


_gate = _Gate()
tracing = _gate.tracing
exporting_alone = _gate.alone


def _alone(export: Callable[..., Any]) -> Any:
    @functools.wraps(export)
    def run(*args: Any, **kwargs: Any) -> Any:
        with exporting_alone():
            return export(*args, **kwargs)

    return run


torch.export.export = _alone(torch.export.export)
torch.export.ExportedProgram.run_decompositions = _alone(  # type: ignore[method-assign]
    torch.export.ExportedProgram.run_decompositions
)
