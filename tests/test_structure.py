"""The layout shows the architecture, and stays so."""

import ast
import pathlib
import tomllib

import pytest
import torch

import xla_dynamo
from docs import supported_ops
from xla_dynamo.lowerings import FAMILIES, TABLE

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("xla_dynamo", "xla_dynamo/lazy", "lowerings", "runtime")
SOURCES = [p for folder in FOLDERS for p in (ROOT / folder).glob("*.py")]
by_path = pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.name}")


def imported(path: pathlib.Path) -> set[str]:
    """The modules that a file imports, as dotted names, lazily or not."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


# Files that import nothing of ours.
LEAVES = ("xla_dynamo.errors", "xla_dynamo.torch_private")
ALLOWED = {
    "lowerings": ("xla_dynamo.lowerings", *LEAVES),
    "runtime": ("xla_dynamo.runtime", *LEAVES),
}


@by_path
def test_imports_go_one_way(path):
    layer = path.parent.name
    ours = {name for name in imported(path) if name.split(".")[0] == "xla_dynamo"}
    if layer in ALLOWED:
        outside = {n for n in ours if not n.startswith(ALLOWED[layer]) and n != "xla_dynamo"}
        assert not outside, f"{layer}/ must not know {outside}"


def test_every_folder_of_the_package_is_under_these_rules_and_installed():
    inner = {p.parent for p in (ROOT / "xla_dynamo").glob("*/__init__.py")}
    assert {p.resolve() for p in inner} == {ROOT / folder for folder in FOLDERS[1:]}
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(installed["packages"]) == {"xla_dynamo", *(f"xla_dynamo.{p.name}" for p in inner)}
    assert set(installed["package-dir"].values()) == set(FOLDERS)


@by_path
def test_nothing_knows_the_lazy_device(path):
    lazy = {n for n in imported(path) if n.startswith("xla_dynamo.lazy")}
    inside = path.parent.name == "lazy" or path == ROOT / "xla_dynamo" / "__init__.py"
    assert not lazy or inside, "it claims a place of torch's when imported"


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


def test_no_file_named_for_nothing():
    vague = {"utils", "helpers", "core", "base", "misc", "common"}
    assert not [p for p in SOURCES if p.stem.strip("_") in vague]


def test_public_names():
    assert xla_dynamo.__all__ == [
        "CompileError",
        "Context",
        "ExecutionError",
        "LoweringError",
        "OptionError",
        "UnsupportedDtype",
        "UnsupportedError",
        "UnsupportedOperator",
        "UnsupportedTensor",
        "XlaDynamoError",
        "call_jax",
        "compile_graph",
        "device",
        "explain",
        "lowers",
        "openxla",
        "refreeze",
        "sync",
        "train_step",
    ]
    for name in xla_dynamo.__all__:
        public = getattr(xla_dynamo, name)
        assert public.__doc__, name
        assert callable(public), f"{name}: a module of that name hides it"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        xla_dynamo.nonsense  # noqa: B018


@by_path
def test_public_functions_have_docstrings(path):
    if path.parent.name == "lowerings" and path.stem in FAMILIES:
        return  # a rule is documented by its operator's schema
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_families_are_the_files_of_rules():
    vocabulary = {"__init__", "build", "dtypes", "from_jax", "promotion", "table", "values"}
    files = {p.stem for p in (ROOT / "lowerings").glob("*.py")} - vocabulary
    assert set(FAMILIES) <= files
    assert len(FAMILIES) == len(set(FAMILIES))


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
    assert supported_ops.README.read_text() == supported_ops.readme(), "run `make docs`"


def test_symlinks_are_relative():
    for name in ("lowerings", "runtime"):
        link = ROOT / "xla_dynamo" / name
        assert link.is_symlink()
        assert link.readlink() == pathlib.Path("..") / name
