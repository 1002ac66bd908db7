"""What torch asks of a device's module, also for ordinary tensors beside the device."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader, TensorDataset

import xla_dynamo

XLA = xla_dynamo.device()


def test_distributed_checkpoints_of_ordinary_tensors(tmp_path):
    """Torch asks the accelerator's module for a stream, whatever is saved."""
    for device in ("cpu", XLA):
        state = {"a": torch.arange(4.0, device=device), "b": torch.ones(2, 3, device=device)[:, 1:]}
        dcp.save(state, checkpoint_id=tmp_path / str(device))
        loaded = {name: torch.zeros_like(t) for name, t in state.items()}
        dcp.load(loaded, checkpoint_id=tmp_path / str(device))
        for name, tensor in state.items():
            assert loaded[name].device == tensor.device
            assert loaded[name].tolist() == tensor.tolist()


def test_pinned_memory_of_ordinary_tensors():
    """With an accelerator, torch pins what a loader gives; here that is a copy."""
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, pin_memory=True)
    assert [x.tolist() for (x,) in loader] == [[0, 1], [2, 3]]
    x = torch.ones(2)
    y = x.pin_memory()
    x.zero_()
    assert y.tolist() == [1, 1]


def test_streams_and_events():
    module = torch.xla
    first, last = module.Event(enable_timing=True), module.Event(enable_timing=True)
    mine = module.Stream()
    assert mine == module.current_stream() == module.default_stream()
    assert len({mine, module.current_stream()}) == 1
    module.set_stream(mine)
    with module.stream(mine):
        first.record()
        x = torch.ones(3, device=XLA) + 1
        mine.wait_stream(module.current_stream())
        mine.record_event(last)
    assert x.tolist() == [2, 2, 2]
    assert mine.query()
    assert last.query()
    last.synchronize()
    mine.synchronize()
    mine.wait_event(last)
    last.wait()
    assert first.elapsed_time(last) > 0
    with pytest.raises(RuntimeError, match="must be recorded"):
        first.elapsed_time(module.Event())


def test_memory():
    module = torch.xla
    x = torch.ones(1000, device=XLA)
    module.synchronize()
    assert module.max_memory_allocated() >= module.memory_allocated() >= 4 * len(x)
    assert module.memory_reserved() >= module.memory_stats()["bytes_used"] > 0
    assert "bytes_used" in module.memory_summary()
    module.empty_cache()
    assert module.get_device_name()


def test_what_scripts_ask_of_torch_accelerator():
    """Torch's own answers need an allocator in C++, and fail."""
    ask = torch.accelerator
    x = torch.ones(1000, device=XLA) + 1
    ask.synchronize()
    assert x.tolist() == [2] * 1000
    assert ask.max_memory_allocated() >= ask.memory_allocated() >= 4 * len(x)
    assert ask.memory_stats()["reserved_bytes.all.current"] == ask.memory_reserved() > 0
    free, total = ask.get_memory_info()
    assert 0 < free < total
    ask.reset_peak_memory_stats()
    ask.reset_accumulated_memory_stats()
    ask.empty_cache()
    x.record_stream(ask.current_stream())
    assert x.tolist() == [2] * 1000


def test_random_states():
    module = torch.xla
    seed = module.seed_all()
    assert module.initial_seed() == seed
    states = module.get_rng_state_all()
    first = torch.rand(3, device=XLA).tolist()
    module.set_rng_state_all(states)
    assert torch.rand(3, device=XLA).tolist() == first
    assert len(module.default_generators) == module.device_count()
    with torch.random.fork_rng(device_type="xla"):
        torch.rand(3, device=XLA).tolist()
    after = torch.rand(3, device=XLA).tolist()
    module.set_rng_state_all(states)
    torch.rand(3, device=XLA).tolist()
    assert torch.rand(3, device=XLA).tolist() == after
