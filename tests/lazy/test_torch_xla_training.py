"""Loaders, loops, wrappers and optimizers of PyTorch/XLA's names, in one process."""

import copy
import json
import logging
import types

import pytest
import torch
from torch import nn

import xla_dynamo
from xla_dynamo.errors import OptionError
from xla_dynamo.torch_xla.forms import (
    amp,
    data_parallel,
    deprecation,
    loaders,
    multiprocess,
    plugins,
)
from xla_dynamo.torch_xla.forms import sharded_parameters as parts
from xla_dynamo.torch_xla.forms.tree_functions import pytreeify
from xla_dynamo.torch_xla.forms.zero_redundancy_optimizer import ZeroRedundancyOptimizer

BATCHES = [torch.full((2, 3), float(i)) for i in range(5)]


def steps():
    return xla_dynamo.metrics.counter_value("MarkStep")


def test_a_loader_takes_what_scripts_give():
    options = {"loader_prefetch_size": 4, "device_prefetch_size": 2}
    loader = loaders.MpDeviceLoader(BATCHES, "xla", host_to_device_transfer_threads=2, **options)
    assert len(loader) == 5
    assert [b[0, 0].item() for b in loader] == [0, 1, 2, 3, 4]


def test_a_parallel_loader_is_gone_through_step_by_step():
    loader = loaders.ParallelLoader(BATCHES, ["xla:0"], 0, 2, loader_prefetch_size=1)
    device = loader.per_device_loader("xla:0")
    assert len(device) == 5
    assert loader.batches_per_execution == 2
    before = steps()
    first, second = next(device), device.next()
    assert first.device.type == "xla"
    assert [first[0, 0].item(), second[0, 0].item()] == [0, 1]
    assert steps() == before
    assert [b[0, 0].item() for b in device] == [2, 3, 4]
    assert steps() == before + 3
    assert list(device) == []
    loader.close()
    with pytest.raises(ValueError, match="one device"):
        loaders.ParallelLoader(BATCHES, ["xla:0", "xla:1"])
    stopped = loaders.ParallelLoader(BATCHES, ["xla:0"])
    next(stopped.per_device_loader("xla:0"))
    stopped.close()
    assert stopped.next_item("xla:0") is None


def test_a_loop_runs_on_the_device():
    model = nn.Linear(3, 1)
    kept = []

    def loop(copied, batches, device, context, scale):
        kept.append(context.getattr_or("made", lambda: 3 * scale))
        return [copied(b).sum().item() for b in batches]

    ours = data_parallel.DataParallel(model, loader_prefetch_size=2)
    assert ours.devices == ["xla:0"]
    assert ours.models[0].weight.device.type == "xla"
    (made,) = ours(loop, BATCHES, scale=2)
    torch.testing.assert_close(made, [model(b).sum().item() for b in BATCHES])
    ours(loop, BATCHES[:1], scale=5)
    assert kept == [6, 6]
    native = data_parallel.DataParallel(lambda: model, [])
    assert native.models == [model]
    numbers = native(lambda m, batches, device, context: [i for i, _ in batches], BATCHES)
    assert numbers == [[0, 1, 2, 3, 4]]
    with pytest.raises(ValueError, match=r"torch_xla\.launch"):
        data_parallel.DataParallel(model, ["xla:0", "xla:1"])


def test_modules_are_wrapped_by_a_policy():
    class Wrapper(nn.Module):
        def __init__(self, module, name):
            super().__init__()
            self.module, self.name = module, name

    def policy(module, recurse, unwrapped_params):
        return recurse or unwrapped_params >= 12

    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Linear(1, 1)))
    same, count = parts.recursive_wrap(model, policy, Wrapper, set(), set(), name="x")
    assert same is model  # whose two parameters that are left are too few
    assert count == 12 + 16
    assert [isinstance(m, Wrapper) for m in (model[0], *model[1])] == [True, True, False]
    whole = nn.Linear(3, 4)
    same, count = parts.recursive_wrap(whole, policy, Wrapper, {whole}, set(), True, name="x")
    assert same is whole
    assert count == 0


def test_tensors_in_containers():
    tree = {"a": [torch.ones(2), 3], "b": (torch.zeros(1),)}
    assert [t.shape for t in parts.collect_tensors(tree)] == [(2,), (1,)]
    made = parts.apply_to_tensors(lambda t: t + 1, tree)
    assert made["a"][1] == 3
    assert torch.equal(made["b"][0], torch.ones(1))
    x = torch.ones(4, 2)
    assert torch.equal(parts.dummy_all_reduce("sum", x, 0.5), x / 2)
    parts.dummy_all_reduce("sum", [x], 0.5)
    assert torch.equal(x, torch.full((4, 2), 0.5))
    with pytest.raises(ValueError, match="1 processes"):
        parts.DummyReduceScatter(2)


def test_an_optimizer_of_parts_of_one_process():
    model = nn.Linear(4, 3)
    ours = copy.deepcopy(model).to("xla")
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts_of_it = ZeroRedundancyOptimizer(
        ours.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, max_norm=0.5, lazy_init=True
    )
    with pytest.raises(OptionError, match="init_zero"):
        parts_of_it.step()
    parts_of_it.sharding_groups = [[0]]
    parts_of_it.init_zero()
    with pytest.raises(OptionError, match="too late"):
        parts_of_it.sharding_groups = [[0]]
    schedule = torch.optim.lr_scheduler.StepLR(parts_of_it, 1, 0.5)
    other = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    x = torch.randn(5, 4)
    for _ in range(2):
        plain.zero_grad(), parts_of_it.zero_grad()
        model(x).pow(2).sum().backward()
        loss = parts_of_it.step(lambda: _backward(ours(x.to("xla")).pow(2).sum()))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        plain.step()
        schedule.step(), other.step()
        torch.testing.assert_close(parts_of_it.grad_norm.cpu(), norm)
    assert loss.item() > 0
    torch.testing.assert_close(ours.weight.cpu(), model.weight)
    state, right = parts_of_it.state_dict(), plain.state_dict()
    assert state["shape_info"] == {0: (3, 4), 1: (3,)}
    for number, saved in right["state"].items():
        buffer = state["base_state"][number]["momentum_buffer"].cpu()
        torch.testing.assert_close(buffer, saved["momentum_buffer"])
    assert state["param_groups"][0]["lr"] == right["param_groups"][0]["lr"] == 0.025
    with pytest.raises(OptionError, match="move the model"):
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)


def _backward(loss):
    loss.backward()
    return loss


def test_functions_of_trees():
    @pytreeify
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tree):
            return {"made": [tree["a"] * 2, tree["b"] * 3]}

        @staticmethod
        def backward(ctx, gradients):
            first, second = gradients["made"]
            return ({"a": first * 2, "b": second * 3},)

    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    made = Twice.apply({"a": a, "b": b})
    (made["made"][0] + made["made"][1]).sum().backward()
    assert a.grad.tolist() == [2, 2]
    assert b.grad.tolist() == [3, 3]

    @pytreeify
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tree):
            return tree[0] * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    with pytest.raises(RuntimeError, match="its arguments are"):
        Wrong.apply([a]).sum().backward()
    with pytest.raises(TypeError):
        pytreeify(nn.Linear)


def test_older_names_warn_once(monkeypatch):
    told = []
    monkeypatch.setattr(logging.getLogger("torch_xla"), "warning", told.append)

    def newer(x):
        return x + 1

    module = types.ModuleType("older_module")
    deprecation.register_deprecated(module, newer)
    older = deprecation.mark_deprecated(newer, "It goes.")(lambda x: None)
    assert [module.newer(1), module.newer(2), older(3)] == [2, 3, 4]
    where = f"{__name__}.newer instead."
    assert told == [
        f"older_module.newer is deprecated. Use {where}",
        f"{__name__}.<lambda> is deprecated. Use {where} It goes.",
    ]


def test_plugins(monkeypatch, tmp_path):
    library = tmp_path / "plugin.so"
    library.touch()

    class Plugin(plugins.DevicePlugin):
        def library_path(self):
            return str(library)

        def client_create_options(self):
            return {"count": 2}

    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", "other:there.so")
    monkeypatch.setenv("PJRT_DYNAMIC_PLUGINS", "")
    with pytest.raises(OptionError, match="comes too late"):
        plugins.register_plugin("mine", Plugin())
    monkeypatch.setattr(plugins, "has_clients", lambda: False)
    plugin = Plugin()
    plugins.register_plugin("mine", plugin)
    first, second = plugins.os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"].split(",")
    name, _, path = second.partition(":")
    assert (first, name) == ("other:there.so", "mine")
    with open(path) as file:
        assert json.load(file) == {"library_path": str(library), "create_options": {"count": 2}}
    assert not plugins.using_dynamic_plugins()
    plugins.use_dynamic_plugins()
    monkeypatch.setenv("PJRT_DEVICE", "MINE")
    assert plugins.using_dynamic_plugins()
    assert plugins.default() is plugin
    monkeypatch.setenv("PJRT_DEVICE", "YOURS")
    with pytest.raises(OptionError, match="these are: MINE"):
        plugins.default()
    library.unlink()
    with pytest.raises(OptionError, match="no library"):
        plugins.register_plugin("mine", plugin)
    with pytest.raises(NotImplementedError, match="library_path"):
        plugins.register_plugin("mine", plugins.DevicePlugin())
    plugins.register_installed_plugins()


@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {"momentum": 0.9}), ("AdamW", {})],
)
def test_steps_are_skipped_by_a_tensor(name, options):
    right = nn.Linear(3, 2)
    ours = copy.deepcopy(right).to("xla")
    plain = getattr(torch.optim, name)(right.parameters(), lr=0.1, **options)
    skipping = getattr(amp, name)(ours.parameters(), lr=0.1, **options)
    x = torch.randn(4, 3)
    for found in (None, 1.0, 0.0):
        for model, optimizer in ((right, plain), (ours, skipping)):
            optimizer.zero_grad()
            model(x.to(model.weight.device)).pow(2).sum().backward()
        if found:
            ours.weight.grad.mul_(torch.nan)
        if found != 1.0:
            plain.step()
        skipping.step(found_inf=None if found is None else torch.tensor(found).to("xla"))
    torch.testing.assert_close(ours.weight.cpu(), right.weight)
    with pytest.raises(ValueError, match="0-d"):
        skipping.step(found_inf=torch.ones(1, device="xla"))


def test_results_of_processes_are_returned():
    assert multiprocess.run_multiprocess(dict, [("a", 1)], b=2) == {0: {"a": 1, "b": 2}}
    calls = []
    multiprocess.spawn_threads(lambda *given: calls.append(given), (3, 4))
    assert calls == [(0, 3, 4)]
