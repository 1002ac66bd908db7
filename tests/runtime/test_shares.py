"""How work is shared: as many threads as XLA's pool has, and ranges of about the same size."""

import itertools
import os

import pytest

from xla_dynamo.runtime.cpu.shares import ranges, threads


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("NPROC", "PJRT_NPROC"):
        monkeypatch.delenv(name, raising=False)


def test_a_thread_for_each_core_that_may_be_used():
    assert threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"NPROC": "3"}, 3),
        ({"PJRT_NPROC": "5", "NPROC": "3"}, 5),
        ({"NPROC": "0"}, None),
        ({"NPROC": "many"}, None),
        ({"NPROC": ""}, None),
    ],
)
def test_the_environment_says_how_many(given, expected, monkeypatch):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert threads() == (expected or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("count", [0, 1, 2, 5, 16, 17])
@pytest.mark.parametrize("number", [1, 2, 3, 16])
def test_ranges(count, number):
    found = ranges(count, number)
    assert [i for one in found for i in one] == list(range(count))
    assert len(found) == min(count, number)
    assert all(abs(len(a) - len(b)) <= 1 for a, b in itertools.combinations(found, 2))
