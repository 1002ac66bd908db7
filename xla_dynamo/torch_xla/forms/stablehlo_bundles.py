"""Bundles of StableHLO functions and weights, and the folders in which PyTorch/XLA has them.

A folder has `functions/NAME.meta` (JSON), `functions/NAME.bytecode` (a portable artifact) and
`functions/NAME.mlir` (text); `data/` with a file of NumPy's for each weight, and `constants/` with
one for each further constant, by its number.
"""

import dataclasses
import enum
import json
import os
import pathlib
from typing import Any

import numpy as np

from xla_dynamo.errors import StorageError


class VariableType(enum.Enum):
    """Where an argument of a function comes from."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclasses.dataclass
class VariableSignature:
    """The form of an argument or a result.

    Attributes:
        shape: the sizes.
        dtype: torch's name of the dtype, as "float32".
        dynamic_dims: dimensions that may have another size in each call.
    """

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class InputLocation:
    """Where an argument comes from.

    Attributes:
        type_: a user's input, a weight, or a further constant.
        position: the number of the input or constant.
        name: of the weight.
    """

    type_: VariableType
    position: int = -1
    name: str = ""

    @classmethod
    def parameter(cls, name: str) -> "InputLocation":
        """A weight."""
        return cls(VariableType.PARAMETER, name=name)

    @classmethod
    def input_arg(cls, position: int) -> "InputLocation":
        """A leaf of the user's inputs."""
        return cls(VariableType.INPUT_ARG, position=position)

    @classmethod
    def constant(cls, position: int) -> "InputLocation":
        """A constant that is no weight."""
        return cls(VariableType.CONSTANT, position=position)


@dataclasses.dataclass
class StableHLOFunctionMeta:
    """How a function is called.

    Attributes:
        name: of the function.
        stablehlo_version: the version of the artifact.
        input_signature: the form of each argument of `main`.
        output_signature: the form of each result.
        input_locations: where each argument comes from.
        unused_inputs: the user's inputs that are no arguments, with their forms.
        input_pytree_spec, output_pytree_spec: how inputs and outputs are nested, as torch writes
            trees.
    """

    name: str
    stablehlo_version: str
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    unused_inputs: list[tuple[InputLocation, VariableSignature]]
    input_pytree_spec: str | None = None
    output_pytree_spec: str | None = None


@dataclasses.dataclass
class StableHLOFunc:
    """A function.

    Attributes:
        meta: how it is called.
        bytecode: a portable artifact of StableHLO.
        text: the same for people, or None.
    """

    meta: StableHLOFunctionMeta
    bytecode: bytes
    text: str | None


@dataclasses.dataclass
class StableHLOModelBundle:
    """Functions of one model, and its weights.

    Attributes:
        state_dict: the weights, as NumPy's arrays, by name.
        additional_constants: further constants.
        stablehlo_funcs: the functions.
    """

    state_dict: dict[str, Any]
    additional_constants: list[np.ndarray]
    stablehlo_funcs: list[StableHLOFunc]


class StableHLOJSONSerializer(json.JSONEncoder):
    """Writes the classes of this file as JSON."""

    def default(self, obj: Any) -> Any:
        """An instance as a dictionary, a kind of an argument as its text."""
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return dataclasses.asdict(obj)
        return obj.value if isinstance(obj, VariableType) else super().default(obj)


_CLASSES = (StableHLOFunctionMeta, StableHLOFunc, VariableSignature, InputLocation)


def stablehlo_obj_hook(dct: dict[str, Any]) -> Any:
    """The instance that an object of JSON is, by the names of its fields; else the dictionary."""
    for cls in _CLASSES:
        if {field.name for field in dataclasses.fields(cls)} == dct.keys():
            if cls is InputLocation:
                dct = {**dct, "type_": VariableType(dct["type_"])}
            return cls(**dct)
    return dct


def write_bundle(
    bundle: StableHLOModelBundle, folder: str | os.PathLike[str], with_weights: bool = True
) -> None:
    """Write a bundle to a folder, which is made if need be.

    Raises:
        StorageError: it cannot be written, or a weight's name is none for a file.
    """
    folder = pathlib.Path(folder)
    for name in bundle.state_dict:
        if os.path.basename(name) != name or name in (".", ".."):
            raise StorageError(f"{name!r} is no name for a file: rename the weight")
    try:
        functions, constants = folder / "functions", folder / "constants"
        for one in (functions, constants, *([folder / "data"] if with_weights else [])):
            one.mkdir(parents=True, exist_ok=True)
        for function in bundle.stablehlo_funcs:
            told = json.dumps(function.meta, cls=StableHLOJSONSerializer)
            name = function.meta.name
            (functions / f"{name}.meta").write_text(told)
            (functions / f"{name}.bytecode").write_bytes(function.bytecode)
            if function.text is not None:
                (functions / f"{name}.mlir").write_text(function.text)
        for number, constant in enumerate(bundle.additional_constants):
            _write(constants / str(number), constant)
        for name, weight in bundle.state_dict.items() if with_weights else ():
            _write(folder / "data" / name, weight)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}") from error


def _write(path: pathlib.Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def is_bundle(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has a bundle."""
    return (pathlib.Path(folder) / "functions").is_dir()


def read_bundle(folder: str | os.PathLike[str]) -> StableHLOModelBundle:
    """Read what `write_bundle` or PyTorch/XLA wrote.

    Raises:
        StorageError: the folder has no bundle that can be read.
    """
    folder = pathlib.Path(folder)
    try:
        metas = sorted((folder / "functions").glob("*.meta"))
        functions = [_function(path) for path in metas]
        constants = sorted((folder / "constants").glob("*"), key=lambda path: int(path.name))
        weights = (folder / "data").glob("*")
        found = StableHLOModelBundle(
            {path.name: np.load(path, allow_pickle=False) for path in weights},
            [np.load(path, allow_pickle=False) for path in constants],
            functions,
        )
    except Exception as error:  # whatever a damaged file may cause in what reads it
        raise StorageError(
            f"{folder} has no functions of StableHLO that can be read "
            f"({type(error).__name__}: {error})"
        ) from error
    if not functions:
        raise StorageError(f"{folder} has no functions of StableHLO: no functions/*.meta")
    return found


def _function(path: pathlib.Path) -> StableHLOFunc:
    meta = json.loads(path.read_text(), object_hook=stablehlo_obj_hook)
    if not isinstance(meta, StableHLOFunctionMeta):
        raise ValueError(f"{path} is not how a function is called")
    meta.unused_inputs = [(location, form) for location, form in meta.unused_inputs]
    text = path.with_suffix(".mlir")
    told = text.read_text() if text.exists() else None
    return StableHLOFunc(meta, path.with_suffix(".bytecode").read_bytes(), told)
