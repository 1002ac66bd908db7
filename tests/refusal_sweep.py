"""What eager refuses, compiled: the error inputs of torch's operator database, and its dtypes.

As a command, all of it, with a count: `python -m tests.refusal_sweep`.
"""

import argparse
import collections
import itertools
import re
import warnings
from collections.abc import Iterator

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests import lean_torch  # noqa: F401
from tests.limitations import NOT_ON_CPU
from tests.op_database import full_name
from tests.op_forms import eagerly, run_compiled, values

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
# How many samples are looked through for one that eager refuses at a dtype.
_SAMPLES = 6
OPERATORS = [op for op in op_db if op.name not in NOT_ON_CPU]


def with_error_inputs() -> list[OpInfo]:
    """The operators that the database has error inputs of."""
    return [op for op in OPERATORS if op.error_inputs_func is not None]


def refused_inputs(op: OpInfo) -> Iterator[tuple[int, SampleInput]]:
    """An operator's error inputs that eager refuses, with their numbers."""
    for number, error in enumerate(op.error_inputs("cpu")):
        if _eager_refuses(op, error.sample_input):
            yield number, error.sample_input


def refused_dtypes(op: OpInfo) -> Iterator[tuple[torch.dtype, SampleInput]]:
    """Dtypes that an operator does not support, with a sample that eager refuses."""
    for dtype in DTYPES:
        if dtype in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", dtype), _SAMPLES))
        except Exception:
            continue  # the database can make none
        refused = (sample for sample in samples if _eager_refuses(op, sample))
        if (sample := next(refused, None)) is not None:
            yield dtype, sample


def _eager_refuses(op: OpInfo, sample: SampleInput) -> bool:
    try:
        _quietly(op, sample, eagerly)
    except Exception:
        return True
    return False


def refusal(op: OpInfo, sample: SampleInput) -> Exception | None:
    """What compiling an operator, or running it compiled, raises; None if it computes."""

    def compiled(program, tensors):
        return run_compiled(program, tensors, "openxla", fullgraph=True)

    try:
        _quietly(op, sample, compiled)
    except Exception as error:
        return error
    return None


def _quietly(op, sample, run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return values(op, sample, run)


def main() -> None:
    """Print what is computed though eager refuses it, and a count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression of names")
    parser.add_argument("--what", choices=("inputs", "dtypes"), default="inputs")
    options = parser.parse_args()
    every = {"inputs": refused_inputs, "dtypes": refused_dtypes}[options.what]
    tally: collections.Counter[str] = collections.Counter()
    for op in with_error_inputs() if options.what == "inputs" else OPERATORS:
        if not re.search(options.pattern, full_name(op)):
            continue
        for which, sample in every(op):
            error = refusal(op, sample)
            tally["refused" if error else "computed"] += 1
            if error is None:
                print(f"computed {full_name(op)} {which}: {sample.summary()[:200]}", flush=True)
    share = tally["refused"] / max(tally.total(), 1)
    print(f"{tally['refused']} of {tally.total()} that eager refuses are refused: {share:.1%}")


if __name__ == "__main__":
    main()
