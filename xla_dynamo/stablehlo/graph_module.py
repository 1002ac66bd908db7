"""A StableHLO program with its weights: called with torch's tensors, saved to a folder, loaded."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any

import jaxlib.version
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.calls.calls import Call, bind
from xla_dynamo.calls.steps import steps_of
from xla_dynamo.programs.layouts import InputLayout
from xla_dynamo.programs.program import (
    Input,
    Mutation,
    NegativeZero,
    Output,
    Parameter,
    Program,
    Result,
    Seed,
    Slot,
)
from xla_dynamo.runtime.clients import placement_of
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.stablehlo.calls import leaves_of_call, made_outputs
from xla_dynamo.stablehlo.folders import (
    needs_safetensors,
    read_folder,
    stored_form,
    write_folder,
)
from xla_dynamo.stablehlo.modules import artifact_of, module_of, refined, text_of
from xla_dynamo.stablehlo.signature import (
    INPUT,
    NEGATIVE_ZERO,
    SEED,
    WEIGHT,
    Argument,
    Signature,
    sizes_of_call,
)

NAME = "exported program"  # which profiles show


class StableHLOGraphModule:
    """A program in StableHLO, its weights, and how both are called.

    `exported_program_to_stablehlo` makes one, and so does `load`. The name and the methods are
    those of `torch_xla.stablehlo.StableHLOGraphModule`.

    Attributes:
        signature: the shapes and dtypes that go in and come out, and how they are nested; `str`
            writes it in one line.
        weights: the parameters, buffers and constants that the program takes, by name. A call
            changes those that the model changes, as batch norm does in training.
    """

    def __init__(
        self, signature: Signature, module: bytes, weights: Mapping[str, torch.Tensor]
    ) -> None:
        """Take a signature, a portable artifact of StableHLO, and the weights that it names."""
        changed = {c.name for c in signature.changes if c.kind == WEIGHT}
        self.signature = signature
        self.weights = {
            name: _plain(weights[name]).clone() if name in changed else weights[name]
            for name in signature.weights()
        }
        self._artifact = module
        self._lock, self._changing = threading.Lock(), threading.Lock()
        self._calls: dict[tuple[int, ...], Call] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; the inputs are nested as those that the model was exported with.

        The first call, and the first with other sizes of the named dimensions, compiles it.

        Raises:
            TypeError: an input is no tensor, or has another dtype; the inputs are nested otherwise.
            ValueError: an input has another shape, or a constant another value.
        """
        signature = self.signature
        leaves = leaves_of_call(signature, args, kwargs, _dtype_of)
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in leaves]
        sizes = sizes_of_call(signature, shapes)
        call = self._call_at(sizes)
        given = [_plain(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        # One call at a time where each goes on from what the last one left.
        with self._changing if signature.changes else contextlib.nullcontext():
            results = call([*given, *self.weights.values()])
        for change in signature.changes:
            if change.kind == INPUT and _has_bits(leaves[int(change.name)]):
                leaves[int(change.name)].detach().copy_(given[int(change.name)])
        return made_outputs(signature, results, sizes)

    def get_stablehlo_text(self, method_name: str = "forward") -> str:
        """The module as text. Its one method is "forward".

        Operations that `torch.ops.xla.write_mlir_debuginfo` has noted have that behind them.

        Raises:
            ValueError: another method is asked for.
        """
        _check_method(method_name)
        return text_of(module_of(self._artifact))

    def get_stablehlo_bytecode(
        self, method_name: str = "forward", *, version: str | None = None
    ) -> bytes:
        """The module as a portable artifact of a StableHLO version as "1.4.0", or the newest.

        Readers of that version and of later ones read it, as the compatibility guarantees of
        StableHLO say (five years backward).

        Raises:
            ValueError: another method is asked for than "forward".
            StorageError: there is no such version, or it has not all operations of the program.
        """
        _check_method(method_name)
        if version is None or version == hlo.get_current_version():
            return self._artifact
        return artifact_of(module_of(self._artifact), version)

    def save(self, folder: str | os.PathLike[str], version: str | None = None) -> None:
        """Write the program to a folder: a signature as JSON, the module, the weights.

        Args:
            folder: a path; what was saved there before is replaced, anything else is an error.
            version: of StableHLO, as for `get_stablehlo_bytecode`.

        Raises:
            StorageError: see `get_stablehlo_bytecode`; the folder holds something else or cannot be
                written; safetensors is not installed.
        """
        needs_safetensors()
        versions = {
            "stablehlo": version or hlo.get_current_version(),
            "jaxlib": jaxlib.version.__version__,
            "torch": torch.__version__,
        }
        write_folder(
            folder,
            self.signature,
            self.get_stablehlo_bytecode(version=version),
            str(module_of(self._artifact)),
            versions,
            self._write_weights,
        )

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], device: torch.device | str = "cpu"
    ) -> "StableHLOGraphModule":
        """Read what `save` wrote. The classes of the model are not needed.

        Args:
            folder: the path.
            device: where the weights go, and so where the program runs.

        Raises:
            StorageError: the folder holds no exported program, or a damaged one.
        """
        contents = read_folder(folder)
        specs = contents.signature.weights()
        weights = {
            name: _tensor(array, specs[name].dtype).to(device)
            for name, array in contents.weights.items()
        }
        module_of(contents.module)  # raises now, and not at the first call
        return cls(contents.signature, contents.module, weights)

    def _write_weights(self, path: pathlib.Path) -> None:
        from safetensors.torch import save_file

        specs = self.signature.weights()
        stored = {}
        for name, tensor in self.weights.items():
            dtype, shape = stored_form(specs[name])
            plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            # A copy where tensors share their memory, which safetensors refuses.
            # Of one dimension: a number cannot be viewed as its two parts.
            plain = plain.reshape(-1).view(getattr(torch, dtype)).reshape(shape)
            stored[name] = plain.clone()
        save_file(stored, path)

    def _call_at(self, sizes: Mapping[str, int]) -> Call:
        key = tuple(sizes.values())
        with self._lock:
            if key not in self._calls:
                self._calls[key] = self._bound(sizes)
            return self._calls[key]

    def _bound(self, sizes: Mapping[str, int]) -> Call:
        """Compile the program for some sizes, and bind it to the inputs and the weights."""
        signature = self.signature
        module = module_of(self._artifact)
        if signature.dimensions:
            shapes = [
                [size.at(sizes) for size in argument.spec.shape] for argument in signature.arguments
            ]
            module = refined(module, shapes)
        numbers = {name: i for i, name in enumerate(self.weights, len(signature.inputs))}
        numbers_of_inputs = {str(i): i for i in range(len(signature.inputs))}

        def number_of(kind: str, name: str) -> int:
            return (numbers if kind == WEIGHT else numbers_of_inputs)[name]

        def slot_of(argument: Argument) -> Slot:
            if argument.kind == SEED:
                return Seed()
            if argument.kind == NEGATIVE_ZERO:
                return NegativeZero()
            kind = Parameter if argument.kind == WEIGHT else Input
            dims = tuple(range(len(argument.spec.shape)))
            index = number_of(argument.kind, argument.name)
            return kind(index, InputLayout(dims, is_dense=False))

        program = Program(
            module=module,
            arguments=tuple(map(slot_of, signature.arguments)),
            results=tuple(Result() for _ in signature.results),
            outputs=tuple(map(Output, range(len(signature.results)))),
            mutations=tuple(
                Mutation(number_of(c.kind, c.name), Output(c.result)) for c in signature.changes
            ),
        )
        placement = placement_of(self._device())
        steps = None
        if program.results:
            executable = Executable(module, placement)
            executable.note(NAME, {})
            steps = steps_of(program, executable, True, None)
        return bind(program, steps, placement, NAME)

    def _device(self) -> torch.device:
        devices = {weight.device for weight in self.weights.values()}
        return devices.pop() if len(devices) == 1 else torch.device("cpu")


def _has_bits(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are not those in its memory."""
    return tensor.is_conj() or tensor.is_neg()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that the program can read in memory; the same memory where that is possible."""
    return tensor.detach().resolve_conj().resolve_neg()


def _dtype_of(value: Any) -> str | None:
    """The name of the dtype of a tensor; None for something else."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else None


def _tensor(array: Any, dtype: str) -> torch.Tensor:
    if not array.size:
        return torch.empty(array.shape, dtype=getattr(torch, dtype))
    data = torch.from_numpy(array.reshape(-1).view("uint8"))
    return data.view(getattr(torch, dtype)).reshape(array.shape)


def _check_method(name: str) -> None:
    if name != "forward":
        raise ValueError(
            f"a StableHLOGraphModule has one method, 'forward', and was asked for {name!r}; a "
            "version of StableHLO is given by version="
        )
