"""What a call does with memory: no copies where none are needed, and nothing kept too long."""

import gc
import threading
import weakref

import pytest
import torch

from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.memory.known_buffers import StaticInputs
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.process_memory import resident_bytes


@pytest.fixture
def imports(monkeypatch):
    """The address of each tensor that is imported into PJRT, and the one that it has there."""
    import xla_dynamo.memory.known_buffers as known_buffers
    from xla_dynamo.runtime.jaxlib_private import buffer_address

    seen = []
    original = known_buffers.import_tensor

    def spy(tensor, device, stream=None):
        buffer = original(tensor, device, stream)
        seen.append((tensor.data_ptr(), buffer_address(buffer)))
        return buffer

    monkeypatch.setattr(known_buffers, "import_tensor", spy)
    return seen


def test_aligned_contiguous_input_is_not_copied(imports):
    x = torch.randn(8, 8)
    compiled(lambda x: x + 1)(x)
    assert imports == [(x.data_ptr(), x.data_ptr())]


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x.view(2, 4, 8).permute(2, 0, 1)])
def test_dense_permuted_input_is_not_copied(imports, view):
    x = torch.randn(8, 8)
    compiled(lambda x: x + 1)(view(x))
    assert imports == [(x.data_ptr(), x.data_ptr())]


def test_misaligned_and_strided_inputs_are_copied_rightly(imports):
    storage = torch.randn(200)
    misaligned, strided = storage[1:65], storage[::2]
    f = compiled(lambda x, y: x[:50] + y[:50])
    torch.testing.assert_close(f(misaligned, strided), storage[1:51] + storage[:100:2])
    assert all(inside != outside for outside, inside in imports[:1])


def test_output_is_not_copied(monkeypatch):
    import xla_dynamo.runtime.buffers as buffers
    from xla_dynamo.runtime.jaxlib_private import buffer_address

    results = []
    original = buffers.dlpack_from_buffer

    def spy(buffer, stream):
        results.append(buffer_address(buffer))
        return original(buffer, stream)

    monkeypatch.setattr(buffers, "dlpack_from_buffer", spy)
    y = compiled(lambda x: x + 1)(torch.randn(8))
    assert results == [y.data_ptr()]


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])
def test_parameter_changed_in_place_is_seen(offset):
    module = torch.nn.Linear(4, 4, bias=False)
    module.weight = torch.nn.Parameter(torch.randn(16 + offset)[offset:].view(4, 4))
    f, x = compiled(module), torch.randn(2, 4)
    with torch.no_grad():
        f(x)
        module.weight.add_(1)
        assert_matches_eager(f, x)
        module.weight.data.mul_(2)  # no version counter is bumped
        assert_matches_eager(f, x)


def test_parameter_replaced_is_seen():
    module = torch.nn.Linear(4, 4)
    f, x = compiled(module), torch.randn(2, 4)
    with torch.no_grad():
        f(x)
        module.weight.data = torch.randn(4, 4)
        assert_matches_eager(f, x)
        module.weight = torch.nn.Parameter(torch.randn(4, 4))
        assert_matches_eager(f, x)
        module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()}, assign=True)
        assert_matches_eager(f, x)


def test_parameters_are_imported_once(monkeypatch):
    loads = []
    original = StaticInputs.buffers

    def spy(self, args, stream):
        buffers = original(self, args, stream)
        loads.append(buffers)
        return buffers

    monkeypatch.setattr(StaticInputs, "buffers", spy)
    module = torch.nn.Linear(4, 4)
    f = compiled(module)
    with torch.no_grad():
        for _ in range(3):
            f(torch.randn(2, 4))
    assert len(loads) == 3
    assert all(a is b for later in loads[1:] for a, b in zip(loads[0], later, strict=True))


def test_inputs_that_come_again_are_known(imports):
    f, cache = compiled(lambda x, cache: x + cache), torch.zeros(64)
    for step in range(6):
        cache.fill_(step)
        torch.testing.assert_close(f(torch.ones(64), cache), torch.full((64,), step + 1.0))
    assert [address for address, _ in imports].count(cache.data_ptr()) == 2


def test_an_input_that_came_again_is_freed():
    f, x = compiled(lambda x: x + 1), torch.ones(64)
    for _ in range(3):
        f(x)
    freed = []
    weakref.finalize(x.untyped_storage(), freed.append, True)
    del x
    gc.collect()
    assert freed


def test_replaced_storages_are_not_kept():
    module = torch.nn.Linear(64, 64)
    f, x = compiled(module), torch.randn(2, 64)
    storages = []
    with torch.no_grad():
        for _ in range(4):
            module.weight.data = torch.randn(64, 64)
            storages.append(weakref.ref(module.weight.untyped_storage()))
            f(x)
    gc.collect()
    assert sum(s() is not None for s in storages) <= 1


def test_buffers_are_freed_with_their_tensors():
    module = torch.nn.Linear(64, 64)
    f = compiled(lambda w, x: x @ w)
    with torch.no_grad():
        f(module.weight, torch.randn(2, 64))
    freed = []
    weakref.finalize(module.weight.untyped_storage(), freed.append, True)
    del module
    gc.collect()
    assert freed


def test_inputs_are_freed_after_the_call():
    f = compiled(lambda x: x.sum())
    x = torch.randn(64)
    freed = []
    weakref.finalize(x.untyped_storage(), freed.append, True)
    f(x)
    del x
    gc.collect()
    assert freed


def test_output_outlives_everything_else():
    f = compiled(lambda x: x * 2)
    y = f(torch.ones(1000))
    del f
    torch._dynamo.reset()
    gc.collect()
    junk = [torch.zeros(1000) for _ in range(100)]
    assert y.sum() == 2000
    del junk


def test_one_graph_for_several_modules():
    layers = [torch.nn.Linear(4, 4) for _ in range(5)]

    @torch.compile(backend="openxla", fullgraph=True)
    def apply(layer, x):
        return layer(x)

    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(2):
            for layer in layers:
                torch.testing.assert_close(apply(layer, x), layer(x))


def test_same_tensor_twice_and_views_of_one_storage():
    x = torch.randn(4, 4)
    f = compiled(lambda a, b, c: a + 2 * b + 3 * c)
    torch.testing.assert_close(f(x, x, x.t()), x + 2 * x + 3 * x.t())
    torch.testing.assert_close(f(x, x[:, :1].expand(4, 4), x), x + 2 * x[:, :1] + 3 * x)


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(()), torch.randn(0, 3), torch.randn(3, 0), torch.empty(2, 0, 3).permute(2, 0, 1)],
    ids=["0-d", "0x3", "3x0", "permuted empty"],
)
def test_empty_and_0d(tensor):
    def f(x):
        return x + 1, x.sum(), x.reshape(-1)

    assert_matches_eager(compiled(f), tensor)


def test_outputs_that_are_not_tensors():
    def f(x, n):
        return x + n, None, n, x.shape[0], "text", {"x": [x * 2, 1.5]}

    x = torch.randn(3)
    y, none, n, size, text, nested = compiled(f)(x, 4)
    assert (none, n, size, text, nested["x"][1]) == (None, 4, 3, "text", 1.5)
    torch.testing.assert_close(y, x + 4)
    torch.testing.assert_close(nested["x"][0], x * 2)


def test_outputs_that_alias():
    def f(x):
        y = x + 1
        return x, y, y, y.view(-1), x.t()

    x = torch.randn(2, 3)
    a, b, c, d, e = compiled(f)(x)
    assert a is x
    assert e.data_ptr() == x.data_ptr()
    assert b is c
    b.zero_()
    assert d.abs().sum() == 0  # in eager d is a view of b


def test_graph_without_computation():
    x = torch.randn(3)
    assert compiled(lambda x: x)(x) is x
    assert compiled(lambda x: (x.view(3), 1))(x)[0].data_ptr() == x.data_ptr()


def test_in_place_on_inputs_and_views_of_them():
    def f(x, y):
        x.mul_(2)
        x[0].add_(y)
        return x.sum()

    assert_matches_eager(compiled(f), torch.ones(3, 2), torch.randn(2))


def test_sizes_change_without_new_traces():
    g = compiled(lambda x: x.relu().sum(0) * x.shape[0], dynamic=True)
    counters = torch._dynamo.utils.counters["stats"]
    counters.clear()
    metrics.clear_all()
    for n in (3, 4, 5, 3, 4, 5):
        x = torch.randn(n, 2)
        torch.testing.assert_close(g(x), x.relu().sum(0) * n)
    assert counters["unique_graphs"] == 1
    assert metrics.counter_value("UncachedCompile") == 3


def test_executables_of_other_sizes_are_bounded():
    g = compiled(lambda x: x + 1, dynamic=True, buckets="exact", max_executables=2)
    metrics.clear_all()
    for n in (3, 4, 5, 3):
        torch.testing.assert_close(g(torch.ones(n, 2)), torch.full((n, 2), 2.0))
    assert metrics.counter_value("UncachedCompile") == 4


def test_eight_threads():
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    f = compiled(module)
    inputs = [torch.randn(3, 16) for _ in range(8)]
    wrong = []
    with torch.no_grad():
        f(inputs[0])
        expected = [module(x) for x in inputs]

    def work(x, y):
        with torch.no_grad():
            wrong.extend(1 for _ in range(1000) if not torch.allclose(f(x), y, atol=1e-5))

    def run():
        threads = [
            threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run()  # allocator pools and thread stacks reach their size
    gc.collect()
    before = resident_bytes()
    run()
    gc.collect()
    assert not wrong
    assert resident_bytes() <= before * 1.02
