"""Draw the package as floors: a file or a room stands above all that it imports.

`python -m docs.import_floors` draws the rooms, which are the folders, and `--files` the files; with
a path it reads another checkout. The files of a circle of imports are drawn as one, "a = b".
"""

import argparse
import ast
import graphlib
import pathlib
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = "xla_dynamo"
# What is installed inside the package stands beside it.
BESIDE = ("lowerings", "runtime")
# These stand beside the families of rules, and below what those are written with.
ALONE = tuple(f"{PACKAGE}.lowerings.{name}" for name in ("kernels", "table", "target"))
Graph = Mapping[str, set[str]]


def sources(root: pathlib.Path = ROOT) -> dict[str, pathlib.Path]:
    """Every file of the package, by the name that it is imported under."""
    found = {}
    for folder in (PACKAGE, *BESIDE):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[:1] == (PACKAGE,) and parts[1:2] and parts[1] in BESIDE:
                continue  # the symlink to it
            parts = parts if parts[0] == PACKAGE else (PACKAGE, *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: pathlib.Path) -> set[str]:
    """What a file imports, as dotted names, lazily or not: modules, and what is taken from them."""
    found = set()
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for block in (b for b in blocks if ast.unparse(b.test) == "TYPE_CHECKING"):
        block.body = []  # for type checkers: nothing is imported
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports(root: pathlib.Path = ROOT) -> dict[str, set[str]]:
    """By each file of the package, those of its files that it imports."""
    files = sources(root)
    graph = {}
    for name, path in files.items():
        # `from package import name` takes a file of that name, or something of the package's own.
        taken = (n if n in files else n.rpartition(".")[0] for n in imported(path))
        graph[name] = {n for n in taken if n in files} - {name}
    return graph


def room_of(module: str, files: Mapping[str, pathlib.Path]) -> str:
    """The folder of a file; a file at the top of the package is a room of its own."""
    if files[module].name == "__init__.py":
        return module
    room = module.rpartition(".")[0]
    return module if room == PACKAGE or module in ALONE else room


def rooms(root: pathlib.Path = ROOT) -> dict[str, set[str]]:
    """By each room, the rooms that its files import."""
    files = sources(root)
    graph: dict[str, set[str]] = {}
    for module, others in imports(root).items():
        room = room_of(module, files)
        graph.setdefault(room, set()).update({room_of(n, files) for n in others} - {room})
    return graph


def floors(graph: Graph) -> list[list[str]]:
    """The names by floor, the lowest first.

    Raises:
        graphlib.CycleError: some import each other in a circle, which it names.
    """
    height: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        height[name] = 1 + max((height[n] for n in graph.get(name, ())), default=-1)
    found: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for name, floor in sorted(height.items()):
        found[floor].append(name.replace(PACKAGE + ".", ""))
    return found


def without_circles(graph: Graph) -> Graph:
    """The graph with each circle of imports as one node, "a = b"."""
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            circle = set(error.args[1])
            name = " = ".join(sorted(circle))
            merged = {n: {name if m in circle else m for m in graph[n]} for n in graph}
            others = set().union(*(merged.pop(n) for n in circle)) - {name}
            graph = {**merged, name: others}
        else:
            return graph


def draw(graph: Graph, title: str) -> Table:
    """The floors as a table, the highest first; the files of a circle are on one."""
    table = Table("floor", "", title=title, show_lines=True)
    for number, names in reversed(list(enumerate(floors(without_circles(graph))))):
        table.add_row(str(number), ", ".join(names))
    return table


def main() -> None:
    """Print the floors of this checkout or another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=ROOT)
    parser.add_argument("--files", action="store_true", help="files instead of rooms")
    given = parser.parse_args()
    if not (given.root / PACKAGE).is_dir():
        parser.error(f"{given.root} is no checkout: it has no folder {PACKAGE}")
    graph = imports(given.root) if given.files else rooms(given.root)
    Console().print(draw(graph, "files" if given.files else "rooms"))


if __name__ == "__main__":
    main()
