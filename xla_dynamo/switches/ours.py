"""The variables XLA_DYNAMO_*: this package's own."""

import re

from xla_dynamo.errors import OptionError
from xla_dynamo.switches.switch import FLAG, Switch, count, declare, flag, positive

_AT_COMPILATION = "at each compilation"
_AT_CACHE = "at the first compilation"
_OF_PASSES = "a list, with commas, of verify, dump=FOLDER, limit=NUMBER and skip=NAME"
_OF_A_PASS = re.compile(r"verify|dump=.+|limit=\d+|skip=.+", re.DOTALL)


def _passes(text: str) -> str:
    for each in filter(None, map(str.strip, text.split(","))):
        if not _OF_A_PASS.fullmatch(each):
            raise OptionError(f"XLA_DYNAMO_PASSES has {each!r}: it is {_OF_PASSES}")
    return text


DISABLE = declare(
    Switch(
        "XLA_DYNAMO_DISABLE",
        "0 or empty; any other text is yes",  # an error would end each `import torch`
        False,
        "leaves the name `openxla` to torch's own entry, which needs torch_xla",
        "at `import torch`",
        lambda text: text not in ("", "0"),
    )
)
CACHE_DIR = declare(
    Switch(
        "XLA_DYNAMO_CACHE_DIR",
        "a folder; empty for no disk cache",
        None,
        "where compiled programs are kept for later processes (docs/warm-start.md). Machine code "
        "is loaded from it: only those whom you would let run programs as you may write to it",
        _AT_CACHE,
        str,
        otherwise="`xla_dynamo` in the user's folder of caches",
    )
)
CACHE_READ_ONLY = declare(
    Switch(
        "XLA_DYNAMO_CACHE_READ_ONLY",
        FLAG,
        False,
        "the disk cache is read, and nothing is written to it",
        _AT_CACHE,
        flag,
    )
)
CACHE_MEGABYTES = declare(
    Switch(
        "XLA_DYNAMO_CACHE_MEGABYTES",
        "a positive integer",
        4096,
        "how many MiB the disk cache may have; what was not used for the longest time goes first",
        _AT_CACHE,
        positive,
    )
)
PROGRESS = declare(
    Switch(
        "XLA_DYNAMO_PROGRESS",
        FLAG,
        True,
        "a line on the terminal tells what is compiled for longer than two seconds",
        _AT_COMPILATION,
        flag,
    )
)
DUMP = declare(
    Switch(
        "XLA_DYNAMO_DUMP",
        "a folder; empty for none",
        "",
        "each program that is compiled leaves a folder of its own there: its graphs, its modules "
        "behind each pass, its inputs, and a `run.py` that runs it alone (docs/debugging.md)",
        _AT_COMPILATION,
        str,
        shapes_programs=True,
    )
)
DUMP_MEGABYTES = declare(
    Switch(
        "XLA_DYNAMO_DUMP_MEGABYTES",
        "an integer, 0 or more",
        1024,
        "how many MiB of a program's inputs a dump saves; random values take the place of the "
        "others",
        "at the first call of a dumped program",
        count,
        shapes_programs=True,
    )
)
PASSES = declare(
    Switch(
        "XLA_DYNAMO_PASSES",
        _OF_PASSES,
        "",
        "passes are verified, their modules written, or passes left out (docs/passes.md)",
        _AT_COMPILATION,
        _passes,
        shapes_programs=True,
    )
)
