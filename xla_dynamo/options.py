"""The keys of `torch.compile(model, backend="openxla", options={...})`."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import torch

from xla_dynamo.errors import OptionError
from xla_dynamo.lowerings.target import LIBRARIES

CHOICES = {
    "fallback": ("eager", "error"),
    "matmul_precision": ("highest", "high", "medium"),
    "rng": ("xla", "torch"),
    "while_compiling": ("wait", "larger", "eager"),
}

# What each `torch.compile(mode=...)` sets. "reduce-overhead" asks for CUDA graphs: a call is one
# executable here as it is. "max-autotune" allows work that pays at run time alone.
MODES: Mapping[str | None, Mapping[str, Any]] = {
    None: {},
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"freeze": True, "tune": True},
    "max-autotune-no-cudagraphs": {"freeze": True, "tune": True},
}


def precision_of_torch() -> str:
    """The precision of float32 matrix products that the user told torch: "highest" unless told."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # told by the newer fp32_precision, which has no such name
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Validated options.

    Attributes:
        constant_limit: literal tensors, as `torch.tensor([1, 2])`, of up to this many elements are
            written into the program, where XLA can fold them; others become arguments.
        xla_options: XLA's own debug options for these executables, as in
            `{"xla_cpu_enable_fast_math": True}`.
        max_executables: how many executables one graph keeps, one for each tuple of sizes it was
            called with; the least recently used one goes first.
        fallback: "eager" runs an operator without a rule in torch, between compiled parts of the
            graph; "error" raises UnsupportedOperator instead.
        matmul_precision: "highest", "high" or "medium", as for torch.set_float32_matmul_precision,
            whose value it has unless given.
        rng: "xla" draws random numbers inside the compiled program; "torch" draws eager's own, with
            torch's generator, between compiled parts of the graph.
        libraries: what programs may call on platforms that have it: "onednn", which jaxlib brings
            for x86 CPUs, and its own library, for convolutions and matrix products, under `freeze`
            with packed weights; and "torch", for the CPU: its kernels of
            fused attention, of products of groups and of weight gradients of convolutions.
        freeze: in inference, what is computed from parameters and buffers alone is computed once,
            and anew when one of them has changed: by an optimizer, `load_state_dict`, operators in
            place, batch norm. Not seen are changes through `.data` or NumPy, by collectives of
            torch.distributed or by other processes: call `xla_dynamo.refreeze()` after them.
        tune: measure on this machine in which form a matrix product is the fastest, where nobody
            has yet: XLA's own, or a plan of oneDNN's by one division among threads or another. It
            takes about 0.3 s for each product of other sizes, once: the disk cache keeps what was
            measured, by the model of the processor, and every later process takes the winners,
            with this option or without. On other platforms than x86 CPUs it does nothing.
        buckets: on the CPU, what graphs of dynamic sizes are compiled for: upper bounds of the
            sizes, "auto" or these, where that is proved to be right; or "exact"ly each tuple of
            sizes.
        while_compiling: what calls of a graph with dynamic sizes do while an executable for their
            sizes is compiled: "wait" for it; run in the next "larger" bucket that is compiled
            already, and wait where there is none; or run in "eager" torch. With the last two, a
            thread in the background compiles.
        dump: a folder into which each program that is compiled is dumped, as by the environment
            variable XLA_DYNAMO_DUMP: a folder of its own, with a `run.py` that runs it alone.
    """

    constant_limit: int = 64
    xla_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_executables: int = 64
    fallback: str = "eager"
    matmul_precision: str = dataclasses.field(default_factory=precision_of_torch)
    rng: str = "xla"
    libraries: tuple[str, ...] = tuple(LIBRARIES)
    freeze: bool = False
    tune: bool = False
    buckets: str | tuple[int, ...] = "auto"
    while_compiling: str = "wait"
    dump: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None, mode: str | None = None) -> "Options":
        """Check the user's dictionary, and the mode, whose settings the dictionary overrides.

        Raises:
            OptionError: a key or the mode is unknown, or a value has the wrong type.
        """
        if not isinstance(mode, str | None) or mode not in MODES:
            valid = ", ".join(repr(name) for name in MODES if name is not None)
            raise OptionError(f"unknown mode {mode!r} for backend 'openxla': use one of {valid}")
        if options is not None and not isinstance(options, Mapping):
            raise OptionError(f"options must be a dict, not {type(options).__name__}: {options!r}")
        given = {**MODES[mode], **(options or {})}
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for key, value in given.items():
            if key not in fields:
                close = difflib.get_close_matches(str(key), fields, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise OptionError(
                    f"unknown option {key!r} for backend 'openxla': {hint}"
                    f"valid options are {', '.join(fields)}"
                )
            _check(key, value, fields[key].type)
        if "libraries" in given:
            given["libraries"] = tuple(given["libraries"])
        if not isinstance(given.get("buckets", ""), str):
            given["buckets"] = tuple(sorted(set(given["buckets"])))
        return cls(**given)


def _check(key: str, value: Any, kind: Any) -> None:
    """Raise OptionError unless an option may have this value."""
    if key in CHOICES:
        if value not in CHOICES[key]:
            raise OptionError(f"option {key!r} must be one of {CHOICES[key]}, not {value!r}")
    elif key == "libraries":
        if not isinstance(value, list | tuple) or not all(name in LIBRARIES for name in value):
            raise OptionError(
                f"option {key!r} must be a list out of {tuple(LIBRARIES)}, not {value!r}"
            )
    elif key == "buckets":
        if not (_are_bounds(value) or (isinstance(value, str) and value in ("auto", "exact"))):
            raise OptionError(
                f"option {key!r} must be 'auto', 'exact' or a list of sizes above 1, not {value!r}"
            )
    elif key == "dump":
        if not isinstance(value, str | None):
            raise OptionError(f"option {key!r} must be the path of a folder, not {value!r}")
    elif kind is bool:
        if not isinstance(value, bool):
            raise OptionError(f"option {key!r} must be True or False, not {value!r}")
    elif kind is int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionError(
                f"option {key!r} must be an integer, not {type(value).__name__} ({value!r})"
            )
        if value < (key == "max_executables"):
            raise OptionError(f"option {key!r} must not be {value}")
    elif not isinstance(value, Mapping):
        raise OptionError(f"option {key!r} must be a dict, not {type(value).__name__} ({value!r})")
    elif not all(isinstance(k, str) for k in value):
        raise OptionError(f"the keys of option {key!r} must be names of XLA's options")


def _are_bounds(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(n, int) and not isinstance(n, bool) and n > 1 for n in value)
    )
