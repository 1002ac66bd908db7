"""`python -m tests.faults` draws, puts in and finds faults, on a package of one file."""

import json
import re

import pytest

from docs.import_floors import ROOT
from tests.faults import __main__ as tool
from tests.faults import reach
from tests.faults.draw import draw, faults_by_room, lines_by_room
from tests.faults.run import FOUND, HANG, NOT_FOUND, NOT_REACHED, Settings, examine_all
from tests.faults.sites import KINDS, compiles, faults_of

NUMBERS = '''\
"""Arithmetic."""

import contextlib
import threading

lock = threading.Lock()
running: dict[int, int] = {0: 1}


def middle(numbers: list[int], low: bool = 1 < 2) -> int:
    """One of the numbers: numbers[1]."""
    if not numbers:
        return 0
    if len(numbers) == 1 and (
        low
    ):
        raise ValueError(f"too {len(numbers) - 1} {sorted(numbers, reverse=1 < 2)}")
    with lock:
        numbers = sorted(numbers, key=lambda n: n - 1)
    return numbers[len(numbers) // 2]


def key_of(
    name,
    size,
):
    print("asked")
    assert size != 7
    return (
        name,  # and
        (size),
    )


def unused(a, b):
    with contextlib.suppress(ValueError), lock:
        cached = {(a, b, 0): 1}
    return cached.get((a, b, 0)) if a and b is not None else cached


def countdown(n):
    while n > 0:
        n -= abs(1)
        if n == 2:
            continue
        if n == 100:
            return 100
    return n


def drain(items):
    while items:
        items.pop()


class Shown:
    def __repr__(self):
        return "a" if self is None else "b"
'''

TESTS = """\
import os
import pathlib
import subprocess
import sys

import pytest

from xla_dynamo import numbers


def test_middle():
    assert numbers.middle([3, 1, 2]) == 2


def test_nothing():
    assert numbers.middle([]) == 0


def test_key_in_a_child_process(tmp_path):
    program = "from xla_dynamo import numbers; print(numbers.key_of('a', 1))"
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert out.endswith("('a', 1)\\n")


def test_countdown():
    assert numbers.countdown(3) == 0


def test_drain():
    numbers.drain([1])


def test_that_fails():
    numbers.middle([])
    pytest.fail("even without a fault")


@pytest.mark.parametrize("where", [os.getcwd()])
def test_of_another_name_in_a_copy(where):
    numbers.middle([])


def test_that_fails_in_a_copy():
    numbers.middle([])
    assert pathlib.Path(".faults").exists()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A checkout of a small package, whose tests need no torch."""
    root = tmp_path_factory.mktemp("checkout")
    for name, text in {
        "xla_dynamo/__init__.py": '"""Nothing."""\n',
        "xla_dynamo/numbers.py": NUMBERS,
        "tests/test_numbers.py": TESTS,
        "pytest.ini": "[pytest]\n",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def reached(root):
    out = root / ".faults" / "reach.sqlite"
    status, percent = reach.record(root, out, ["-q", "-n", "0"])
    assert status == pytest.ExitCode.TESTS_FAILED
    assert 50 < percent < 100
    return out


def faults():
    return faults_of("xla_dynamo/numbers.py", NUMBERS.encode())


def test_every_fault_compiles_and_changes_one_place():
    source = NUMBERS.encode()
    assert {fault.kind for fault in faults()} == set(KINDS)
    for fault in faults():
        assert compiles(fault, source), fault
        text = fault.put_into(source)
        assert text.count(b"\n") == source.count(b"\n"), fault
        assert text[: fault.start] == source[: fault.start]
        assert text[fault.start :].endswith(source[fault.end :])


def test_messages_annotations_defaults_and_assertions_stay_right():
    lines = NUMBERS.splitlines()
    right = ("def ", "running:", '"""', "raise", "assert", 'return "a"')
    for fault in faults():
        assert not any(word in lines[fault.line - 1] for word in right), fault


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("comparison", "n > 0", "n >= 0"),
        ("comparison", "b is not None", "b is b"),
        ("keyword", "sorted(numbers, key=lambda n: n - 1)", "sorted(numbers)"),
        ("off by one", "1", "2"),
        ("swapped", "len(numbers) // 2", "2 // len(numbers)"),
        ("negated", "not numbers", "numbers"),
        ("lock", "with lock", "if True"),
        ("lock", ", lock", ""),
        ("key", "(a, b, 0)", "(b, 0)"),
        ("key", "(a, b, 0)", "(a, b)"),
        ("statement", 'print("asked")', "pass"),
        ("guard", "if not numbers:\n        return 0", "pass\n"),
    ],
)
def test_kinds(kind, before, after):
    after = after.replace("b is b", "b is None")
    assert any((f.kind, f.before, f.after) == (kind, before, after) for f in faults())


def test_operands_keep_their_parentheses():
    source = b"def f(a, b, c):\n    return (a + b) - c, a - b - c, (a) < (b), not (a and b)\n"
    (swapped, *others) = [f.after for f in faults_of("f.py", source) if f.kind == "swapped"]
    assert swapped == "c - (a + b)"
    assert others == ["c - (a - b)", "b - a"]
    (less,) = [f.after for f in faults_of("f.py", source) if f.kind == "comparison"]
    assert less == "(a) <= (b)"


def test_a_long_fault_is_shown_by_what_changes():
    arguments = ", ".join(f"argument_{n}" for n in range(30))
    source = f"def f():\n    return call({arguments}, one=1, two=2)\n"
    shown = [f.change() for f in faults_of("f.py", source.encode())]
    assert "…, argument_29, one=1, two=2) → …, argument_29, one=1)" in shown


def test_the_seed_draws():
    count = 80  # more than there are rooms, so that each has one
    drawn = draw(ROOT, count, 1)
    assert drawn == draw(ROOT, count, 1) != draw(ROOT, count, 2)
    assert len(set(drawn)) == count
    for fault in drawn:
        assert compiles(fault, (ROOT / fault.path).read_bytes()), fault
    rooms = faults_by_room(ROOT)
    assert all(set(drawn) & set(of_room) for of_room in rooms.values())
    largest = max(rooms, key=lines_by_room(ROOT).__getitem__)
    counts = {room: len(set(drawn) & set(of_room)) for room, of_room in rooms.items()}
    assert counts[largest] == max(counts.values())
    assert {fault.kind for fault in drawn} == set(KINDS)


def test_lines_are_reached_by_tests_and_their_child_processes(reached):
    known = reach.Reach(reached)
    tests = {f.before: [re.split(r"::|\[", t)[1] for t in known.tests(f)] for f in faults()}
    assert tests['print("asked")'] == ["test_key_in_a_child_process"]
    assert tests["if not numbers:\n        return 0"] == [
        "test_nothing",
        "test_of_another_name_in_a_copy",
        "test_that_fails_in_a_copy",
    ]
    assert tests["if n == 2:\n            continue"] == ["test_countdown"]
    assert tests["if n == 100:\n            return 100"] == []
    assert tests["n > 0"] == ["test_countdown"]
    assert tests["b is not None"] == []


def test_faults_are_found_or_not(root, reached):
    key = "(\n        name,  # and\n        (size),\n    )"
    wanted = {
        ("guard", "if not numbers:\n        return 0"): (FOUND, "test_nothing"),
        ("key", key): (FOUND, "test_key_in_a_child_process"),
        ("lock", "with lock"): (NOT_FOUND, None),
        ("comparison", "b is not None"): (NOT_REACHED, None),
        ("statement", "items.pop()"): (HANG, "test_drain"),
    }
    chosen = [f for f in faults() if (f.kind, f.before) in wanted]
    assert len(chosen) == len(wanted) + 1  # there are two keys
    settings = Settings(limit=10)
    chosen.reverse()  # the one that hangs takes the longest
    for fault, outcome in examine_all(root, chosen, reached, settings, jobs=2):
        result, test = wanted[fault.kind, fault.before]
        assert outcome.result == result, (fault, outcome)
        assert test is None or outcome.test.endswith(test)
    assert (root / "xla_dynamo" / "numbers.py").read_text() == NUMBERS


def test_an_interrupted_run_goes_on(root, reached, capsys):
    """Faults whose outcome is known are not examined again."""
    out = root / ".faults" / "outcome.json"
    several = ["--count", "3", "--seed", "5", "--reach", str(reached), "--out", str(out)]
    assert tool.main(["run", *several, "--only", "2"], root) == 0
    first = json.loads(out.read_text())["faults"]
    capsys.readouterr()
    assert tool.main(["run", *several, "--resume"], root) == 0
    told = re.findall(r"^(\d)\. xla_dynamo", capsys.readouterr().out, re.MULTILINE)
    assert sorted(told) == ["1", "3"]
    faults = json.loads(out.read_text())["faults"]
    assert len(faults) == 3
    assert faults[:1] == first


def test_the_arguments(capsys):
    with pytest.raises(SystemExit):
        tool.main(["run", "--only", "41"])
    assert "--only must be a number from 1 to 40" in capsys.readouterr().err
