"""Damaged files of the disk cache: no crash, no wrong result, each a logged miss."""

import random

import pytest

from tests.runtime.disk_caches import EAGER, cache_in, check, counted, logged


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
