"""Names of `torch_xla._internal.pjrt` that start processes and return what functions returned."""

import functools
import pathlib
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import xla_dynamo


def run_multiprocess(
    fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any
) -> dict[int, Any]:
    """Call a function in the processes that `torch_xla.launch` starts: one for each GPU, or one.

    Args:
        fn: the function. Where there are several processes, it, its arguments and what it returns
            must pickle.
        args: what it is called with.
        start_method: as for `launch`.
        kwargs: what it is called with by keyword.

    Returns:
        What it returned, by rank. In a process that a launcher has started, that is its own result
        alone.

    Raises:
        OptionError, ProcessRaisedException, ProcessExitedException: as `launch`.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = functools.partial(fn, *args, **kwargs)
        xla_dynamo.launch(_keep, (folder, call), start_method=start_method)
        files = sorted(pathlib.Path(folder).iterdir(), key=lambda file: int(file.name))
        return {int(file.name): pickle.loads(file.read_bytes()) for file in files}


def _keep(index: int, folder: str, call: Callable[[], Any]) -> None:
    result = pickle.dumps(call())
    (pathlib.Path(folder) / str(xla_dynamo.get_ordinal())).write_bytes(result)


def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Call `fn(0, *args)`: a process has one device, so it is one thread, this one."""
    xla_dynamo.launch(fn, args, nprocs=1)
