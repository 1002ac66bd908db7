"""Gives its place to the modules over this package, as `install()` does in the first process."""

import importlib
import sys

from xla_dynamo.torch_xla.modules import install

if __name__ == "torch_xla":
    del sys.modules[__name__]
    install()
    importlib.import_module(__name__)
