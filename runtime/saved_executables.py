"""Executables of PJRT in the disk cache: what their key is made of, and which are left out."""

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jaxlib.version
from jax.extend.mlir import ir

from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.runtime.cache_settings import disk_cache
from xla_dynamo.runtime.cpu import foreign_calls, script_layout
from xla_dynamo.runtime.cpu.features import processor
from xla_dynamo.runtime.jaxlib_private import (
    LoadedExecutable,
    compile_options,
    load_executable,
    serialize_executable,
)
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.switches.others import XLA_FLAGS

log = logging.getLogger("xla_dynamo")
KIND = "executable"

# What a saved executable may call. Others may have addresses of this process in their
# configuration. XLA:CPU cannot write its calls of oneDNN: it takes each for a call of another kind,
# and reads beyond it (thunk_proto_serdes.cc, jaxlib 0.10.2).
_CALLS = re.compile(
    rf"{re.escape(foreign_calls.TARGET)}|{re.escape(script_layout.TARGET)}|lapack_\w+|cu(solver|blas|fft|dnn)\w*|cub_\w+|hipsolver_\w+|mhlo\.\w+"
    r"|chlo\.\w+|stablehlo\.\w+|Sharding|SPMDFullToShardShape|SPMDShardToFullShape|TopK"
    r"|annotate_device_placement|xla\.sdy\.\w+"
)
_CALLED = re.compile(r"custom_call @(\"[^\"]*\"|[\w$.]+)|call_target_name = (\"[^\"]*\")")
_PLUGINS = {
    "cuda": ("jax-cuda12-pjrt", "jax-cuda13-pjrt"),
    "tpu": ("libtpu",),
}
# Options by which XLA writes what it does to files, which it does only where it compiles.
_DUMPS = "xla_dump"


class SavedExecutable:
    """The place of an executable in the disk cache.

    Attributes:
        key: the name of its entry.
    """

    def __init__(self, folder: CacheFolder, key: str, options: Any, placement: Placement) -> None:
        """Take the key, and the options that the executable is compiled with."""
        self.key, self._folder = key, folder
        self._options, self._devices = options, placement.replicas or placement.devices

    def load(self) -> LoadedExecutable | None:
        """The executable, ready to run; None if it is not there."""
        payload = self._folder.read(KIND, self.key)
        if payload is None:
            metrics.increment("PersistentCacheMiss")
            return None
        try:
            loaded = load_executable(payload, self._devices, self._options)
        except (jax.errors.JaxRuntimeError, ValueError, TypeError, MemoryError) as error:
            metrics.increment("PersistentCacheDeserializeFailure")
            metrics.increment("PersistentCacheMiss")
            log.warning("disk cache: an executable cannot be loaded: %s", error)
            return None
        metrics.increment("PersistentCacheHit")
        return loaded

    def save(self, loaded: LoadedExecutable) -> None:
        """Write the executable, if the platform can."""
        if self._folder.readonly:
            return
        try:
            payload = serialize_executable(loaded, self._devices)
        except (jax.errors.JaxRuntimeError, ValueError, MemoryError) as error:
            log.info("disk cache: PJRT cannot save an executable: %s", error)
            return
        self._folder.write(KIND, self.key, payload)


def digest_of_module(module: ir.Module) -> str:
    """A digest of a module's text, in which the user's lines make no difference."""
    return digest([module.operation.get_asm(enable_debug_info=False)])


def saved_executable(
    module: ir.Module, placement: Placement, options: Mapping[str, Any], written_as: str = ""
) -> SavedExecutable | None:
    """The place of the executable of a module; None if there is to be none.

    Args:
        module: the program.
        placement: where it runs.
        options: XLA's debug options, the defaults included.
        written_as: the module's digest, if it was read from a file and had another text before.
    """
    folder, cpu = disk_cache(), processor()
    if folder is None or cpu is None:
        return None
    # Without the overrides, which come in no certain order, and with what XLA_FLAGS said.
    base = compile_options({}, placement.devices, placement.replicas).SerializeAsString()
    if _DUMPS in "".join(options) or _DUMPS in XLA_FLAGS.get():
        return None
    text = module.operation.get_asm(enable_debug_info=False)
    if others := calls_left_out(text):
        log.info("disk cache: no place for an executable that calls %s", ", ".join(others))
        return None
    first = placement.devices[0]
    parts = [
        KIND,
        *_versions(placement.platform),
        placement.platform,
        first.client.platform_version,
        str(first.client.device_count()),
        *(device.device_kind for device in placement.devices),
        cpu,
        *(f"{name}={type(v).__name__}:{v!r}" for name, v in sorted(options.items())),
        base,
        written_as or digest([text]),
    ]
    key = digest(parts)
    given = compile_options(options, placement.devices, placement.replicas)
    return SavedExecutable(folder, key, given, placement)


def calls_left_out(text: str) -> list[str]:
    """The targets of custom calls in a module's text that keep it out of the cache."""
    found = {(plain or generic).strip('"') for plain, generic in _CALLED.findall(text)}
    return sorted(name for name in found if not _CALLS.fullmatch(name))


def digest(parts: Sequence[str | bytes]) -> str:
    """The SHA-256 of parts, each with its length, so that no two lists have the same bytes."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


@functools.cache
def _versions(platform: str) -> tuple[str, ...]:
    """Those of the libraries whose code is in an executable, or decides what is."""
    found = [jaxlib.version.__version__, jax.__version__]
    for name in _PLUGINS.get(platform, ()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return tuple(found)
