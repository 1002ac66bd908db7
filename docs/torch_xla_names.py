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
    "of PyTorch/XLA 2.9 are there, {different} of them with a difference, and {missing} are not.\n"
)


def page() -> str:
    """The page's text."""
    every = [entry for names in TABLES.values() for entry in names.values()]
    there = sum(bool(entry.target) for entry in every)
    different = sum(bool(entry.target and entry.note) for entry in every)
    parts = [
        _TITLE,
        _HOW,
        _COUNTS.format(there=there, different=different, missing=len(every) - there),
    ]
    parts += [_section(module, names) for module, names in sorted(TABLES.items()) if names]
    return "\n".join(parts)


def _section(module: str, names: Mapping[str, Entry]) -> str:
    rows = [f"## {module}\n"]
    plain = {name: e for name, e in sorted(names.items()) if e.target and not e.note}
    if plain:
        rows.append(f"There: {', '.join(_told(name, entry) for name, entry in plain.items())}.\n")
    noted: dict[tuple[bool, str], list[str]] = {}
    for name, entry in sorted(names.items()):
        if entry.note:
            told = _told(name, entry) if entry.target else f"`{name}`"
            noted.setdefault((not entry.target, entry.note), []).append(told)
    for (is_missing, note), some in sorted(noted.items(), key=lambda item: item[0][0]):
        state = "Not there" if is_missing else "There, with a difference"
        rows.append(f"{state}: {', '.join(some)}: {note.removesuffix('.')}.\n")
    return "\n".join(rows)


def _told(name: str, entry: Entry) -> str:
    target = entry.target.replace(":", ".")
    own = target.startswith(("xla_dynamo.torch_xla.", "torch_xla."))
    where = "" if own or target == f"xla_dynamo.{name}" else f" (`{target}`)"
    return f"`{name}`{where}"


if __name__ == "__main__":
    PAGE.write_text(page())
