"""A program bound to an executable: what happens at every call, and nothing else."""

import weakref
from typing import Any

import jax
import torch

from xla_dynamo.errors import ExecutionError
from xla_dynamo.lower import Output, Program
from xla_dynamo.runtime.buffers import export_buffer, import_tensor
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import (
    Buffer,
    buffer_address,
    buffer_from_dlpack,
    dlpack_from_buffer,
)
from xla_dynamo.runtime.buffers import capsule_of, tensor_of_capsule
from xla_dynamo.source_lines import describe


class StaticInput:
    """The buffers of one parameter slot, known by address, for as long as the parameter lives.

    Several modules may share one graph, so a slot sees several parameters. A buffer keeps the
    memory it views alive, so an address in here cannot have been freed and given out again.
    """

    __slots__ = ("__weakref__", "_device", "_owners", "_prepare", "buffers")

    def __init__(self, device: jax.Device, prepare: Any) -> None:
        self._device, self._prepare = device, prepare
        self.buffers: dict[int, Buffer] = {}
        self._owners: dict[int, weakref.ref] = {}

    def load(self, tensor: torch.Tensor, stream: int | None) -> Buffer:
        """Import a tensor, and keep the buffer if it views the tensor's own memory."""
        address = tensor.data_ptr()
        ready = tensor if self._prepare is None else self._prepare(tensor)
        buffer = import_tensor(ready, self._device, stream)
        # A buffer that is a copy would not see the parameter change in place.
        if address and buffer_address(buffer) == address:
            for old, owner in list(self._owners.items()):
                if owner() is tensor:  # its storage was replaced, as by `parameter.data = ...`
                    self._forget(old)
            self.buffers[address] = buffer
            slot = weakref.ref(self)
            self._owners[address] = weakref.ref(
                tensor, lambda _: (alive := slot()) and alive._forget(address)
            )
        return buffer

    def _forget(self, address: int) -> None:
        self.buffers.pop(address, None)
        self._owners.pop(address, None)


class BoundProgram:
    """Calls an executable with torch tensors: imports, executes, exports."""

    def __init__(
        self,
        program: Program,
        executable: Executable | None,
        device: torch.device,
        static_inputs: frozenset[int],
        gm: torch.fx.GraphModule,
    ) -> None:
        self._gm = gm
        self._outputs = program.outputs
        self._mutations = program.mutations
        self._draws = program.draws
        self._executable = executable
        self._on_cuda = device.type == "cuda"
        if executable is None:
            return
        self._device = executable.device
        self._execute = executable.execute
        constants = [import_tensor(t.to(device), self._device) for t in program.constants]
        self._template: list[Any] = [None] * len(program.inputs) + constants
        self._fresh: list[tuple[int, int, Any]] = []
        self._static: list[tuple[int, int, StaticInput]] = []
        for place, argument in enumerate(program.inputs):
            prepare = argument.layout.prepare
            if argument.index in static_inputs:
                slot = StaticInput(self._device, prepare)
                self._static.append((place, argument.index, slot))
            else:
                self._fresh.append((place, argument.index, prepare))
        self._finishers: list[Any] = [None] * program.results
        for output in [*self._outputs, *(m.output for m in self._mutations)]:
            if output.result is not None and output.layout is not None:
                self._finishers[output.result] = output.layout.finish
        self._plain = not self._mutations and [o.result for o in self._outputs] == list(
            range(program.results)
        )

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run on the graph's inputs; empties the list, so that they can be freed early."""
        results = self._run(args) if self._executable is not None else []
        if self._plain_outputs():
            args.clear()
            return results
        for mutation in self._mutations:
            self._write(args[mutation.index], self._value(mutation.output, results, args))
        outputs = [self._value(output, results, args) for output in self._outputs]
        args.clear()
        return outputs

    def _plain_outputs(self) -> bool:
        return self._executable is not None and self._plain

    def _run(self, args: list[Any]) -> list[torch.Tensor]:
        stream = torch.cuda.current_stream().cuda_stream if self._on_cuda else None
        device = self._device
        buffers = self._template.copy()
        for place, index, prepare in self._fresh:
            tensor = args[index]
            if prepare is not None:
                tensor = prepare(tensor)
            buffers[place] = buffer_from_dlpack(capsule_of(tensor), device, stream)
        for place, index, slot in self._static:
            tensor = args[index]
            buffers[place] = slot.buffers.get(tensor.data_ptr()) or slot.load(tensor, stream)
        if self._draws:
            buffers.append(self._seed(stream))
        try:
            rows = self._execute(buffers)
            exported = [tensor_of_capsule(dlpack_from_buffer(row[0], stream)) for row in rows]
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise self._explain(error) from error
        return [
            tensor if finish is None else finish(tensor)
            for tensor, finish in zip(exported, self._finishers, strict=True)
        ]

    def _seed(self, stream: int | None) -> Buffer:
        """A fresh seed from torch's default CPU generator, so that manual_seed repeats a run."""
        seed = torch.empty(1, dtype=torch.int64).random_().view(torch.uint64)
        if self._on_cuda:
            seed = seed.cuda()
        return import_tensor(seed, self._device, stream)

    @staticmethod
    def _value(output: Output, results: list[torch.Tensor], args: list[Any]) -> Any:
        if output.result is not None:
            return results[output.result]
        if output.input is not None:
            return args[output.input]
        return output.number

    @staticmethod
    def _write(target: torch.Tensor, value: torch.Tensor) -> None:
        with torch.no_grad():
            target.copy_(value)

    def _explain(self, error: Exception) -> ExecutionError:
        """An ExecutionError that names the line behind the graph's largest tensor."""
        nodes = [n for n in self._gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        computed = [n for n in nodes if n.op == "call_function"] or nodes

        def size(node: torch.fx.Node) -> int:
            value = node.meta["val"]
            return value.numel() * value.dtype.itemsize

        where = ""
        if computed:
            largest = max(computed, key=size)
            where = (
                f"\n  the largest tensor of this graph, {size(largest):,} bytes, is made"
                f"{describe(largest)}"
            )
        return ExecutionError(f"PJRT failed while running a compiled graph: {error}{where}")


__all__ = ["BoundProgram", "StaticInput", "export_buffer"]
