"""Environment variables: each is declared once, and read through its `Switch`.

The files have them by whose they are. `make docs` writes `docs/switches.md`, the table of all.
"""

from xla_dynamo.switches import others, ours, pytorch_xla
from xla_dynamo.switches.switch import (
    OWNERS,
    TABLE,
    Switch,
    child_environment,
    given,
    those_with_prefix,
)
from xla_dynamo.switches.unknown import ignored, unknown, warn_of_unknown

__all__ = [
    "OWNERS",
    "TABLE",
    "Switch",
    "child_environment",
    "given",
    "ignored",
    "others",
    "ours",
    "pytorch_xla",
    "those_with_prefix",
    "unknown",
    "warn_of_unknown",
]
