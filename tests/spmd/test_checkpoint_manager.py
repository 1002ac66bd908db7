"""`CheckpointManager`: when it saves, what it keeps, and what damage and kills leave."""

import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading

import pytest
import torch

from tests.spmd.checkpoints import equal, manager_of
from tests.spmd.sharding import ONE_AXIS, WIDE
from xla_dynamo import spmd
from xla_dynamo.distributed_checkpoint import CheckpointManager, manager, preemption
from xla_dynamo.distributed_checkpoint.folders import StepFolders
from xla_dynamo.errors import CheckpointError

ROOT = pathlib.Path(__file__).parent.parent.parent


def state(value, mesh=ONE_AXIS, spec=("x", None)):
    """A nested state dict that is all of one value, with a sharded tensor."""
    weight = spmd.mark_sharding(torch.full((16, 8), float(value)), mesh, spec)
    return {
        "model": {"weight": weight, "bias": torch.full((5,), float(value))},
        "optimizer": {"state": {0: {"kind": f"kind {value}"}}, "param_groups": [{"lr": value}]},
        "step": value,
    }


def restored(path, step):
    found = state(-1, WIDE, ("data", "model"))
    manager_of(path).restore(step, found)
    return found


@pytest.fixture
def saved(tmp_path):
    """A folder with a checkpoint of step 3, and that checkpoint's own."""
    manager_of(tmp_path).save(3, state(3))
    return tmp_path, tmp_path / "3"


def test_values_that_are_no_tensors(saved):
    """Numbers as keys, which torch's own planner would take for strings, and tensors, in place."""
    found = restored(saved[0], 3)
    equal(found, state(3))
    assert found["optimizer"]["state"].keys() == {0}


def test_intervals(tmp_path):
    manager = CheckpointManager(tmp_path, save_interval=10, chkpt_on_preemption=False)
    assert manager.all_steps() == []
    assert [n for n in range(25) if manager.save(n, state(n))] == [0, 10, 20]
    assert not manager.save(25, state(25))
    assert manager.save(25, state(25), force=True)
    assert manager.all_steps() == [0, 10, 20, 25]
    assert CheckpointManager(str(tmp_path), 10, chkpt_on_preemption=False).all_steps() == [
        0,
        10,
        20,
        25,
    ]
    equal(restored(tmp_path, 25), state(25))


def test_the_last_ones_are_kept(tmp_path):
    """Those that were saved last, also where a run was taken up again from an earlier step."""
    manager = manager_of(tmp_path, max_to_keep=2)
    for n in (1, 2, 3):
        manager.save(n, state(n))
    assert manager.all_steps() == [2, 3]
    manager.save(1, state(10))
    assert manager.all_steps() == [1, 3]
    manager.save(1, state(11))  # in the place of itself
    assert manager.all_steps() == [1, 3]
    equal(restored(tmp_path, 1), state(11))
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "1", "3"}


def test_objects_with_state_dicts(tmp_path):
    source, target = torch.nn.Linear(4, 8), torch.nn.Linear(4, 8)
    spmd.mark_sharding(source.weight, ONE_AXIS, ("x", None))
    manager_of(tmp_path).save(0, {"model": source})
    manager_of(tmp_path).restore(0, {"model": target})
    equal(target.state_dict(), source.state_dict())


@pytest.mark.parametrize("threads", [1, 4])
def test_files_of_several_threads(tmp_path, threads):
    manager_of(tmp_path, num_of_threads=threads).save(0, state(7))
    assert len(list((tmp_path / "0").glob("*.distcp"))) == threads
    equal(restored(tmp_path, 0), state(7))


def test_async(tmp_path, monkeypatch):
    """The copy is taken at once, with its marks; only so many wait."""
    go, begun, save = threading.Event(), threading.Semaphore(0), manager.save_state

    def slowly(*args):
        begun.release()
        assert go.wait(60)
        save(*args)

    monkeypatch.setattr(manager, "save_state", slowly)
    ours, value = manager_of(tmp_path, max_pending_async=2), state(1)
    assert ours.save_async(1, value)
    begun.acquire()
    value["model"]["weight"].zero_()
    value["optimizer"]["param_groups"][0]["lr"] = 5
    assert ours.save_async(2, state(2))
    third = threading.Thread(target=ours.save_async, args=(3, state(3)))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    assert ours.all_steps() == []
    go.set()
    third.join()
    ours.join()
    assert ours.all_steps() == [1, 2, 3]
    equal(restored(tmp_path, 1), state(1))
    entries = json.loads((tmp_path / "1" / "checksums.json").read_text())
    assert len(entries) == 8 + 1 + 3  # shards of the weight, the bias, and what is no tensor


def test_failures_of_another_thread_are_raised(tmp_path, monkeypatch):
    def fail(*_):
        raise CheckpointError("the disk is full")

    ours = manager_of(tmp_path)
    ours.save(0, state(0))
    with monkeypatch.context() as patch:
        patch.setattr(manager, "save_state", fail)
        ours.save_async(1, state(1))
        with pytest.raises(CheckpointError, match="the disk is full"):
            ours.join()
        ours.save_async(1, state(1))
        assert ours._pending[0].exception(timeout=60)
        with pytest.raises(CheckpointError, match="the disk is full"):
            ours.save(2, state(2))
    ours.join()  # told once
    ours.save_async(2, state(2))
    ours.join()
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "0", "2"}


@pytest.fixture
def terminated():
    """The SIGTERMs that arrived at a handler which was there before."""
    arrived = []
    before = signal.signal(signal.SIGTERM, lambda *_: arrived.append(1))
    yield arrived
    preemption.unwatch()
    signal.signal(signal.SIGTERM, before)


def test_preemption(tmp_path, terminated):
    ours = CheckpointManager(tmp_path, save_interval=100)
    assert not ours.reached_preemption(1)
    assert not ours.save(1, state(1))
    signal.raise_signal(signal.SIGTERM)
    assert terminated == []
    assert ours.reached_preemption(2)
    assert ours.save(2, state(2))
    assert not ours.save(3, state(3))  # one is enough
    assert ours.reached_preemption(3)
    assert ours.all_steps() == [2]
    signal.raise_signal(signal.SIGTERM)
    assert terminated == [1]
    without = manager_of(tmp_path)
    with pytest.raises(CheckpointError, match="chkpt_on_preemption=False"):
        without.reached_preemption(1)


@pytest.mark.usefixtures("terminated")
def test_preemption_is_for_the_main_thread(tmp_path):
    raised = []

    def work():
        with pytest.raises(CheckpointError, match="only the main thread can notice SIGTERM"):
            CheckpointManager(tmp_path, 1)
        raised.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert raised


def change_byte(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def entry_of(folder, name, offset=0):
    """Where a shard is in its file."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    return next(
        where
        for index, where in metadata.storage_data.items()
        if index.fqn == name and (index.offset or (0,))[0] == offset
    )


def damage_shard(folder):
    change_byte(folder / "__0_0.distcp", entry_of(folder, "model.weight", 6).offset + 700)


def damage_object(folder):
    change_byte(folder / "__0_0.distcp", entry_of(folder, "step").offset + 100)


def cut(folder):
    where = entry_of(folder, "model.bias")  # the last of the file
    os.truncate(folder / "__0_0.distcp", where.offset + 1377)


def remove_file(folder):
    (folder / "__0_0.distcp").unlink()


def edit_metadata(folder, edit):
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    edit(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def forget_shard(folder):
    edit_metadata(folder, lambda m: m.state_dict_metadata["model.weight"].chunks.pop())


def forget_place(folder):
    edit_metadata(folder, lambda m: m.storage_data.pop(next(iter(m.storage_data))))


def garble_metadata(folder):
    (folder / ".metadata").write_bytes(b"nothing")


def garble_checksums(folder):
    (folder / "checksums.json").write_text("[1")


def remove_metadata(folder):
    (folder / ".metadata").unlink()


DAMAGE = {
    damage_shard: r"the shard at \(6, 0\) of 'model.weight' is damaged in .*/3/__0_0.distcp, at",
    damage_object: r"'step' is damaged in .*/3/__0_0.distcp, at byte",
    cut: r"'model.bias' is incomplete in .*/3/__0_0.distcp, at .* after 1377 of \d+ bytes",
    remove_file: r"'model.bias' cannot be read from .*/3/__0_0.distcp: .*No such file",
    forget_shard: r"/3 cannot be loaded: the tensor 'model.weight' .* 128 elements, .* 112",
    forget_place: r"/3 does not say where '.*' is",
    garble_metadata: "metadata of the checkpoint .*/3 is damaged",
    garble_checksums: "checksums .*/3/checksums.json are damaged",
    remove_metadata: r"no complete checkpoint of step 3; it has those of \[\]",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_told_and_changes_nothing(saved, damage):
    path, folder = saved
    damage(folder)
    target = state(-1, WIDE, ("data", "model"))
    with pytest.raises(CheckpointError, match=DAMAGE[damage]):
        manager_of(path).restore(3, target)
    equal(target, state(-1))


def test_checkpoints_without_checksums(saved):
    path, folder = saved
    (folder / "checksums.json").unlink()
    equal(restored(path, 3), state(3))


def test_other_state_dicts(saved):
    path, _ = saved
    with pytest.raises(CheckpointError, match=r"/3 cannot be loaded: Missing key.*: model.more"):
        manager_of(path).restore(3, {"model": {"more": torch.ones(2)}})
    with pytest.raises(CheckpointError, match=r"Size mismatch .* for model.bias"):
        manager_of(path).restore(3, {"model": {"bias": torch.ones(2)}})
    with pytest.raises(CheckpointError, match="on the device 'meta'"):
        manager_of(path).restore(3, {"model": torch.nn.Linear(2, 2, device="meta")})
    with pytest.raises(CheckpointError, match=r"checkpoint of step 4; it has those of \[3\]"):
        manager_of(path).restore(4, state(-1))


@pytest.mark.parametrize(
    "settings",
    [
        {"save_interval": 0},
        {"max_to_keep": -1},
        {"max_pending_async": 0},
        {"num_of_threads": 0},
        {"path": "gs://bucket/run"},
    ],
    ids=str,
)
def test_wrong_settings(tmp_path, settings):
    given = {"path": tmp_path, "save_interval": 1, "chkpt_on_preemption": False} | settings
    (name,) = settings
    with pytest.raises(CheckpointError, match="bucket/run is no" if name == "path" else name):
        CheckpointManager(**given)
    with pytest.raises(CheckpointError, match="numbered from 0, unlike -1"):
        manager_of(tmp_path).save(-1, state(0))


def test_what_is_being_saved_is_left_alone(tmp_path):
    """Another manager, as of a process that evaluates, cleans only what nobody writes."""
    folders = StepFolders(tmp_path)
    (tmp_path / ".saving-8-dead").mkdir()
    (tmp_path / ".removed-7-dead").mkdir()
    with folders.writing(5) as folder:
        (folder / ".metadata").touch()
        assert manager_of(tmp_path).all_steps() == []
        assert folder.exists()
    assert manager_of(tmp_path).all_steps() == [5]
    with pytest.raises(KeyboardInterrupt), folders.writing(6):
        raise KeyboardInterrupt
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "5"}


def test_an_interrupt_between_the_renames(saved, monkeypatch):
    rename = os.rename

    def interrupted(source, target):
        if ".saving" in str(source) and pathlib.Path(target).name == "3":
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager_of(saved[0]).save(3, state(4))
    assert manager_of(saved[0]).all_steps() == [3]
    equal(restored(saved[0], 3), state(3))


@pytest.mark.slow
def test_kills(tmp_path):
    """Whenever a save is killed, one whole checkpoint of before or after it can be restored."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.spmd.killed_saves", str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    before, both, after = "[(1, 1.0)]", "[(1, 1.0), (2, 2.0)]", "[(2, 2.0)]"
    killed, full = str(-signal.SIGKILL), "3"
    assert found["new step"]["outcomes"].keys() == {before, both}
    assert found["replaced step"]["outcomes"].keys() == {before, "[(1, 2.0)]"}
    assert found["oldest removed"]["outcomes"].keys() == {before, both, after}
    for name in ("new step", "replaced step", "oldest removed"):
        ends = found[name]["ends"]
        assert ends.keys() == {killed, "0"}
        assert ends[killed] > 15
    assert found["in a write"]["outcomes"].keys() == {before, both}
    assert found["in a write"]["ends"].keys() == {str(-signal.SIGXFSZ), "0"}
    for name in ("full disk", "full disk, threads"):
        assert found[name]["outcomes"].keys() == {before, both}
        assert found[name]["ends"].keys() == {full, "0"}
        assert found[name]["ends"][full] > 3
