"""torch's own operator database run through the backend, one operator and dtype at a time.

As a command, for work on the rules: `python -m tests.op_sweep 'fft' --dtype float32 --all`.
"""

import argparse
import collections
import dataclasses
import functools
import itertools
import re
import sys
import traceback
import warnings
from typing import Any

import numpy as np
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import xla_dynamo
from tests.comparison import (
    compare,
    compare_with_exact,
    settle_ties,
    whole_or_in_pieces,
    widened,
)
from tests.op_database import (
    DRAWN,
    ILL_CONDITIONED,
    ROUNDING,
    SEVEN_DIGITS,
    TIES,
    UNINITIALIZED,
    UP_TO_SIGN,
    full_name,
    operators,
    samples,
)
from tests.op_forms import FORMS, eagerly, on_device, run_compiled


@dataclasses.dataclass
class Outcome:
    """What became of one operator and dtype.

    "pass", "fail", "breaks" (right, but Dynamo cannot trace it as one graph), "unsupported" by
    Dynamo even in pieces, or "refused" by eager torch.
    """

    status: str
    samples: int = 0
    detail: str = ""


def _drops(op: OpInfo, sample: SampleInput) -> bool:
    """Whether an attention sample asks for dropout, which is drawn at random."""
    if op.name == "nn.functional.multi_head_attention_forward":
        return sample.kwargs["training"]
    return sample.kwargs.get("dropout_p", 0) > 0


def _exact(op: OpInfo, sample: SampleInput, form: str) -> Any:
    """The result of eager torch in float64, or of SciPy where that is coarse."""
    if full_name(op) in SEVEN_DIGITS:
        better = SEVEN_DIGITS[full_name(op)]
        return torch.from_numpy(np.asarray(better(sample.input.double().numpy())))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what integers become
    try:
        return FORMS[form](op, sample.transform(widened), eagerly)
    finally:
        torch.set_default_dtype(default)


def check(
    op: OpInfo, dtype: torch.dtype, limit: int | None = None, *, form: str = "values", **how: Any
) -> Outcome:
    """Run an operator's samples; see `check_sample`."""
    seen: collections.Counter[str] = collections.Counter()
    for sample in samples(op, dtype, limit, form):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = check_sample(op, dtype, sample, form=form, **how)
        if outcome.status == "fail":
            return dataclasses.replace(outcome, samples=seen.total())
        seen[outcome.status] += 1
    found = next((s for s in ("pass", "breaks", "unsupported") if seen[s]), "refused")
    return Outcome(found, seen[found])


def check_sample(
    op: OpInfo,
    dtype: torch.dtype,
    sample: SampleInput,
    *,
    form: str = "values",
    fallback: str = "error",
    rng: str = "xla",
    road: str = "compile",
) -> Outcome:
    """Compare one sample with eager: as one graph, or in pieces where Dynamo itself needs them.

    With road="device", on the lazy 'xla' device instead.

    A sample that eager refuses, or that `aot_eager` cannot run even in pieces, does not count. With
    rng="torch", torch's generator must also come out of both runs in the same state.
    """
    if road == "device":
        xla_dynamo.device()  # before the first backward
    call = functools.partial(FORMS[form], op, sample)
    try:
        expected = call(eagerly)
        state = torch.get_rng_state()
    except Exception:
        return Outcome("refused")
    try:
        if road == "device":
            status, actual = "pass", call(on_device)
        else:
            status, actual = whole_or_in_pieces(
                lambda **how: call(functools.partial(run_compiled, **how)),
                fallback=fallback,
                rng=rng,
            )
        same_state = torch.equal(state, torch.get_rng_state())
    except Exception as error:
        text = "".join(traceback.format_exception_only(error))
        return Outcome("fail", detail=f"raised on {sample.summary()}\n{text}")
    if status == "unsupported":
        return Outcome(status)
    try:
        assert same_state or rng == "xla", "the generator's state"
        _compare(op, dtype, sample, form, expected, actual, drawn=rng == "xla")
    except AssertionError as error:
        return Outcome("fail", detail=f"differs on {sample.summary()}\n{error}")
    return Outcome(status)


def _compare(
    op: OpInfo,
    dtype: torch.dtype,
    sample: SampleInput,
    form: str,
    expected: Any,
    actual: Any,
    *,
    drawn: bool,
) -> None:
    """Raise AssertionError if results differ more than they may; `drawn`: by XLA, if at random."""
    exact = op.name not in UNINITIALIZED
    exact &= not (drawn and (op.name in DRAWN or _drops(op, sample)))
    strides = form != "gradients"
    if op.name in TIES and form != "gradients":
        actual = settle_ties(sample.input, expected, actual)
    if op.name in UP_TO_SIGN and form != "gradients":
        compare(expected, actual, values=False)
        expected, actual = map(sample.output_process_fn_grad, (expected, actual))
    try:
        compare(expected, actual, values=exact, strides=strides)
    except AssertionError:
        # Half types are rounded after every step in eager, and less often in XLA.
        if full_name(op) not in ROUNDING | SEVEN_DIGITS.keys() and dtype.itemsize != 2:
            raise
        compare(expected, actual, values=False, strides=strides)
        factor = ILL_CONDITIONED.get(full_name(op), 2)
        compare_with_exact(_exact(op, sample, form), expected, actual, factor)


def main() -> None:
    """Print a line for each operator that fails, and a count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression of names")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--form", choices=FORMS, default="values")
    parser.add_argument("--all", action="store_true", help="every sample, not the first few")
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th operator from the i-th")
    parser.add_argument("--road", choices=("compile", "device"), default="compile")
    parser.add_argument("--fallback", choices=("error", "eager"), default="error")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.road == "device" and options.form in ("in-place", "out"):
        parser.error("--road device copies its operands: use --form values or gradients")
    dtype = getattr(torch, options.dtype)
    index, count = map(int, options.shard.split("/"))
    database = operators(dtype, options.form)
    chosen = [op for op in database if re.search(options.pattern, full_name(op))]
    tally: collections.Counter[str] = collections.Counter()
    for op in itertools.islice(chosen, index, None, count):
        limit = None if options.all else options.limit
        how = {"form": options.form, "fallback": options.fallback, "road": options.road}
        outcome = check(op, dtype, limit, **how)
        tally[outcome.status] += 1
        if outcome.status != "pass" or options.verbose:
            lines = [line for line in outcome.detail.splitlines() if line.strip()]
            shown = "\n    ".join(line[:300] for line in lines[: 12 if options.verbose else 6])
            print(f"{outcome.status:12} {full_name(op)} {options.dtype}\n    {shown}", flush=True)
    print(dict(tally))
    sys.exit(bool(tally["fail"]))


if __name__ == "__main__":
    main()
