"""Names of `torch_xla.utils` do what PyTorch/XLA's do."""

import pickle
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import xla_dynamo
from xla_dynamo.torch_xla.forms import (
    cached_dataset,
    checkpoint_tagger,
    closures,
    files,
    queues,
    recomputation,
    serialization,
    surroundings,
    values,
)


class Pair(NamedTuple):
    """A tuple with names."""

    left: object
    right: object


class Holder:
    """An object with attributes."""


class Ragged(values.DataWrapper):
    """Rows of different lengths."""

    def __init__(self, rows, name):
        self.rows, self.name = rows, name

    def get_tensors(self):
        return self.rows

    def from_tensors(self, tensors):
        return Ragged(tensors, self.name)


def tree():
    one = Holder()
    one.x, one.self, one.function = 3, one, print
    return {"a": [1, (2, Pair(3, "b"))], "c": {4}, 5: one}


def test_trees_are_visited_once_and_rewritten():
    data, found = tree(), []
    values.for_each_instance(data, lambda v: type(v) is int, found.append)
    assert sorted(found) == [1, 2, 3, 4, 5]  # 3 is one object, found once
    again = []
    values.for_each_instance_rewrite(data, lambda v: type(v) is int, again.append)
    assert again == found
    new = values.for_each_instance_rewrite(data, lambda v: type(v) is int, lambda v: -v)
    assert new["a"] == [-1, (-2, Pair(-3, "b"))]
    assert new["c"] == {-4}
    assert new[-5].x == -3
    assert new[-5].self is new[-5]
    assert new[-5].function is print
    assert data[5].x == 3
    loop = [1]
    loop.append(loop)
    again = values.for_each_instance_rewrite(loop, lambda v: type(v) is int, str)
    assert again[0] == "1"
    assert again[1] is again


def test_shapes_and_lists():
    assert values.shape([[1, 2, 3], (4, 5, 6)]) == [2, 3]
    assert values.shape(1) == []
    assert values.shape([]) == [0]
    with pytest.raises(ValueError, match="not all the same"):
        values.shape([[1], [1, 2]])
    assert values.flatten_nested_tuple(((1, [2, (3,)]), 4)) == (1, 2, 3, 4)
    assert values.as_list(1) == [1]
    assert values.as_list((1, 2)) == (1, 2)
    before = [1]
    assert values.list_copy_append(before, 2) == [1, 2]
    assert before == [1]


def test_generators():
    samples = values.SampleGenerator("x", 3)
    assert [*samples] == [*samples] == ["x"] * 3
    assert len(samples) == 3
    assert next(samples) == samples.next() == "x"
    made = values.FnDataGenerator(lambda t: t.sum(1), 2, torch.ones, dims=[3], count=2)
    assert len(made) == len([*made]) == 2
    batch, target = made.next()
    assert (batch.shape, target.tolist()) == ((2, 3), [3, 3])
    assert next(iter(values.FnDataGenerator(torch.sum, 2, torch.ones)))[0].shape == (2, 1)


def test_what_ends_with_a_value(tmp_path):
    called = []
    cleaner = values.Cleaner(lambda: called.append(1))
    assert not called
    del cleaner
    assert called == [1]
    folder = values.TmpFolder()
    path = tmp_path.__class__(folder.name)
    assert path.is_dir()
    del folder
    assert not path.exists()
    lazy = values.LazyProperty(lambda: called.append(2))
    assert called == [1]
    assert lazy.value is lazy.value is None
    assert called == [1, 2]


def test_wrapped_data_go_to_the_device():
    data = Ragged([torch.ones(2), torch.zeros(3)], "n")
    ((moved, label),) = xla_dynamo.MpDeviceLoader([(data, torch.ones(1))], "xla")
    assert moved.name == "n"
    assert [t.device.type for t in (*moved.rows, label)] == ["xla"] * 3
    assert [t.tolist() for t in moved.rows] == [[1, 1], [0, 0, 0]]


def test_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("TOLD", "3")
    monkeypatch.setenv("NO", "false")
    assert surroundings.getenv_as("TOLD", int) == 3
    assert surroundings.getenv_as("TOLD", bool) is True
    assert surroundings.getenv_as("NO", bool) is False
    assert surroundings.getenv_as("ABSENT", int, 7) == 7
    assert surroundings.check_env_flag("TOLD")
    assert not surroundings.check_env_flag("NO")
    assert surroundings.check_env_flag("ABSENT", "true")
    surroundings.get_print_fn(1)("loud")
    surroundings.get_print_fn(0)("silent")
    assert surroundings.timed(lambda: 4, "it took ") == 4
    with surroundings.TimedScope("no") as scope:
        scope.set_error("wrong")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("loud\nit took ")
    assert told.err.endswith("ms\n")
    assert "no" not in told.err


def test_ports_and_threads():
    assert len(set(surroundings.get_free_tcp_ports(3))) == 3
    assert surroundings.parallel_work(2, pow, [2, 3], [3, 2]) == [8, 9]
    with pytest.raises(ZeroDivisionError):
        surroundings.parallel_work(2, lambda n: 1 / n, [1, 0])


def test_closures_run_in_a_thread_until_one_raises():
    handler, called = closures.AsyncClosureHandler(2), []

    def fail():
        raise ZeroDivisionError

    handler.run_all([lambda n=n: called.append(n) for n in range(9)])
    handler.run(fail)
    deadline = time.monotonic() + 20
    while handler._error is None and time.monotonic() < deadline:
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="previously raised") as raised:
        handler.run(lambda: called.append("late"))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert called == [*range(9)]
    done = threading.Event()
    handler.run(done.set)
    assert done.wait(20)
    assert called[-1] == "late"
    with pytest.raises(TypeError):
        closures.ClosureHandler()


def test_queues():
    queue = queues.Queue(2)
    writer = threading.Thread(target=lambda: [queue.put(n) for n in range(9)])
    writer.start()
    assert [queue.get() for _ in range(9)] == [*range(9)]
    writer.join(20)
    queue.put("last")
    queue.close_write()
    assert queue.get() == "last"
    assert queue.get() is None
    assert queue.max_size() == 2


def test_queues_with_keys():
    queue, got = queues.KeydQueue(1), []
    queue.put("a", 1)
    reader = threading.Thread(target=lambda: got.append(queue.get("b")))
    reader.start()
    queue.put("b", 2)  # there is no room, but somebody waits for it
    reader.join(20)
    assert got == [2]
    assert queue.get("a") == 1
    queue.close()
    queue.put("c", 3)
    assert queue.get("c") is None


def test_tagged_checkpoints():
    removed = []
    tagger = checkpoint_tagger.CheckpointTagger(removed.append)
    tagger.tag("latest", "1")
    tagger.tag("best", "1")
    tagger.tag("latest", "2")
    assert removed == []
    tagger.tag("best", "2")
    tagger.tag("best", "2")
    assert removed == ["1"]
    again = checkpoint_tagger.CheckpointTagger.load_from_json(tagger.save_to_json())
    assert again.tags == {"latest": "2", "best": "2"}
    with pytest.raises(TypeError, match="function of a path"):
        checkpoint_tagger.CheckpointTagger(3)


def test_files(tmp_path):
    path = f"{tmp_path}/a/b.txt"
    files.generic_write("text", path, makedirs=True)
    assert files.generic_read(path) == b"text"
    with files.generic_open(path, "a") as file:
        file.write("!")
    with files.open(path) as file:
        assert file.read() == "text!"
    (found,) = files.list(f"{tmp_path}/a")
    assert found == files.stat(path)
    assert (found.path, found.size, found.isdir) == (path, 5, False)
    assert abs(found.mtime - time.time()) < 100
    assert files.list(f"{tmp_path}/*/*.txt") == [found]
    assert files.generic_glob(f"{tmp_path}/**/*.txt", recursive=True) == [path]
    files.write(path, b"bytes")
    assert files.read(path) == b"bytes"
    files.remove(path)
    with pytest.raises(FileNotFoundError):
        files.stat(path)
    files.rmtree(f"{tmp_path}/a")
    assert not (tmp_path / "a").exists()
    assert files.is_gcs_path("gs://bucket/x")


def test_a_data_set_is_kept_in_files(tmp_path):
    given = []

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            given.append(index)
            return torch.tensor(index), index**2

    first = cached_dataset.CachedDataset(Squares(), str(tmp_path), max_files_per_folder=5)
    assert first[7] == first[7] == (torch.tensor(7), 49)
    assert given == [7]
    with pytest.raises(FileNotFoundError, match="warmup"):
        cached_dataset.CachedDataset(None, str(tmp_path))[8]
    first.warmup()
    again = cached_dataset.CachedDataset(None, str(tmp_path))
    assert [square for _, square in again] == [n**2 for n in range(12)]
    assert (tmp_path / "1" / "7.pt").exists()  # as PyTorch/XLA's folders are
    assert len(given) == 12
    with pytest.raises(IndexError):
        again[12]


def test_tensors_are_saved_one_by_one(tmp_path, torch_xla_installed):
    import torch_xla.utils.serialization as xser

    torch.manual_seed(0)
    model = nn.Linear(3, 2).to("xla")
    state = {"model": model.state_dict(), "step": 3, "x": (torch.arange(3, device="xla") + 1,)}
    path = f"{tmp_path}/state.pt"
    xser.save(state, path)
    assert len([*(tmp_path / "state.pt.tensors").iterdir()]) == 3
    reference = torch.load(path, weights_only=False)["x"][0]
    assert type(reference) is xser.TensorReference is serialization.TensorReference
    assert b"torch_xla.utils.serialization" in pickle.dumps(reference, protocol=4)
    loaded = xser.load(path)
    assert loaded["step"] == 3
    assert loaded["x"][0].tolist() == [1, 2, 3]
    assert loaded["x"][0].device.type == "cpu"
    assert type(loaded["model"]) is type(state["model"])
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded["model"][name], tensor.cpu())
    xser.save({"x": torch.ones(1, device="xla")}, path)  # in the place of the others
    assert len([*(tmp_path / "state.pt.tensors").iterdir()]) == 1


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_layers_have_eager_gradients(use_reentrant):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.randn(4, 8)
    recomputed = []

    def run(device):
        layer.to(device).zero_grad()
        data = x.clone().to(device).requires_grad_()
        h = recomputation.checkpoint(observed, data * 2, use_reentrant=use_reentrant)
        h.square().sum().backward()
        return [g.grad.cpu().clone() for g in (data, *layer.parameters())]

    def observed(h):
        recomputed.append(recomputation.chkpt_status.in_chkpt_bwd)
        return layer(h)

    expected = run("cpu")
    recomputed.clear()
    torch.testing.assert_close(run("xla"), expected)
    assert recomputed == [False, use_reentrant]
    assert not recomputation.chkpt_status.in_chkpt_bwd


def test_recomputed_layers_draw_the_same_numbers():
    x = torch.ones(64, device="xla", requires_grad=True)
    dropout = nn.Dropout(0.5)
    y = recomputation.checkpoint(dropout, x * 1)
    y.sum().backward()
    assert torch.equal(x.grad.cpu() != 0, y.detach().cpu() != 0)
    with pytest.raises(ValueError, match="positional"):
        recomputation.checkpoint(dropout, x, other=1)


def test_states_of_devices():
    x = torch.ones(2, device="xla")
    devices, states = recomputation.get_device_states(x, 3, torch.ones(1), x + 1)
    assert devices == [x.device]
    first = torch.rand(3, device="xla").cpu()
    recomputation.set_device_states(devices, states)
    assert torch.equal(torch.rand(3, device="xla").cpu(), first)
    with pytest.raises(RuntimeError, match="one type"):
        recomputation.get_device_states(x, torch.ones(1, device="meta"))


def test_dlpack(torch_xla_installed):
    import torch_xla.utils.dlpack as xdlpack

    x = torch.arange(6.0).view(2, 3).to("xla")
    capsule = xdlpack.to_dlpack(x)
    x += 1
    y = xdlpack.from_dlpack(capsule)
    assert y.device == x.device
    assert (y + 1).tolist() == x.tolist()
    given = np.ones((2, 2), np.float32)
    z = xdlpack.from_dlpack(given)
    z *= 3
    assert z.tolist() == [[3, 3]] * 2
    assert given.tolist() == [[1, 1]] * 2
