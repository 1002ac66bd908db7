"""The suite's own tools: which cases are drawn, what is near to a change, what was left untried."""

import collections
import fnmatch
import pathlib
import re
import subprocess
import sys

import pytest

from tests import check, drawing

# Run on a folder of its own: a test with ten cases, of which one run takes two.
SWEEP = """
import pytest

@pytest.mark.every(5)
@pytest.mark.parametrize("n", range(10))
def test_sweep(n):
    pass
"""
CONFTEST = """
from tests import drawing

def pytest_addoption(parser):
    parser.addoption("--draw")

def pytest_collection_modifyitems(config, items):
    drawing.mark_slow(items, config.option.draw)
"""


def drawn(folder, seed):
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_sweep.py").write_text(SWEEP)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["-c", "/dev/null", "--rootdir", str(folder), "-m", "not slow", "--draw", seed]
    command += ["-p", "no:randomly", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=check.ROOT)
    return {line.partition("[")[2] for line in run.stdout.splitlines() if "[" in line}


def test_one_of_n_cases_is_drawn_and_another_at_another_seed(tmp_path):
    first, again = drawn(tmp_path, "a"), drawn(tmp_path, "a")
    assert first == again
    assert len(first) == 2
    offsets = {drawing.number(str(seed), "test_sweep.py::test_sweep", 5) % 5 for seed in range(60)}
    assert offsets == set(range(5))  # in the end, all


def test_numbers_differ_by_seed_and_name():
    pairs = [(seed, name) for seed in ("0", "1", "c0ffee") for name in ("a", "b", "test_x[1]")]
    assert len({drawing.number(*pair) for pair in pairs}) == len(pairs)


def test_cases_that_found_a_fault_exist(request):
    """A pattern that names nothing any more would let a fault come back."""
    names = {item.nodeid.removeprefix("tests/") for item in request.session.items}
    collected = {name.partition("::")[0] for name in names}
    for pattern in drawing.FOUND:
        if pattern.partition("::")[0] in collected:
            assert any(fnmatch.fnmatchcase(name, pattern) for name in names), pattern


@pytest.mark.parametrize("pattern", drawing.DRAWN)
def test_what_is_drawn_exists_and_has_the_chance_that_is_told(pattern):
    """A pattern that names nothing draws nothing; and no test is left out at all commits."""
    files, _, tests = pattern.partition("::")
    paths = list(pathlib.Path(drawing.__file__).parent.glob(files))
    text = "".join(path.read_text() for path in paths)
    names = fnmatch.filter(re.findall(r"^def (test_\w+)", text, re.M), tests.removesuffix("[[]*"))
    assert names
    n = drawing.DRAWN[pattern]
    for name in names:
        runs = sum(
            drawing.number(str(seed), f"{paths[0].name}::{name}") % n == 0 for seed in range(300)
        )
        assert 0.7 / n < runs / 300 < 1.3 / n


@pytest.mark.parametrize(
    ("changed", "nearest"),
    [
        ("tests/test_tiny.py", "tests/test_tiny.py"),
        ("lowerings/passes/outline.py", "tests/lowerings/passes/test_outline.py"),
        ("xla_dynamo/lazy/growth.py", "tests/test_lazy_device.py"),
        ("runtime/cache_folder.py", "tests/runtime/test_cache_folder.py"),
        ("bench/serve.py", "tests/bench/test_serve.py"),
        ("tests/spmd/small_transformer.py", "tests/spmd/test_recipes_"),
    ],
)
def test_the_nearest_tests_come_first(changed, nearest):
    assert check.nearest({changed})[0].startswith(nearest)


def test_files_are_taken_as_far_as_the_time_goes(monkeypatch, tmp_path):
    durations = tmp_path / "durations.json"
    durations.write_text('{"tests/a.py": 50, "tests/b.py": 400, "tests/c.py": 20}')
    monkeypatch.setattr(check, "DURATIONS", durations)
    taken, left = check.affordable(["tests/a.py", "tests/b.py", "tests/c.py"], 60)
    assert taken == [*check.ALWAYS, "tests/a.py", "tests/c.py"]
    assert left == ["tests/b.py"]


def test_nobody_imports_what_is_far():
    """Distances grow by one from reader to reader."""
    imports = {"a": set(), "b": {"a"}, "c": {"b"}, "d": set()}
    found = check.distances(["a.py"], imports, {name: f"{name}.py" for name in imports})
    assert found == {"a.py": 0, "b.py": 1, "c.py": 2}
    assert not check.distances(["none.py"], collections.defaultdict(set), {})
