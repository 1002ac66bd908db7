"""The folder of an exported program: written so that a part never stands for the whole, and read.

`signature.json` has the signature, and a checksum of each other file; `module.mlirbc` is the
program as a portable artifact of StableHLO; `module.mlir` is the same as text, for people;
`weights.safetensors` has the tensors. Reading a folder runs no code from it and unpickles nothing.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xla_dynamo.errors import StorageError
from xla_dynamo.stablehlo.signature import Signature, TensorSpec

FORMAT = 1
_KIND = "xla_dynamo.stablehlo"
SIGNATURE, MODULE, TEXT = "signature.json", "module.mlirbc", "module.mlir"
WEIGHTS = "weights.safetensors"


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What a folder holds.

    Attributes:
        signature: the signature.
        module: the portable artifact.
        weights: the arrays, by name; each may be written into.
    """

    signature: Signature
    module: bytes
    weights: Mapping[str, np.ndarray]


def write_folder(
    folder: str | os.PathLike[str],
    signature: Signature,
    module: bytes,
    text: str,
    versions: Mapping[str, str],
    write_weights: Callable[[pathlib.Path], None],
) -> None:
    """Write a program to a folder, which appears when it is complete.

    Raises:
        StorageError: the folder exists and holds something else, or cannot be written.
    """
    # The folder itself, of a link or of "."; it is replaced in its place.
    folder = pathlib.Path(folder).resolve()
    if folder.exists() and not (folder.is_dir() and _is_ours(folder)):
        raise StorageError(
            f"{folder} exists and holds no exported program, or other files too, so it is not "
            "overwritten: choose another folder, or remove it"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}") from error
    try:
        made.chmod(0o777 & ~_umask())
        (made / MODULE).write_bytes(module)
        (made / TEXT).write_text(text)
        write_weights(made / WEIGHTS)
        (made / WEIGHTS).chmod(0o666 & ~_umask())  # safetensors makes it the owner's alone
        checksums = {name: _checksum(made / name) for name in (MODULE, WEIGHTS)}
        described = {
            "kind": _KIND,
            "format": FORMAT,
            "versions": dict(versions),
            "sha256": {**checksums, "signature": _checksum_of(signature)},
            "signature": signature.to_json(),
        }
        (made / SIGNATURE).write_text(json.dumps(described, indent=1))
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def read_folder(folder: str | os.PathLike[str]) -> Contents:
    """Read what `write_folder` wrote.

    Raises:
        StorageError: the folder holds no exported program, or a damaged one, or one of another
            format.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir() or not (folder / SIGNATURE).is_file():
        raise StorageError(
            f"{folder} holds no exported program: it has no {SIGNATURE}, which "
            "StableHLOGraphModule.save writes"
        )
    try:
        described = json.loads((folder / SIGNATURE).read_text())
        if not isinstance(described, dict) or described.get("kind") != _KIND:
            raise StorageError(f"{folder / SIGNATURE} is not of an exported program of xla_dynamo")
        if described["format"] != FORMAT:
            raise StorageError(
                f"{folder} holds a program of format {described['format']!r}, and this version of "
                f"xla_dynamo reads format {FORMAT}: export it again"
            )
        checksums = _wanted(described["sha256"])
        signature = Signature.from_json(described["signature"])
        found = {name: _checksum(folder / name) for name in (MODULE, WEIGHTS)}
        found["signature"] = _checksum_of(signature)
        for name, checksum in found.items():
            if checksums[name] != checksum:
                damaged = folder / (SIGNATURE if name == "signature" else name)
                raise StorageError(
                    f"{damaged} is damaged: its checksum is not the one in {SIGNATURE}; copy the "
                    "folder again, or export the program again"
                )
        weights = _weights(folder / WEIGHTS, signature.weights())
        return Contents(signature, (folder / MODULE).read_bytes(), weights)
    except StorageError:
        raise
    except Exception as error:  # whatever a damaged file may cause in what reads it
        raise StorageError(
            f"{folder} holds no exported program that can be read ({type(error).__name__}: "
            f"{error}): copy the folder again, or export the program again"
        ) from error


def dtype_of(name: str) -> np.dtype:
    """NumPy's dtype of a name, those of ml_dtypes included ("bfloat16")."""
    import ml_dtypes  # jax brings it

    return np.dtype(getattr(ml_dtypes, name, None) or name)


def stored_form(spec: TensorSpec) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape that a weight has in its file, which has no complex128."""
    shape = tuple(size.at({}) for size in spec.shape)
    return ("float64", (*shape, 2)) if spec.dtype == "complex128" else (spec.dtype, shape)


def _weights(path: pathlib.Path, specs: Mapping[str, TensorSpec]) -> dict[str, np.ndarray]:
    found = dict(needs_safetensors().deserialize(path.read_bytes()))
    weights = {}
    for name, spec in specs.items():
        shape = tuple(size.at({}) for size in spec.shape)
        array = np.frombuffer(bytearray(found[name]["data"]), dtype_of(spec.dtype))
        weights[name] = array.reshape(shape)
    return weights


def needs_safetensors() -> Any:
    """The library that reads and writes weights.

    Raises:
        StorageError: it is not installed.
    """
    try:
        import safetensors
    except ImportError as error:
        raise StorageError(
            "weights are stored by safetensors, which is not installed: "
            "pip install 'xla-dynamo[export]'"
        ) from error
    return safetensors


def _wanted(given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or set(given) != {MODULE, WEIGHTS, "signature"}:
        raise ValueError("it has not the checksums of its files")
    return given


def _is_ours(folder: pathlib.Path) -> bool:
    """Whether a folder has an exported program and nothing else, or nothing at all."""
    names = {path.name for path in folder.iterdir()}
    try:
        is_ours = json.loads((folder / SIGNATURE).read_text())["kind"] == _KIND
        return is_ours and names <= {SIGNATURE, MODULE, TEXT, WEIGHTS}
    except (OSError, ValueError, KeyError, TypeError):
        return not names


def _checksum(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum_of(signature: Signature) -> str:
    text = json.dumps(signature.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
