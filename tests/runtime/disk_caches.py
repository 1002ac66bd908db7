"""What the tests of the disk cache share: programs to compile, a folder, and how both are counted.

The programs are cold: each test has a folder of its own, which begins empty.
"""

import contextlib
import logging

import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.dynamo import dynamo_trace
from xla_dynamo.runtime import cache_settings as settings
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.buffers import export_buffer, import_tensor
from xla_dynamo.runtime.clients import placement_at
from xla_dynamo.runtime.executables import Executable

_PROGRAM = """
func.func public @main(%a: tensor<64xf32>) -> tensor<64xf32> {{
  %b = stablehlo.constant dense<{number}> : tensor<64xf32>
  %c = stablehlo.{operation} %a, %b : tensor<64xf32>
  %d = stablehlo.sine %c : tensor<64xf32>
  return %d : tensor<64xf32>
}}
"""
EAGER = {"add": torch.add, "multiply": torch.mul, "subtract": torch.sub, "maximum": torch.maximum}
COUNTERS = (
    "PersistentCacheHit",
    "PersistentCacheMiss",
    "PersistentCacheDamagedEntry",
    "PersistentCacheDeserializeFailure",
)


@contextlib.contextmanager
def cache_in(path, readonly=False):
    """The disk cache is in a folder meanwhile, and then what it was before."""
    before = dict(vars(settings._cache))
    settings.initialize_cache(path, readonly)
    try:
        yield settings.disk_cache()
    finally:
        vars(settings._cache).update(before)


def executable_of(operation, number=2.0, xla_options=None, location=""):
    """Compile sin(operation(x, number)), or find it in the cache."""
    text = _PROGRAM.format(operation=operation, number=f"{number:e}")
    with make_ir_context():
        module = ir.Module.parse(text + location)
    return Executable(module, placement_at("cpu", 0), xla_options)


def check(operation, number=2.0):
    """Compile, or load, and compare with eager torch; whether the disk cache had it."""
    x = torch.linspace(-3, 3, 64)
    executable = executable_of(operation, number)
    ((result,),) = executable.execute([import_tensor(x, placement_at("cpu", 0))])
    expected = EAGER[operation](x, torch.full_like(x, number)).sin()
    torch.testing.assert_close(export_buffer(result), expected)
    return executable.was_saved


@contextlib.contextmanager
def counted():
    """A dictionary that has, at the end of the block, how often each thing happened in it."""
    before = {name: metrics.counter_value(name) for name in COUNTERS}
    found: dict[str, int] = {}
    yield found
    found.update({n.removeprefix("PersistentCache"): metrics.counter_value(n) - before[n]
                  for n in COUNTERS})  # fmt: skip


@contextlib.contextmanager
def logged(level=logging.WARNING):
    """The lines that the log `xla_dynamo` gets meanwhile, from this level on."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    log, handler = logging.getLogger("xla_dynamo"), Kept(level)
    before = log.level
    log.addHandler(handler)
    log.setLevel(min(level, log.getEffectiveLevel()))
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        dynamo_trace._TRACE.removeHandler(dynamo_trace._LOG)
