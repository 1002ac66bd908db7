"""Write docs/torch-xla-names.md, what stands for each name of PyTorch/XLA: `make docs`."""

import pathlib
from collections.abc import Mapping

from xla_dynamo.torch_xla.names import TABLES
from xla_dynamo.torch_xla.names.entries import Entry

PAGE = pathlib.Path(__file__).parent / "torch-xla-names.md"
_TITLE = "# Names of PyTorch/XLA\n"
_HOW = (
    "`python -m xla_dynamo.torch_xla script.py` runs a script that says `import torch_xla`, and "
    "`xla_dynamo.torch_xla.install()` lets a program import these modules. "
    "[from-pytorch-xla.md](from-pytorch-xla.md) tells how what is there differs. What is not there "
    "is an error that says so when it is used.\n"
)
_COUNTS = (
    "`make docs` writes this page from [the tables](../xla_dynamo/torch_xla/names): {there} names "
    "of PyTorch/XLA 2.9 are there, {missing} are not.\n"
)


def page() -> str:
    """The page's text."""
    every = [entry for names in TABLES.values() for entry in names.values()]
    there = sum(bool(entry.target) for entry in every)
    parts = [_TITLE, _HOW, _COUNTS.format(there=there, missing=len(every) - there)]
    parts += [_section(module, names) for module, names in sorted(TABLES.items()) if names]
    return "\n".join(parts)


def _section(module: str, names: Mapping[str, Entry]) -> str:
    rows = [f"## {module}\n"]
    if there := [_told(name, entry) for name, entry in sorted(names.items()) if entry.target]:
        rows.append(f"There: {', '.join(there)}.\n")
    reasons: dict[str, list[str]] = {}
    for name, entry in sorted(names.items()):
        if not entry.target:
            reasons.setdefault(entry.note, []).append(f"`{name}`")
    rows += [f"Not there: {', '.join(some)}: {reason}.\n" for reason, some in reasons.items()]
    return "\n".join(rows)


def _told(name: str, entry: Entry) -> str:
    target = entry.target.replace(":", ".")
    own = target.startswith(("xla_dynamo.torch_xla.", "torch_xla."))
    where = "" if own or target == f"xla_dynamo.{name}" else f" (`{target}`)"
    return f"`{name}`{where}"


if __name__ == "__main__":
    PAGE.write_text(page())
