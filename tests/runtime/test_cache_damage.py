"""Damaged files of the disk cache: no crash, no wrong result, each a logged miss."""

import random

import pytest
import torch

from tests.runtime.disk_caches import EAGER, cache_in, check, counted, logged
from xla_dynamo import metrics


def _flip(files, chosen, draw):
    data = bytearray(chosen.read_bytes())
    for _ in range(draw.choice([1, 1, 3])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return {chosen: bytes(data)}


def _overwrite(files, chosen, draw):
    data = bytearray(chosen.read_bytes())
    start = draw.randrange(len(data))
    data[start : start + 512] = draw.randbytes(min(512, len(data) - start))
    return {chosen: bytes(data)}


def _truncate(files, chosen, draw):
    data = chosen.read_bytes()
    return {chosen: data[: draw.choice([0, draw.randrange(len(data))])]}


def _extend(files, chosen, draw):
    return {chosen: chosen.read_bytes() + draw.randbytes(draw.randrange(1, 100))}


def _zeros(files, chosen, draw):
    """As after a power failure on file systems that had written the length alone."""
    return {chosen: bytes(chosen.stat().st_size)}


def _swap(files, chosen, draw):
    other = draw.choice([file for file in files if file != chosen])
    return {chosen: other.read_bytes(), other: chosen.read_bytes()}


def _mix(files, chosen, draw):
    """The header of one entry before the bytes of another."""
    other = draw.choice([file for file in files if file != chosen])
    header, rest = chosen.read_bytes().split(b"}\n", 1), other.read_bytes().split(b"}\n", 1)
    return {chosen: header[0] + b"}\n" + rest[1]}


DAMAGES = (_flip, _flip, _overwrite, _truncate, _extend, _zeros, _swap, _mix)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 60), pytest.param(1, 1000, marks=pytest.mark.slow)]
)
def test_damage_is_a_logged_miss(tmp_path, seed, rounds):
    draw = random.Random(seed)
    with cache_in(tmp_path):
        entries = {}
        for operation in EAGER:
            check(operation)
            (new,) = set(tmp_path.iterdir()) - set(entries.values())
            entries[operation] = new
        for number in range(rounds):
            files = list(entries.values())
            damage = DAMAGES[number % len(DAMAGES)]
            changed = damage(files, draw.choice(files), draw)
            changed = {f: data for f, data in changed.items() if data != f.read_bytes()}
            for file, data in changed.items():
                file.write_bytes(data)
            with counted() as found, logged() as lines:
                saved = {operation: check(operation) for operation in EAGER}
            name = damage.__name__
            assert saved == {o: file not in changed for o, file in entries.items()}, name
            assert found["DamagedEntry"] == found["Miss"] == len(lines) == len(changed), name
            assert all("is not used" in line for line in lines)
            assert set(tmp_path.iterdir()) == set(entries.values())  # whole again


@pytest.mark.parametrize(("seed", "rounds"), [(2, 8), pytest.param(3, 200, marks=pytest.mark.slow)])
def test_damaged_programs_are_logged_misses(tmp_path, seed, rounds):
    draw = random.Random(seed)
    functions = [lambda x: (x * 2).sin(), lambda x: x.softmax(-1)]
    x = torch.randn(4, 8)

    def found_again(f):
        torch._dynamo.reset()
        before = metrics.counter_value("PersistentCacheProgramHit")
        torch.testing.assert_close(torch.compile(f, backend="openxla")(x), f(x))
        return metrics.counter_value("PersistentCacheProgramHit") > before

    with cache_in(tmp_path):
        entries = []
        for f in functions:
            assert not found_again(f)
            entries += set(tmp_path.glob("program-*")) - set(entries)
        everything = set(tmp_path.iterdir())
        for number in range(rounds):
            damage = DAMAGES[number % len(DAMAGES)]
            changed = damage(entries, draw.choice(entries), draw)
            changed = {f: data for f, data in changed.items() if data != f.read_bytes()}
            for file, data in changed.items():
                file.write_bytes(data)
            with counted() as found, logged() as lines:
                saved = [found_again(f) for f in functions]
            assert saved == [file not in changed for file in entries], damage.__name__
            assert found["DamagedEntry"] == len(lines) == len(changed), damage.__name__
            assert set(tmp_path.iterdir()) == everything


def test_what_is_no_program_is_a_logged_miss(tmp_path):
    """As from other sources of ours that have the same digest: whole, but nothing to read."""

    def f(x):
        return x.cos()

    x = torch.randn(4)
    with cache_in(tmp_path) as folder:
        torch.compile(f, backend="openxla")(x)
        (file,) = tmp_path.glob("program-*")
        folder.write("program", file.name.removeprefix("program-"), b"something else")
        torch._dynamo.reset()
        with logged() as lines:
            torch.testing.assert_close(torch.compile(f, backend="openxla")(x), f(x))
    assert "cannot be read" in lines[0]


def test_what_pjrt_cannot_load_is_a_logged_miss(tmp_path):
    """As from another build of the same version: whole, but nothing that PJRT can read."""
    with cache_in(tmp_path) as folder:
        check("add")
        (file,) = tmp_path.iterdir()
        folder.write("executable", file.name.removeprefix("executable-"), b"something else")
        with counted() as found, logged() as lines:
            assert not check("add")
        assert found == {"Hit": 0, "Miss": 1, "DamagedEntry": 0, "DeserializeFailure": 1}
        assert "cannot be loaded" in lines[0]
        assert check("add")


@pytest.mark.parametrize("readonly", [False, True])
def test_a_folder_that_is_a_file(tmp_path, readonly):
    (tmp_path / "file").write_text("not a folder")
    with cache_in(tmp_path / "file", readonly), logged() as lines:
        assert not check("add")
        assert not check("add")
    assert bool(lines)
    assert (tmp_path / "file").read_text() == "not a folder"
