"""Run a script of PyTorch/XLA: `python -m xla_dynamo.torch_xla [-m module | script.py] ...`."""

import os
import pathlib
import runpy
import sys

from xla_dynamo.switches.others import PYTHONPATH
from xla_dynamo.torch_xla.modules import install

_USAGE = "usage: python -m xla_dynamo.torch_xla (script.py | -m module) [arguments of the script]"


def main() -> None:
    """Install PyTorch/XLA's names, and run the script as Python itself would."""
    given = sys.argv[1:]
    is_module = given[:1] == ["-m"]
    given = given[is_module:]
    if not given or given[0] in ("-h", "--help"):
        sys.exit(f"{__doc__}\n\n{_USAGE}")
    install()
    _let_others_find_it()
    sys.argv = given
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(given[0], run_name="__main__", alter_sys=True)
    else:
        if not os.path.exists(given[0]):
            sys.exit(f"{_USAGE}\nthere is no file {given[0]}")
        sys.path[0] = os.path.dirname(os.path.abspath(given[0]))
        runpy.run_path(given[0], run_name="__main__")


def _let_others_find_it() -> None:
    """Let processes that the script starts import `torch_xla`, too."""
    folder = str(pathlib.Path(__file__).parent / "on_path")
    sys.path.insert(1, folder)  # behind the script's own; spawned processes have it from here
    known = PYTHONPATH.get()
    PYTHONPATH.put(os.pathsep.join([folder, *([known] if known else [])]))


if __name__ == "__main__":
    main()
