"""A saved program, called with NumPy's arrays: in a process with jaxlib, and without torch."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from xla_dynamo.errors import ExecutionError
from xla_dynamo.runtime.clients import devices_of
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer, array_of_buffer, buffer_of_array
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.stablehlo.calls import leaves_of_call, made_outputs
from xla_dynamo.stablehlo.folders import read_folder
from xla_dynamo.stablehlo.modules import module_of, refined
from xla_dynamo.stablehlo.signature import (
    INPUT,
    SEED,
    WEIGHT,
    Argument,
    Signature,
    sizes_of_call,
)


class NumpyGraphModule:
    """A program that `StableHLOGraphModule.save` wrote; takes and returns NumPy's arrays.

    Attributes:
        signature: the shapes and dtypes that go in and come out, and how they are nested.
        weights: the program's own arrays, by name. A call changes those that the model changes.
    """

    def __init__(
        self, signature: Signature, module: bytes, weights: Mapping[str, np.ndarray], platform: str
    ) -> None:
        """Take what a folder holds, and the PJRT platform to run on."""
        self.signature, self.weights = signature, dict(weights)
        self._artifact = module
        device = devices_of(platform)[0]
        self._placement = Placement(None, (device,), shares_memory=False)  # type: ignore[arg-type]
        self._random = np.random.default_rng()
        self._lock = threading.Lock()
        self._executables: dict[tuple[int, ...], Executable] = {}
        self._buffers = {name: self._buffer(array) for name, array in self.weights.items()}

    @classmethod
    def load(cls, folder: str | os.PathLike[str], platform: str = "cpu") -> "NumpyGraphModule":
        """Read a folder; the program runs on the first device of a PJRT platform.

        Raises:
            StorageError: the folder holds no exported program, or a damaged one.
            RuntimeError: there is no PJRT plugin for the platform.
        """
        contents = read_folder(folder)
        module_of(contents.module)  # raises now, and not at the first call
        return cls(contents.signature, contents.module, contents.weights, platform)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; the inputs are nested as those that the model was exported with.

        Raises:
            TypeError: an input is no array, or has another dtype; the inputs are nested otherwise.
            ValueError: an input has another shape, or a constant another value; an input that the
                program changes cannot be written into.
            ExecutionError: PJRT failed.
        """
        leaves = leaves_of_call(self.signature, args, kwargs, _dtype_of)
        shapes = [x.shape if isinstance(x, np.ndarray | np.generic) else None for x in leaves]
        sizes = sizes_of_call(self.signature, shapes)
        self._check_changes(leaves)
        with self._lock:
            results = self._run(leaves, sizes)
            for change in self.signature.changes:
                value = results[change.result]
                if change.kind == WEIGHT:
                    self.weights[change.name] = value
                    self._buffers[change.name] = self._buffer(value)
                else:
                    leaves[int(change.name)][...] = value
        return made_outputs(self.signature, results, sizes)

    def manual_seed(self, seed: int) -> None:
        """Let the random numbers of the calls that follow be those of this seed."""
        self._random = np.random.default_rng(seed)

    def _check_changes(self, leaves: Sequence[Any]) -> None:
        """Raise ValueError, before anything changes, for an input that cannot be written into."""
        for change in self.signature.changes:
            if change.kind == WEIGHT:
                continue
            given = leaves[int(change.name)]
            if not isinstance(given, np.ndarray) or not given.flags.writeable:
                raise ValueError(
                    f"{self.signature.input_tree.path(int(change.name))} cannot be written into, "
                    "and the program changes it: pass an array of your own (array.copy())"
                )

    def _run(self, leaves: Sequence[Any], sizes: Mapping[str, int]) -> list[np.ndarray]:
        if not self.signature.results:
            return []
        executable = self._executable(sizes)
        buffers = [self._argument(argument, leaves) for argument in self.signature.arguments]
        try:
            return [array_of_buffer(buffer) for (buffer,) in executable.execute(buffers)]
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise ExecutionError(
                f"PJRT failed while it ran an exported program: {error}"
            ) from error

    def _argument(self, argument: Argument, leaves: Sequence[Any]) -> Buffer:
        if argument.kind == WEIGHT:
            return self._buffers[argument.name]
        if argument.kind == INPUT:
            return self._buffer(np.asarray(leaves[int(argument.name)]))
        if argument.kind == SEED:
            return self._buffer(self._random.integers(0, 2**64, 1, np.uint64))
        return self._buffer(np.float32(-0.0))

    def _buffer(self, array: Any) -> Buffer:
        return buffer_of_array(np.asarray(array), self._placement.device)

    def _executable(self, sizes: Mapping[str, int]) -> Executable:
        key = tuple(sizes.values())
        if key not in self._executables:
            module = module_of(self._artifact)
            if self.signature.dimensions:
                shapes = [
                    [size.at(sizes) for size in argument.spec.shape]
                    for argument in self.signature.arguments
                ]
                module = refined(module, shapes)
            self._executables[key] = Executable(module, self._placement)
        return self._executables[key]


def _dtype_of(value: Any) -> str | None:
    """The name of the dtype of an array; None for something else."""
    return str(value.dtype) if isinstance(value, np.ndarray | np.generic) else None
