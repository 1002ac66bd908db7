"""Write docs/switches.md, the tables of options and of environment variables: `make docs`."""

import dataclasses
import inspect
import pathlib
import re

from xla_dynamo.options import MODES, Options, kind_of
from xla_dynamo.switches import TABLE, Switch
from xla_dynamo.switches.pytorch_xla import IGNORED
from xla_dynamo.switches.switch import FLAG, LAUNCHERS, LIBRARIES, OURS, PYTORCH_XLA, SYSTEM

PAGE = pathlib.Path(__file__).parent / "switches.md"
_TITLE = "# Options and environment variables\n"
_WRITTEN = (
    "`make docs` writes this page from [the options](../xla_dynamo/options.py) and "
    "[the declarations of the variables](../xla_dynamo/switches).\n"
)
_OPTIONS = (
    "## Options\n\n"
    '`torch.compile(model, backend="openxla", options={...})` and '
    "`xla_dynamo.train_step(..., options={...})` take these keys, and so do `explain`, `generate` "
    "and `bisect_passes`; a command takes them as `--option NAME=VALUE`. An unknown key is an "
    "`OptionError` that names the nearest valid one, and so is a value of another kind.\n"
)
_MODES = (
    "## Modes\n\n"
    '`torch.compile(model, backend="openxla", mode=...)` takes the names of torch\'s modes. It '
    "takes either a mode or options.\n"
)
_VARIABLES = (
    "## Environment variables\n\n"
    "A text that is no value of a variable is an `OptionError` where the variable is read. "
    "`xla-dynamo doctor` shows the variables that are set, with the values that were made of them. "
    "A variable `XLA_DYNAMO_*` that is misspelt is a warning before the first program of a process "
    f"is compiled. A *flag* is {FLAG}, in capitals or not.\n"
)
_HEADINGS = {
    OURS: "### Of this package\n",
    PYTORCH_XLA: "### Of PyTorch/XLA\n\nThey do here what they do there "
    "([from-pytorch-xla.md](from-pytorch-xla.md)).\n",
    LAUNCHERS: "### Of launchers\n\n`torchrun`, `xla_dynamo.launch` and Slurm write them for each "
    "process ([processes.md](processes.md)).\n",
    LIBRARIES: "### Of the libraries underneath\n\nThey are read by the library that stands "
    "before the colon, and some by this package, too.\n",
    SYSTEM: "### Of the system\n",
}
_IGNORED = (
    "### Of PyTorch/XLA, without effect here\n\n`xla-dynamo doctor` tells of those that are set.\n"
)
_CALLS = (
    "## Commands and calls\n\n"
    "`xla-dynamo serve` has options of its own ([serving.md](serving.md)), and so has each "
    "command: `xla-dynamo COMMAND --help`. These calls do what variables do: "
    "`xla_dynamo.runtime.initialize_cache(path, readonly)` chooses the disk cache, "
    "`xla_dynamo.runtime.set_device_count(n)` as how many devices the CPU appears, "
    "`xla_dynamo.runtime.set_device_type(name)` the platform of the device 'xla', and "
    "`xla_dynamo.runtime.use_spmd(auto=True)` automatic shardings.\n"
)


def page() -> str:
    """The page's text."""
    by_owner = {
        owner: "\n".join([heading, *_rows_of([s for s in TABLE if s.owner == owner])])
        for owner, heading in _HEADINGS.items()
    }
    parts = [_TITLE, _WRITTEN, _OPTIONS + "\n" + _options(), _MODES + "\n" + _modes(), _VARIABLES]
    return "\n".join([*parts, *(f"{part}\n" for part in by_owner.values()), _ignored(), _CALLS])


def descriptions() -> dict[str, str]:
    """What each option does, as the docstring of `Options` has it."""
    _, _, listed = inspect.getdoc(Options).partition("Attributes:\n")  # type: ignore[union-attr]
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _options() -> str:
    told = descriptions()
    rows = ["| option | takes | default | what it does |", "|---|---|---|---|"]
    for field in dataclasses.fields(Options):
        default = field.metadata.get("default")
        if default is None:
            is_made = field.default is dataclasses.MISSING
            value = field.default_factory() if is_made else field.default  # type: ignore[misc]
            shown = repr(list(value) if isinstance(value, tuple) else value)
            default = f"`{shown}`".replace("'", '"')
        does = told[field.name].removesuffix(".")
        rows.append(_row(f"`{field.name}`", _words(kind_of(field.name)), default, does))
    return "\n".join(rows) + "\n"


def _words(kind: str) -> str:
    """A kind as prose: the texts that it names are code."""
    kind = re.sub(r"\(('.*')\)", r"\1", kind)
    return re.sub(r"'([\w+-]+)'", r'`"\1"`', kind)


def _modes() -> str:
    rows = ["| mode | the same as |", "|---|---|"]
    for mode, options in MODES.items():
        same = f"`options={dict(options)!r}`".replace("'", '"') if options else "no option"
        rows += [f'| `"{mode}"` | {same} |'] if mode is not None else []
    return "\n".join(rows) + "\n"


def _rows_of(switches: list[Switch[object]]) -> list[str]:
    rows = ["| variable | what it does | takes | without it | read |", "|---|---|---|---|---|"]
    for s in switches:
        kind = "a flag" if s.kind == FLAG else s.kind
        rows.append(_row(f"`{s.name}`", s.meaning, kind, _default(s), s.when))
    return rows


def _ignored() -> str:
    """The variables of PyTorch/XLA that have no effect; those of one reason share a row."""
    by_reason: dict[str, list[str]] = {}
    for name, instead in IGNORED.items():
        by_reason.setdefault(instead, []).append(f"`{name}`")
    rows = [_row(", ".join(names), instead) for instead, names in by_reason.items()]
    return "\n".join([_IGNORED, "| variable | here |", "|---|---|", *rows]) + "\n"


def _default(switch: Switch[object]) -> str:
    if switch.otherwise:
        return switch.otherwise
    if isinstance(switch.default, bool):
        return "on" if switch.default else "off"
    return "none" if switch.default in ("", None) else f"`{switch.default}`"


def _row(*cells: str) -> str:
    """A row of a table, in which names of the repository's files are links."""
    text = " | ".join(cell.replace("|", "\\|") for cell in cells)
    text = re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", text)
    text = re.sub(r"\bruntime/(\w+\.py)", r"[\1](../runtime/\1)", text)
    return f"| {text} |"


if __name__ == "__main__":
    PAGE.write_text(page())
