"""The layout shows the architecture, and stays so."""

import ast
import pathlib
import re
import tomllib

import pytest
import torch

import xla_dynamo
from docs import import_floors, supported_ops, switches
from docs.import_floors import imported
from xla_dynamo.lowerings import FAMILIES, TABLE
from xla_dynamo.lowerings.passes.table import PASSES

ROOT = import_floors.ROOT
MODULES = import_floors.sources()
SOURCES = list(MODULES.values())
by_path = pytest.mark.parametrize(
    "path", SOURCES, ids=lambda p: str(p.relative_to(ROOT).with_suffix(""))
)

# What each room may import besides itself: rooms above it, and of those these alone.
EVERYWHERE = ("errors", "process_state", "switches", "torch_private")
ROOMS = {
    "errors": "",
    "lowerings.target": "",
    "process_state": "",
    "switches": "",
    "torch_private": "",
    "torch_threads": "",
    "torchvision_operators": "",
    "lowerings.table": "lowerings.target",
    "options": "lowerings.target",
    "runtime.cpu": "",
    "runtime.processes": "",
    "torch_patches": "",
    "dumps": "",
    "generation": "runtime.cpu",
    "lowerings.builders": "lowerings.table",
    "runtime": "runtime.cpu runtime.processes",
    "lowerings.bounded": "lowerings.builders",
    "lowerings.kernels": "lowerings.builders lowerings.table",
    "lowerings.rules.elementwise": "lowerings.builders lowerings.table",
    "lowerings.rules.indexing": "lowerings.builders lowerings.table",
    "lowerings.rules.reductions": "lowerings.builders lowerings.table",
    "lowerings.rules.structure": "lowerings.builders lowerings.table",
    "metrics": "runtime runtime.processes",
    "spmd": "runtime",
    "lowerings.cpu": "lowerings.builders lowerings.kernels lowerings.table lowerings.target",
    "lowerings.passes": "lowerings.builders lowerings.kernels lowerings.target",
    "lowerings.rules.random": "lowerings.builders lowerings.rules.reductions lowerings.table",
    "lowerings.symbolic": "lowerings.bounded lowerings.builders",
    "spmd.recipes": "runtime spmd",
    "lowerings.partitioning": "lowerings.builders lowerings.cpu lowerings.kernels"
    " lowerings.passes lowerings.table",
    "lowerings.auto_sharding": "lowerings.builders lowerings.partitioning",
    "kernels": "lowerings.builders lowerings.cpu lowerings.kernels lowerings.passes lowerings.table"
    " lowerings.target runtime runtime.cpu",
    "lowerings.rules.attention": "lowerings.builders lowerings.cpu lowerings.kernels"
    " lowerings.rules.random lowerings.table",
    "lowerings.rules.images": "lowerings.builders lowerings.cpu lowerings.kernels"
    " lowerings.rules.indexing lowerings.table",
    "lowerings.rules.linear_algebra": "lowerings.builders lowerings.cpu lowerings.kernels"
    " lowerings.table",
    "lowerings.rules.shapes": "lowerings.builders lowerings.rules.images lowerings.rules.indexing"
    " lowerings.table",
    "lowerings.rules": "lowerings.rules.attention lowerings.rules.elementwise"
    " lowerings.rules.images lowerings.rules.indexing lowerings.rules.linear_algebra"
    " lowerings.rules.random lowerings.rules.reductions lowerings.rules.shapes"
    " lowerings.rules.structure",
    "lowerings": "lowerings.rules lowerings.table",
    "graphs": "dumps kernels lowerings lowerings.bounded lowerings.builders lowerings.table options"
    " runtime runtime.processes",
    "decompositions": "graphs lowerings.table torch_patches",
    "programs": "decompositions graphs kernels lowerings lowerings.bounded lowerings.builders"
    " lowerings.auto_sharding lowerings.kernels lowerings.partitioning lowerings.passes"
    " lowerings.rules.random"
    " lowerings.rules.shapes"
    " lowerings.symbolic lowerings.table lowerings.target options runtime",
    "events": "graphs programs runtime",
    "jax": "decompositions graphs lowerings.builders lowerings.table lowerings.target programs"
    " runtime",
    "xla_builder": "jax lowerings.builders lowerings.table runtime",
    "memory": "lowerings.builders programs runtime",
    "calls": "graphs lowerings.builders lowerings.passes memory options programs runtime"
    " runtime.cpu",
    "dynamo": "events graphs lowerings.builders programs",
    "stablehlo": "calls decompositions graphs lowerings.bounded lowerings.builders"
    " lowerings.target options programs runtime torch_patches",
    "variants": "calls graphs lowerings.target memory programs runtime",
    "execution": "calls decompositions dumps events graphs lowerings.builders lowerings.passes"
    " lowerings.table lowerings.target memory options programs runtime spmd variants",
    "backend": "calls decompositions dumps dynamo events execution graphs lowerings.passes options"
    " programs runtime runtime.processes torch_threads",
    "lazy": "backend calls decompositions graphs lowerings.builders lowerings.table metrics options"
    " programs runtime runtime.cpu runtime.processes spmd torch_patches torch_threads",
    "training": "backend calls dynamo events graphs memory options runtime torch_patches"
    " torch_threads variants",
    "distributed": "lazy runtime runtime.processes spmd",
    "distributed.fsdp": "distributed lazy lowerings.table runtime.processes spmd.recipes",
    "registration": "distributed",
    "distributed_checkpoint": "runtime runtime.processes spmd training",
    "reports": "backend calls dynamo events graphs lowerings.passes options programs runtime"
    " runtime.cpu training",
    "reproduction": "dumps execution graphs lowerings.passes options",
    "xla_dynamo": "lazy",
    "serving": "execution runtime torchvision_operators",
    "command_line": "execution kernels reports reproduction runtime serving stablehlo",
    "torch_xla.kernels": "lowerings.builders lowerings.table runtime spmd xla_builder",
    "torch_xla.forms": "decompositions distributed.fsdp graphs jax lazy runtime runtime.processes"
    " spmd stablehlo torch_xla.kernels xla_builder xla_dynamo",
    "torch_xla.names": "",
    "torch_xla": "torch_xla.names",
    "torch_xla.on_path": "",
    "torch_xla.on_path.torch_xla": "torch_xla",
    "__main__": "command_line",
}


def test_imports_go_one_way():
    graph = import_floors.rooms()
    for room, others in graph.items():
        name = room.removeprefix("xla_dynamo.")
        known = {n.removeprefix("xla_dynamo.") for n in others}
        assert known <= {*ROOMS[name].split(), *EVERYWHERE}, f"{name} must not know all of these"
    order = list(ROOMS)
    for room, allowed in ROOMS.items():
        assert all(order.index(n) < order.index(room) for n in allowed.split()), room
        unused = set(allowed.split()) - {n.removeprefix("xla_dynamo.") for n in graph[_full(room)]}
        assert not unused, f"{room} has no need of these"


def _full(room):
    return room if room == "xla_dynamo" else f"xla_dynamo.{room}"


def test_no_files_import_each_other_in_a_circle():
    import_floors.floors(import_floors.imports())


def test_the_drawn_floors_are_the_documented_ones():
    """`docs/how-it-works.md` has the output of `python -m docs.import_floors`."""
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (`.*`.*) \|$", page, re.MULTILINE)
    documented = {int(floor): set(re.findall(r"`([\w.]+)`", names)) for floor, names in rows}
    drawn = import_floors.floors(import_floors.rooms())
    assert documented == {floor: set(names) for floor, names in enumerate(drawn)}


def test_the_documented_passes_are_those_that_run():
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    table = page[page.index("| pass | file | for |") :]
    documented = re.findall(r"^\| `(\w+)` \| \[`(\w+)`\]", table, re.MULTILINE)
    modules = [p.rewrite.__module__.rpartition(".")[2] for p in PASSES]
    assert documented == list(zip([p.name for p in PASSES], modules, strict=True))


def test_every_folder_is_installed():
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(installed["packages"]) == packages


@by_path
def test_private_parts_of_jaxlib_live_in_one_file(path):
    private = {n for n in imported(path) if n.startswith(("jaxlib._", "jaxlib.xla", "jax._src"))}
    assert not private or path.name == "jaxlib_private.py", private


@by_path
def test_folders_are_imported_by_their_full_name(path):
    assert not {n for n in imported(path) if n.split(".")[0] in ("lowerings", "runtime")}


@by_path
def test_files_are_of_a_size_to_read(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text)), "says in a sentence what it turns into what"


def _checked_beside_the_sources():
    """Python files of the tests, the benchmark and the documentation."""
    return [p for folder in ("tests", "bench", "docs") for p in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize(
    "path", _checked_beside_the_sources(), ids=lambda p: str(p.relative_to(ROOT).with_suffix(""))
)
def test_other_files_are_of_a_size_to_read(path):
    assert len(path.read_text().splitlines()) <= 400


def test_no_file_named_for_nothing():
    vague = {"utils", "helpers", "core", "base", "misc", "common"}
    assert not [p for p in SOURCES if p.stem.strip("_") in vague]


_MODULES = ("distributed_checkpoint", "jax", "metrics", "runtime", "spmd", "stablehlo")


def test_public_names():
    assert xla_dynamo.__all__ == [
        "CheckpointError",
        "CompileError",
        "Context",
        "ExecutionError",
        "LoweringError",
        "MpDeviceLoader",
        "OptionError",
        "ParallelLoader",
        "ProcessError",
        "ShardingError",
        "StorageError",
        "UnsupportedDtype",
        "UnsupportedError",
        "UnsupportedOperator",
        "UnsupportedTensor",
        "XlaDynamoError",
        "add_step_closure",
        "all_gather",
        "all_reduce",
        "all_to_all",
        "bisect_passes",
        "broadcast_master_param",
        "call_jax",
        "collective_broadcast",
        "collective_permute",
        "compile",
        "compile_graph",
        "device",
        "device_count",
        "devices",
        "distributed_checkpoint",
        "do_on_ordinals",
        "eager_mode",
        "explain",
        "generate",
        "get_local_ordinal",
        "get_memory_info",
        "get_ordinal",
        "get_rng_state",
        "is_eager_mode",
        "is_master_ordinal",
        "jax",
        "launch",
        "lowers",
        "manual_seed",
        "mark_step",
        "master_print",
        "mesh_reduce",
        "metrics",
        "openxla",
        "optimizer_step",
        "precompile",
        "profile",
        "real_devices",
        "reduce_gradients",
        "reduce_scatter",
        "refreeze",
        "register_pass",
        "rendezvous",
        "runtime",
        "save",
        "set_rng_state",
        "spawn",
        "spmd",
        "stablehlo",
        "step",
        "sync",
        "to_dlpack",
        "train_step",
        "unlazy",
        "wait_device_ops",
        "xla_device",
        "xla_device_hw",
        "xrt_world_size",
    ]
    for name in xla_dynamo.__all__:
        public = getattr(xla_dynamo, name)
        assert public.__doc__, name
        is_module = name in _MODULES
        assert callable(public) != is_module, f"{name}: a module of that name hides it"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        xla_dynamo.nonsense  # noqa: B018


@by_path
def test_public_functions_have_docstrings(path):
    if (ROOT / "lowerings" / "rules") in path.parents:
        return  # a rule is documented by its operator's schema
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_families_are_the_files_of_rules():
    rules = "xla_dynamo.lowerings.rules."
    files = {name for name, p in MODULES.items() if name.startswith(rules) and p.stem != "__init__"}
    names = [family.__name__ for family in FAMILIES]
    assert set(names) == files
    assert len(names) == len(files)


def test_every_core_overload_is_covered():
    """In the table, or a number of the graph, or functionalized, or a limitation (by value)."""
    sizes = {"is_contiguous.default", "numel.default", "size.int", "storage_offset.default",
             "stride.int"}  # fmt: skip
    numbers = {f"aten.sym_{name}" for name in sizes}
    functionalized = {"aten.atan2.out", "aten.resize_.default"}
    by_value = {"aten.nonzero.default", "aten._local_scalar_dense.default"}
    missing = set(map(str, supported_ops.core_overloads())) - set(TABLE)
    assert missing <= numbers | functionalized | by_value


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the pages are generated under torch 2.13"
)
def test_generated_pages_are_fresh():
    assert supported_ops.PAGE.read_text() == supported_ops.page(), "run `make docs`"
    assert switches.PAGE.read_text() == switches.page(), "run `make docs`"


def test_symlinks_are_relative():
    for name in ("lowerings", "runtime"):
        link = ROOT / "xla_dynamo" / name
        assert link.is_symlink()
        assert link.readlink() == pathlib.Path("..") / name
