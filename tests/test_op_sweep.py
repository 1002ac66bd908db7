"""torch's operator database through `torch.compile(fullgraph=True)`: value, dtype, shape, stride.

Each operator, dtype and form either passes or has a row in `limitations.py`, and a row that no
longer fails must go. By default a sample of the `QUICK` forms and dtypes; with `-m slow`,
all of them, at every dtype.
"""

import pytest
import torch

from tests.limitations import (
    CUT_BY_DYNAMO,
    DIFFERENCES,
    DTYPES,
    GRAPH_BREAKS,
    LIMITATIONS,
    NOT_ON_CPU,
    UNSUPPORTED,
    limitation,
)
from tests.op_database import full_name, operators
from tests.op_forms import FORMS
from tests.op_sweep import check

# In `make test`: of which forms and dtypes one of n operators is run, and how many samples.
QUICK = {
    ("values", torch.float32): (1, 1),
    ("values", torch.int64): (8, 1),
    ("gradients", torch.float32): (6, 1),
    ("in-place", torch.float32): (16, 1),
    ("out", torch.float32): (16, 1),
    ("special", torch.float32): (8, 1),
    ("literals", torch.bool): (16, 1),
}
PAIRS = [
    (form, op, dtype) for form in FORMS for dtype in DTYPES[form] for op in operators(dtype, form)
]


def pytest_generate_tests(metafunc):
    """The cases, without those that nobody asks for: 20,000 of them take long to collect."""
    if "op" not in metafunc.fixturenames:
        return
    pairs = PAIRS
    if metafunc.definition.get_closest_marker("limited"):
        pairs = [p for p in pairs if limitation(full_name(p[1]), p[2], p[0])]
    if metafunc.config.option.markexpr == "not slow":
        pairs = [(form, op, dtype) for form, op, dtype in pairs if (form, dtype) in QUICK]
    metafunc.parametrize(("form", "op", "dtype"), [_case(*pair) for pair in pairs])


def _case(form, op, dtype):
    name = f"{form}-{full_name(op)}-{str(dtype).removeprefix('torch.')}"
    quick = (form, dtype) in QUICK
    mark = pytest.mark.every(QUICK[form, dtype][0], form, dtype) if quick else pytest.mark.slow
    return pytest.param(form, op, dtype, id=name, marks=mark)


def sweep(form, op, dtype, limit):
    name = full_name(op)
    row = limitation(name, dtype, form)
    differs = dtype in DIFFERENCES.get(form, {}).get(name, ((), ""))[0]
    # A limitation or a difference may show in one sample of many.
    outcome = check(op, dtype, None if row or differs else limit, form=form)
    if outcome.status == "unsupported":  # of the first samples, maybe not of all
        outcome = check(op, dtype, form=form)
    if row is not None:
        # Where Dynamo cuts the graph at the operator itself, the rest of it is right.
        wanted = {"fail", "pass", "breaks"} if name in CUT_BY_DYNAMO else {"fail"}
        assert outcome.status in wanted, f"passes now: remove its row ({row.reason})"
        return
    expected = {"breaks" if name in GRAPH_BREAKS[form][dtype] else "pass"}
    if differs:
        expected = {"fail"}
    elif name in NOT_ON_CPU:
        expected = {"refused"}
    elif form in ("in-place", "out"):
        expected.add("refused")  # by eager: a result of another dtype, or of no tensors
    if name in UNSUPPORTED.get(form, ()):
        expected = {"unsupported", "refused"}
    assert outcome.status in expected, outcome.detail or "limitations.py is not true"


def test_a_few_samples(form, op, dtype):
    sweep(form, op, dtype, QUICK.get((form, dtype), (1, 1))[1])


@pytest.mark.slow
def test_every_sample(form, op, dtype):
    sweep(form, op, dtype, None)


@pytest.mark.limited
def test_limited_operators_run_eagerly(form, op, dtype):
    outcome = check(op, dtype, 4, form=form, fallback="eager")
    assert outcome.status == "pass", outcome.detail


@pytest.mark.slow
@pytest.mark.limited
def test_limited_operators_run_eagerly_on_every_sample(form, op, dtype):
    outcome = check(op, dtype, None, form=form, fallback="eager")
    assert outcome.status == "pass", outcome.detail


def test_at_least_95_percent_are_compiled_whole():
    """Of the pairs that pass, all of them: in pieces, or with operators in eager torch."""
    run = [
        (full_name(op), dtype)
        for form, op, dtype in PAIRS
        if form == "values" and full_name(op) not in NOT_ON_CPU
    ]
    breaks = GRAPH_BREAKS["values"]
    whole = [(n, dtype) for n, dtype in run if not limitation(n, dtype) and n not in breaks[dtype]]
    assert len(whole) >= 0.95 * len(run)


@pytest.mark.parametrize("form", FORMS)
def test_rows_name_operators_of_the_database(form):
    names = {(full_name(op), dtype) for f, op, dtype in PAIRS if f == form}
    rows = {(row.op, dtype) for row in LIMITATIONS[form] for dtype in row.dtypes}
    breaks = {(name, dtype) for dtype, those in GRAPH_BREAKS[form].items() for name in those}
    assert not {pair for pair in rows | breaks if pair[1] in DTYPES[form]} - names
    assert all(row.reason for row in LIMITATIONS[form])
