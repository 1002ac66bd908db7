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
    """Validated options, in the order in which docs/switches.md has them.

    Attributes:
        freeze: in inference, what depends on parameters and buffers alone (casts, batch norm folded
            into convolutions) is computed once, and anew after a change: by an optimizer,
            `load_state_dict`, operators in place, other memory, batch norm. Call
            `xla_dynamo.refreeze()` after changes that torch does not count: through `.data` or
            NumPy, by collectives of torch.distributed, by other processes. On x86 Linux,
            convolutions of images and matrix products run with weights packed once, and with
            activations and residual sums inside.
        tune: on x86 Linux, measure on this machine in which form a matrix product is the fastest,
            where nobody has yet: XLA's own, or a plan of oneDNN's by one division among threads or
            another. It takes about 0.3 s for each product of other sizes, once: the disk cache
            keeps the winners by the model of the processor, and every later process takes them,
            with this option or without. `xla-dynamo tune module:function` does it ahead, and shows
            what it found (docs/command-line.md). On other platforms it does nothing.
        buckets: on the CPU, what graphs of dynamic sizes are compiled for, forward and backward.
            "auto" compiles for upper bounds of the sizes that change, and one executable serves
            all sizes up to a bound, with eager's results. The bounds are powers of two from 32 on;
            those of a batch begin with 4 and lie closer, and so do those of a size that stays the
            same while another changes, as the number of requests that a server runs at a time.
            Where padding has taken four times as long as a compilation, a closer bound is compiled
            in the background. A list of integers gives the bounds; "exact" compiles for each tuple
            of sizes. So are graphs for which bounds are not proved, and convolutions of a dynamic
            batch, which oneDNN runs several times as fast at known sizes; `xla_dynamo.explain`
            tells the operator and the line that decided so.
        while_compiling: what a call with new dynamic sizes does while its executable is compiled.
            "wait" waits for it; "larger" runs in the next larger bucket that is compiled already,
            and waits where there is none; "eager" runs in eager torch. With the last two a thread
            in the background compiles, and what it raises the next call raises. Calls that need
            another executable never wait.
        max_executables: how many executables a graph with dynamic sizes keeps; the least recently
            used one goes first.
        fallback: "eager" runs what XLA cannot run in eager torch, between compiled parts of the
            graph; "error" raises UnsupportedOperator instead.
        rng: "xla" draws random numbers inside the compiled program; "torch" draws eager's very
            numbers with torch's generator, between compiled parts, for comparisons with eager.
        matmul_precision: of float32 products, as for `torch.set_float32_matmul_precision`. The CPU
            has only "highest"; CUDA makes TF32 of the others. Convolutions stay as they are.
        libraries: what programs may call where it is faster: "onednn" for convolutions and matrix
            products on x86 CPUs, with what follows a product inside the call; and "torch", its own
            kernels on the CPU, for fused attention, products of groups (mixtures of experts) and
            weight gradients of convolutions (on x86 float32 ones are oneDNN's). `[]` leaves all to
            XLA.
        constant_limit: literal tensors, as `torch.tensor([1, 2])`, of up to this many elements are
            written into the program, where XLA can fold them; others become arguments.
        xla_options: XLA's own debug options for these executables, as in
            `{"xla_cpu_enable_fast_math": True}`. They come before XLA_FLAGS, and before those that
            are set by default (runtime/xla_options.py).
        dump: a folder into which each program that is compiled is dumped, as by the environment
            variable XLA_DYNAMO_DUMP: a folder of its own, with a `run.py` that runs it alone
            (docs/debugging.md).
    """

    freeze: bool = False
    tune: bool = False
    buckets: str | tuple[int, ...] = "auto"
    while_compiling: str = "wait"
    max_executables: int = 64
    fallback: str = "eager"
    rng: str = "xla"
    matmul_precision: str = dataclasses.field(
        default_factory=precision_of_torch, metadata={"default": "what torch was told"}
    )
    libraries: tuple[str, ...] = tuple(LIBRARIES)
    constant_limit: int = 64
    xla_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
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


def kind_of(key: str) -> str:
    """What an option takes, in words."""
    if key in CHOICES:
        return f"one of {CHOICES[key]}"
    return _KINDS.get(key, "True or False")


_KINDS = {
    "constant_limit": "an integer, 0 or more",
    "max_executables": "an integer, 1 or more",
    "buckets": "'auto', 'exact' or a list of sizes above 1",
    "dump": "the path of a folder",
    "libraries": f"a list out of {tuple(LIBRARIES)}",
    "xla_options": "a dict",
}


def _check(key: str, value: Any, kind: Any) -> None:
    """Raise OptionError unless an option may have this value."""
    if key in CHOICES:
        is_right = value in CHOICES[key]
    elif key == "libraries":
        is_right = isinstance(value, list | tuple) and all(name in LIBRARIES for name in value)
    elif key == "buckets":
        is_right = _are_bounds(value) or (isinstance(value, str) and value in ("auto", "exact"))
    elif key == "dump":
        is_right = isinstance(value, str | None)
    elif key == "xla_options":
        is_right = isinstance(value, Mapping)
    else:
        is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not is_right:
        told = f"{type(value).__name__} ({value!r})"
        raise OptionError(f"option {key!r} must be {kind_of(key)}, not {told}")
    if kind is int and value < (key == "max_executables"):
        raise OptionError(f"option {key!r} must not be {value}")
    if key == "xla_options" and not all(isinstance(k, str) for k in value):
        raise OptionError(f"the keys of option {key!r} must be names of XLA's options")


def _are_bounds(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(n, int) and not isinstance(n, bool) and n > 1 for n in value)
    )
