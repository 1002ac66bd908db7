"""What the tests of partitioned programs share: meshes, reports of what was compiled, shards."""

import collections
import re

import torch

import xla_dynamo
from xla_dynamo.memory import sharded_tensors
from xla_dynamo.runtime.jaxlib_private import shards_of
from xla_dynamo.spmd import Mesh

ONE_AXIS = Mesh(range(8), (8,), ("x",))
WIDE = Mesh(range(8), (2, 4), ("data", "model"))
TALL = Mesh(range(8), (4, 2), ("data", "model"))
# LLVM is most of the time otherwise; what XLA's partitioner does is the same.
QUICK = {"xla_options": {"xla_backend_optimization_level": 0}}


def collectives(executable):
    """The collectives of an executable's optimized HLO, by name, and how often each is there."""
    names = r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return collections.Counter(re.findall(names, executable.hlo))


def sharded(fn, *args, **kwargs):
    """What a function returns when it is compiled, and its one executable."""
    report = xla_dynamo.explain(fn)(*args, **kwargs)
    (executable,) = report.executables
    return report.result, executable


def kept_shards(tensor):
    """The shapes of the shards of a tensor that the devices keep between calls."""
    known = sharded_tensors._table.values.items()
    owned = [buffer for key, (_, buffer) in known if key[0] == id(tensor)]
    return [[tuple(p.shape) for p in shards_of(buffer)] for buffer in owned]


def mlp(sizes=(32, 64, 24)):
    """Two layers, of the same values each time."""
    torch.manual_seed(0)
    first, hidden, last = sizes
    return torch.nn.Sequential(
        torch.nn.Linear(first, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, last)
    )


def moved(executable, collective):
    """The shapes of what a collective of an executable's optimized HLO results in, each time."""
    found = []
    for line in executable.hlo.splitlines():
        if match := re.search(rf" = (.*?) {collective}(?:-start)?\(", line):
            types = re.findall(r"[a-z]+\d*\[([\d,]*)\]", match[1])
            found += [tuple(map(int, dims.split(","))) if dims else () for dims in types]
    return found
