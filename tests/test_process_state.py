"""A test can replace all state that changes what later calls do, and gets it back."""

import ast

import pytest
import torch

import xla_dynamo
from docs import import_floors
from tests.spmd.sharding import WIDE
from xla_dynamo import metrics, spmd
from xla_dynamo.memory.changes import epoch
from xla_dynamo.process_state import everything, kept, replaced
from xla_dynamo.runtime import cache_settings, marks

# Globals that functions set and that `replaced` leaves alone: each exists once in a process.
ONCE = {
    "runtime.clients": {"_configuration"},  # of clients, which cannot be made again
    "runtime.forks": {"forked"},
    "variants.background": {"_threads"},
    "lazy.step_closures": {"_thread"},
    "distributed_checkpoint.preemption": {"_before", "_watching"},  # the handler of a signal
}


def test_state_is_as_in_a_new_process_and_then_as_it_was():
    spmd.set_global_mesh(WIDE)
    tensor = spmd.mark_sharding(torch.ones(8, 8), WIDE, ("data", "model"))
    xla_dynamo.refreeze()
    metrics.clear_all()
    before = epoch()
    with replaced():
        assert spmd.get_global_mesh() is None
        assert not marks.are_there()
        assert not marks.were_ever_there()
        assert spmd.sharding_of(tensor) is None
        assert epoch() == 0
        xla_dynamo.refreeze()
        xla_dynamo.runtime.initialize_cache(None)
        assert cache_settings._cache.is_chosen
        spmd.set_global_mesh(spmd.get_1d_mesh())
    assert spmd.get_global_mesh() is WIDE
    assert spmd.sharding_of(tensor).mesh is WIDE
    assert marks.were_ever_there()
    assert epoch() == before
    assert not cache_settings._cache.is_chosen


def test_state_is_as_it_was_after_an_error():
    spmd.set_global_mesh(WIDE)
    with pytest.raises(KeyError), replaced():
        raise KeyError
    assert spmd.get_global_mesh() is WIDE


def test_marks_die_with_their_tensors_while_they_are_replaced():
    tensor = spmd.mark_sharding(torch.ones(8, 8), WIDE, ("data", "model"))
    with replaced():
        del tensor
    assert not marks.are_there()


def test_state_that_comes_within_a_block_stays():
    """As where a file is imported there for the first time."""

    class Fields:
        def __init__(self):
            self.number = 0

    with replaced():
        fields = kept(Fields)
        fields.number = 1
    assert fields.number == 1
    name = next(name for name, one in everything().items() if one is fields)
    assert name.endswith("Fields")
    with replaced():
        assert fields.number == 0
    assert fields.number == 1


def test_no_function_sets_a_global():
    """What functions set is a field of something `kept`, or exists once in a process."""
    found = {}
    for module, path in import_floors.sources().items():
        tree = ast.parse(path.read_text())
        names = {n for node in ast.walk(tree) if isinstance(node, ast.Global) for n in node.names}
        if names:
            found[module.removeprefix("xla_dynamo.")] = names
    assert found == ONCE
