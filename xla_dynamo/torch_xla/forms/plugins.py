"""Names of `torch_xla.experimental.plugins`: PJRT plugins, of which JAX is told."""

import importlib.metadata
import json
import os
import tempfile
from typing import Any

import xla_dynamo
from xla_dynamo.errors import OptionError
from xla_dynamo.process_state import kept
from xla_dynamo.runtime.clients import has_clients
from xla_dynamo.switches.others import PLUGINS
from xla_dynamo.switches.pytorch_xla import DYNAMIC_PLUGINS

_GROUP = "torch_xla.plugins"


class DevicePlugin:
    """What a vendor tells of a PJRT plugin; a subclass says at least where its library is.

    JAX makes the client, one for each process. Processes are started by `torch_xla.launch`, with
    their number and topology as `nprocs` and the environment say.
    """

    def library_path(self) -> str:
        """The path of the plugin's library.

        Raises:
            NotImplementedError: the subclass does not say it.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method library_path")

    def host_index(self) -> int:
        """The number of this host."""
        return 0

    def configure_single_process(self) -> None:
        """Prepare a process that is alone; a subclass may."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Prepare a process of several on this host; a subclass may."""

    def physical_chip_count(self) -> int:
        """The number of chips of this host."""
        return 1

    def client_create_options(self) -> dict[str, Any]:
        """What the plugin's client is made with: strings, numbers, and lists of integers."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Whether processes meet before the client is made: they do in any case."""
        return False


class _Registered:
    def __init__(self) -> None:
        self.plugins: dict[str, DevicePlugin] = {}


_registered = kept(_Registered)


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """Tell JAX of a plugin; PJRT_DEVICE or `runtime.set_device_type` then choose it.

    Args:
        name: what PJRT_DEVICE calls its platform.
        device_plugin: tells where its library is.

    Raises:
        OptionError: XLA was used in this process before, or there is no such library.
    """
    path, options = device_plugin.library_path(), device_plugin.client_create_options()
    if has_clients():
        raise OptionError(
            f"plugin {name!r} comes too late: XLA was used in this process; register it before "
            "tensors or devices are asked for"
        )
    if not os.path.exists(path):
        raise OptionError(f"there is no library {path!r}, where plugin {name!r} should be")
    if options:
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump({"library_path": path, "create_options": options}, file)
        path = file.name
    known = PLUGINS.get()  # JAX reads it when it makes its first client
    PLUGINS.put(",".join([*([known] if known else []), f"{name.lower()}:{path}"]))
    _registered.plugins[name.upper()] = device_plugin


def register_installed_plugins() -> None:
    """Register the plugins of installed packages, those of the entry points "torch_xla.plugins"."""
    for entry in importlib.metadata.entry_points(group=_GROUP):
        register_plugin(entry.name, entry.load()())


def default() -> DevicePlugin:
    """The plugin of the platform that is used by default.

    Raises:
        OptionError: it was not registered.
    """
    name = xla_dynamo.runtime.device_type()
    if name not in _registered.plugins:
        known = ", ".join(sorted(_registered.plugins)) or "none"
        raise OptionError(f"no plugin is registered for {name!r}; these are: {known}")
    return _registered.plugins[name]


def use_dynamic_plugins() -> None:
    """Say that the default platform is a registered plugin's.

    Raises:
        RuntimeError: XLA was used in this process before.
    """
    if has_clients() and not DYNAMIC_PLUGINS.get():
        raise RuntimeError("use_dynamic_plugins comes too late: XLA was used in this process")
    DYNAMIC_PLUGINS.put("1")


def using_dynamic_plugins() -> bool:
    """Whether `use_dynamic_plugins` was called, and the default platform is not the CPU."""
    return DYNAMIC_PLUGINS.get() and xla_dynamo.runtime.device_type() != "CPU"
