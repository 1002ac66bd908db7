"""A program bound to an executable: what happens at every call, and nothing else."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import torch
from torch.autograd import forward_ad

from xla_dynamo.errors import ExecutionError
from xla_dynamo.execution.donated_inputs import DonatedInputs
from xla_dynamo.execution.frozen_inputs import FrozenValues
from xla_dynamo.execution.known_buffers import KnownBuffers, StaticInputs
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.programs.layouts import restrided
from xla_dynamo.programs.program import Constant, Output, Program, Strides
from xla_dynamo.runtime import forks
from xla_dynamo.runtime.buffers import export_buffer, import_tensor
from xla_dynamo.runtime.cpu.deferred_signals import after_signals
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address
from xla_dynamo.torch_private import in_forward_mode, mark_boxed

Call = Callable[[list[Any]], list[Any]]


class BoxedGraph:
    """A graph that runs.

    Attributes:
        call: runs the graph, in AOTAutograd's boxed convention: takes a list, and empties it.
        chosen_strides: those of results, by number, that come in others than were traced.
    """

    def __init__(self, call: Call, chosen_strides: Strides = MappingProxyType({})) -> None:
        self.call, self.chosen_strides = call, chosen_strides
        # The mark of the boxed convention. On the function, since the wrapper that Dynamo puts
        # around a backward graph copies its __dict__.
        mark_boxed(self.call)

    def __call__(self, *args: Any) -> list[Any]:
        """Run the graph on its inputs."""
        return self.call(list(args))


def bind(
    program: Program,
    executable: Executable | None,
    device: torch.device,
    values: Mapping[torch.fx.Node, Any],
    *,
    keeps_inputs: bool = True,
    frozen: FrozenValues | None = None,
) -> Call:
    """The callable of a program, in AOTAutograd's boxed convention.

    It takes the graph's inputs in a list, which it empties so that they can be freed early, and
    returns the graph's outputs. `executable` is None for a program that computes nothing; `values`
    are the fake values of the graph's nodes, for messages; `frozen` has the values that the program
    asks for in `Program.frozen`. The callable raises ExecutionError when
    PJRT fails, out of memory say.
    """
    run: Call = _nothing
    if executable is not None:
        run = _runner(program, executable, device, values, keeps_inputs, frozen)
    mutations, outputs, effects = program.mutations, program.outputs, program.effects
    as_they_come = [o.result for o in outputs if o.view is None] == list(range(len(outputs)))
    if as_they_come and outputs and not mutations and not effects:
        return run

    used = [*outputs, *(m.output for m in mutations)]
    used += [a for e in effects for a in (*e.args, *e.kwargs.values())]
    needed = {m.index for m in mutations} | {o.input for o in used if o.input is not None}

    def call(args: list[Any]) -> list[Any]:
        inputs = {index: args[index] for index in needed}
        results = run(args)
        for effect in effects:
            checked = [_value(a, results, inputs) for a in effect.args]
            named = {k: _value(a, results, inputs) for k, a in effect.kwargs.items()}
            effect.op(*checked, **named)
        for mutation in mutations:
            with torch.no_grad():
                inputs[mutation.index].copy_(_value(mutation.output, results, inputs))
        return [_value(output, results, inputs) for output in outputs]

    return call


def _nothing(args: list[Any]) -> list[Any]:
    args.clear()
    return []


def _value(output: Output, results: list[torch.Tensor], inputs: dict[int, Any]) -> Any:
    if output.result is not None:
        base = results[output.result]
        return base if output.view is None else restrided(base, *output.view)
    if output.input is not None:
        tensor = inputs[output.input]
        return tensor if output.replay is None else output.replay(tensor)
    return output.number


def _runner(
    program: Program,
    executable: Executable,
    device: torch.device,
    values: Mapping[torch.fx.Node, Any],
    keeps_inputs: bool,
    frozen_values: FrozenValues | None,
) -> Call:
    """From the graph's inputs to the program's results: one frame, since every µs counts here."""
    pjrt_device, execute = executable.device, executable.execute
    if program.calls_torch:
        execute = after_signals(execute)
    fresh = [
        (a.index, KnownBuffers(pjrt_device, a.layout.prepare, keeps=keeps_inputs))
        for a in program.inputs
    ]
    indices = [argument.index for argument in program.static_inputs]
    prepare = [argument.layout.prepare for argument in program.static_inputs]
    static = StaticInputs(pjrt_device, indices, prepare) if indices else None
    read = [argument.index for argument in (*program.inputs, *program.static_inputs)]
    donated = None
    if program.donations:
        held = [constant.tensor for constant in program.constants]
        donated = DonatedInputs(pjrt_device, program.donations, read, held)
    constants = _constants(program, device, pjrt_device) if program.constants else None
    frozen = None
    if program.frozen is not None and frozen_values is not None:
        frozen = frozen_values.of(program.frozen.keys)
    draws, cuda = program.draws, device.type == "cuda"
    finishers = list(program.finishers.items())

    def run(args: list[Any]) -> list[torch.Tensor]:
        if forks.forked:
            raise ExecutionError(forks.MESSAGE)
        if in_forward_mode():
            _refuse_tangents(args)
        stream = torch.cuda.current_stream(device).cuda_stream if cuda else None
        changing: list[torch.Tensor] = []
        buffers: list[Buffer] = []
        if donated is not None:
            changing, buffers = donated.buffers(args, stream)
        for index, known in fresh:
            tensor = args[index]
            if cuda and tensor.device != device:  # a 0-d CPU tensor among others
                tensor = tensor.to(device)
            address = tensor.data_ptr()
            buffer = known.by_address.get(address)
            if buffer is None:
                buffer = known.load_if_it_comes_again(tensor, address, stream)
            buffers.append(buffer)
        if static is not None:
            buffers += static.buffers(args, stream)
        if constants is not None:
            buffers += constants()
        if frozen is not None:
            buffers += frozen(args, stream)
        if draws:
            buffers.append(_seed(device, pjrt_device, stream))
        args.clear()
        results = []
        try:
            for (buffer,) in execute(buffers):
                results.append(export_buffer(buffer, stream))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise _explain(error, values) from error
        if donated is not None:
            first = len(results) - len(changing)
            donated.write_back(changing, results[first:])
            del results[first:]
        for index, finish in finishers:
            results[index] = finish(results[index])
        return results

    return run


def _constants(
    program: Program, device: torch.device, pjrt_device: jax.Device
) -> Callable[[], list[Buffer]]:
    """The buffers of the graph's own tensors: views of their memory, else copied at each call."""

    def load(constant: Constant) -> Buffer:
        return import_tensor(constant.tensor.to(device).contiguous(), pjrt_device)

    def is_copy(constant: Constant, buffer: Buffer) -> bool:
        return buffer_address(buffer) != constant.tensor.data_ptr() and not constant.is_literal

    buffers = [load(constant) for constant in program.constants]
    pairs = enumerate(zip(program.constants, buffers, strict=True))
    copied = [(index, c) for index, (c, buffer) in pairs if is_copy(c, buffer)]
    if not copied:
        return lambda: buffers

    def refreshed() -> list[Buffer]:
        again = list(buffers)
        for index, constant in copied:
            again[index] = load(constant)
        return again

    return refreshed


def _refuse_tangents(args: list[Any]) -> None:
    """Nothing on this road carries forward-mode tangents: better an error than losing them."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and forward_ad.unpack_dual(arg).tangent is not None:
            raise ExecutionError(
                "a compiled graph was called with a dual tensor: forward-mode derivatives do not "
                "pass through it; use torch.func.jvp inside the compiled function"
            )


_seeds = threading.local()


@contextlib.contextmanager
def seeds_from(generator: torch.Generator) -> Iterator[None]:
    """Let this thread's calls take their seeds from another generator than torch's default one."""
    before = getattr(_seeds, "generator", None)
    _seeds.generator = generator
    try:
        yield
    finally:
        _seeds.generator = before


def _seed(device: torch.device, pjrt_device: jax.Device, stream: int | None) -> Buffer:
    """A fresh seed from torch's default CPU generator, so that manual_seed repeats a run."""
    seed = torch.empty(1, dtype=torch.int64, device="cpu")
    seed = seed.random_(generator=getattr(_seeds, "generator", None)).view(torch.uint64)
    return import_tensor(seed.to(device), pjrt_device, stream)


def _explain(error: Exception, values: Mapping[torch.fx.Node, Any]) -> ExecutionError:
    """An ExecutionError that names the line behind the graph's largest tensor."""

    def size(node: torch.fx.Node) -> int:
        return int(values[node].numel()) * values[node].dtype.itemsize

    tensors = [n for n, value in values.items() if isinstance(value, torch.Tensor)]
    computed = [n for n in tensors if n.op == "call_function"] or tensors
    where = ""
    if computed:
        largest = max(computed, key=size)
        where = (
            f"\n  The largest tensor of this graph ({size(largest):,} bytes) is made"
            f"{describe(largest)}"
        )
    return ExecutionError(f"PJRT failed while running a compiled graph: {error}{where}")
