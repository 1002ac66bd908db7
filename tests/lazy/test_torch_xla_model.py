"""`xla_model`, `functions` and `_XLAC` of PyTorch/XLA, in one process."""

import pytest
import torch
from torch import nn

import xla_dynamo
from xla_dynamo.errors import ProcessError
from xla_dynamo.torch_xla.forms import arenas, buckets, c_extension, functions, readiness, replicas
from xla_dynamo.torch_xla.forms.dynamic_sizes import XLA_LIB
from xla_dynamo.torch_xla.forms.values import DataWrapper
from xla_dynamo.torch_xla.kernels.user_kernels import take_kernels_for_xla


def xla(*shape):
    return torch.randn(*shape).to("xla")


def test_buckets_hold_what_they_may():
    calls = []

    def func(inputs, outputs):
        several = inputs if isinstance(inputs, list) else [inputs]
        calls.append([t.numel() for t in several])
        made = [t + 1 for t in several]
        return made if isinstance(inputs, list) else made[0]

    megabyte = 1 << 18  # of float32
    sizes = [megabyte, megabyte // 2, 3 * megabyte, megabyte // 2, megabyte, 5 * megabyte, 0]
    tensors = [torch.full((n,), float(i)) for i, n in enumerate(sizes)]
    made = buckets.CoalescingBuckets(func, tensors, bucket_cap_mb=2)()
    assert [t.shape for t in made] == [t.shape for t in tensors]
    assert all(torch.equal(m, t + 1) for m, t in zip(made, tensors, strict=True))
    half = megabyte // 2
    assert calls == [[megabyte, half], [3 * megabyte], [half, megabyte], [5 * megabyte], [0]]
    calls.clear()
    small = [torch.ones(half), torch.ones(3 * megabyte)]  # goes along with the large one
    buckets.CoalescingBuckets(func, small, bucket_cap_mb=2)()
    assert calls == [[half, 3 * megabyte]]


def test_bucketized_collectives_of_one_process():
    tensors = [xla(4, 2), xla(2, 2)]
    outputs = [torch.zeros(4, 2, device="xla"), torch.zeros(2, 2, device="xla")]
    assert buckets.all_gather_bucketized(tensors, output=outputs, bucket_cap_mb=0) == outputs
    assert all(torch.equal(o, t) for o, t in zip(outputs, tensors, strict=True))
    halves = buckets.reduce_scatter_bucketized("sum", tensors, 0.5, 0, 1)
    assert all(torch.equal(h, t / 2) for h, t in zip(halves, tensors, strict=True))
    before = [t.clone() for t in tensors]
    buckets.all_reduce_bucketized_gradients(tensors, 3.0, None, False)
    assert all(torch.equal(t, b * 3) for t, b in zip(tensors, before, strict=True))
    with pytest.raises(TypeError, match="input_list is a list"):
        buckets.all_gather_bucketized(tuple(tensors))
    with pytest.raises(ValueError, match="output_list has 1"):
        buckets.all_gather_bucketized(tensors, output=outputs[:1])


@pytest.mark.parametrize("kind", ["sum", "mul", "min", "max"])
def test_reductions_have_gradients(kind):
    x = xla(3, 2).requires_grad_()
    (functions.all_reduce(kind, x, 2.0) * torch.arange(2.0, device="xla")).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.tensor([[0.0, 2.0]] * 3))


def test_other_functions_have_gradients():
    x, w = xla(4, 6).requires_grad_(), xla(3, 4).requires_grad_()
    functions.all_gather(x, 1).pow(2).sum().backward()
    assert torch.allclose(x.grad, 2 * x)
    x.grad = None
    (functions.distributed_mm(w, x, split=2) ** 2).sum().backward()
    copies = [t.detach().cpu().requires_grad_() for t in (w, x)]
    ((copies[0] @ copies[1]) ** 2).sum().backward()
    for own, right in zip((w, x), copies, strict=True):
        torch.testing.assert_close(own.grad.cpu(), right.grad, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="x has 4 rows"):
        functions.distributed_mm(w, x[:3])
    with pytest.raises(RuntimeError, match="no gradient"):
        functions.all_reduce("and", x).sum().backward()


@pytest.mark.parametrize("shape", [(8, 3), (2, 3, 4, 5)])
def test_batch_norm(shape):
    kinds = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}
    ours, torchs = functions.SyncBatchNorm(3).to("xla"), kinds[len(shape)](3)
    x = torch.randn(shape)
    own, right = x.to("xla").requires_grad_(), x.clone().requires_grad_()
    scale = torch.randn(shape)
    (ours(own) * scale.to("xla")).sum().backward()
    (torchs(right) * scale).sum().backward()
    torch.testing.assert_close(own.grad.cpu(), right.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.weight.grad.cpu(), torchs.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.running_mean.cpu(), torchs.running_mean)
    count = x.numel() / 3
    variance = 0.9 + (torchs.running_var - 0.9) * (count - 1) / count
    torch.testing.assert_close(ours.running_var.cpu(), variance)
    ours.eval(), torchs.eval()
    torchs.running_var.copy_(variance)
    torch.testing.assert_close(ours(own).cpu(), torchs(right))
    with pytest.raises(ValueError, match="3 features"):
        ours(xla(2, 4))


def test_channels_of_one_process():
    sent = [xla(2, 3), torch.randn(4).to(torch.bfloat16), torch.zeros(0)]
    for tensor in sent:
        assert replicas.send(tensor, 7) is tensor
    for tensor in sent:
        got = replicas.recv(torch.zeros_like(tensor), 7)
        assert got.device == tensor.device
        assert torch.equal(got.cpu(), tensor.cpu())
    with pytest.raises(ProcessError, match="alone"):
        replicas.recv(sent[0], 7)
    replicas.send(sent[0], 8)
    with pytest.raises(ProcessError, match="24 bytes"):
        replicas.recv(torch.zeros(3), 8)


def test_replicas_of_one_process():
    assert replicas.xla_replication_devices() == ["CPU:0"]
    replicas.set_replication("xla:0", ["xla:0"])
    replicas.set_replication("xla:0", [])
    with pytest.raises(RuntimeError, match="each process has one device"):
        replicas.set_replication("xla:0", ["xla:0", "cpu"])
    assert replicas.xla_rendezvous(b"here", tag="there") == [b"here"]
    with pytest.raises(TypeError, match="str"):
        replicas.xla_rendezvous("here")
    assert set(xla_dynamo.get_memory_info()) <= set(replicas.MemoryInfo.__annotations__)
    assert replicas.DeviceContext("xla:0").device == "xla:0"


def test_an_arena_converts_at_once():
    calls = []

    def convert(tensors):
        calls.append(len(tensors))
        return c_extension._xla_tensors_from_aten(tensors, ["xla:0"] * len(tensors))

    arena = arenas.ToXlaTensorArena(convert, lambda v: isinstance(v, torch.Tensor))
    given = {torch.ones(2): ([torch.zeros(3), 4], "five"), "set": {2.0, torch.ones(1)}}
    made = arena.transform(given)
    assert calls == [3]
    (key, (values, text)), (_, several) = made.items()
    assert text == "five"
    assert values[1] == 4
    assert {v.device.type for v in (key, values[0], *several) if isinstance(v, torch.Tensor)} == {
        "xla"
    }
    assert 2.0 in several
    assert arena.transform([1]) == [1]


def test_data_goes_to_the_device():
    pack = nn.utils.rnn.pack_sequence([torch.ones(3, 1), torch.zeros(2, 1)])

    class Packed(DataWrapper):
        def get_tensors(self):
            return [pack.data]

        def from_tensors(self, tensors):
            return nn.utils.rnn.PackedSequence(tensors[0], pack.batch_sizes)

    moved = arenas.send_cpu_data_to_device([Packed(), "text"], "xla")
    assert moved[0].data.device.type == "xla"
    assert moved[0].batch_sizes.device.type == "cpu"
    assert moved[1] == "text"
    (alone,) = arenas.send_cpu_data_to_device(torch.arange(3), "xla")
    assert alone.cpu().tolist() == [0, 1, 2]


def test_functions_of_the_extension():
    pending = xla(3) + 1
    ready = xla(3)
    xla_dynamo.unlazy([ready])
    assert c_extension._check_tensor_need_materialization([pending, ready]) == [True, False]
    c_extension._xla_sync_multi([pending, torch.ones(1)], [], True)
    assert c_extension._check_tensor_need_materialization([pending]) == [False]
    another = pending * 2
    c_extension._xla_step_marker("xla:0", [], wait=True)
    assert not any(c_extension._check_tensor_need_materialization([another]))
    assert c_extension._xla_set_default_device("xla:0") == "xla:0"
    with pytest.raises(ValueError, match="xla:0"):
        c_extension._xla_set_default_device("cpu")
    assert c_extension._xla_get_all_devices() == c_extension._xla_get_devices() == ["CPU:0"]
    assert c_extension._xla_get_replication_devices_count() == 0
    c_extension._xla_set_replication_devices(["CPU:0"])
    assert c_extension._xla_get_replication_devices() == ["CPU:0"]
    assert c_extension._set_ir_debug(True) is False
    assert c_extension._get_ir_debug()
    assert c_extension._xla_runtime_is_initialized()
    c_extension._xla_set_rng_seed(5)
    drawn = torch.rand(3, device="xla").cpu()
    xla_dynamo.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3, device="xla").cpu())
    before = xla_dynamo.metrics.counter_value("mine")
    c_extension._xla_increment_counter("mine", 3)
    assert xla_dynamo.metrics.counter_value("mine") == before + 3


def test_products_of_any_dimensions():
    x, w = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    given = [t.to("xla").requires_grad_() for t in (x, w)]
    made = c_extension._xla_dot_general(*given, (([-1], [1]), ([0], [0])))
    torch.testing.assert_close(made.cpu(), x @ w)
    made.sum().backward()
    torch.testing.assert_close(given[0].grad.cpu(), w.sum(-1)[:, None].expand(2, 3, 4))
    small = torch.randint(-99, 99, (3, 4), dtype=torch.int8)
    numbers = (([1], [1]), ())
    wide = c_extension._xla_dot_general(
        *[small.to("xla")] * 2, numbers, preferred_element_type=torch.int32
    )
    assert torch.equal(wide.cpu(), small.int() @ small.int().t())
    with pytest.raises(RuntimeError, match=r"second argument\) to be .* Got: CPUFloatType"):
        c_extension._xla_dot_general(given[0], w, numbers)
    with pytest.raises(ValueError, match="set_mat_mul_precision"):
        c_extension._xla_dot_general(*given, numbers, "HIGHEST")


def test_memory_of_a_tensor():
    tensor, other = xla(3) + 1, xla(2, 2)
    address = c_extension._unsafe_buffer_pointer(tensor)
    assert address == c_extension._unsafe_buffer_pointer(tensor) != 0
    assert c_extension._replace_xla_tensor(tensor, other) is tensor
    assert torch.equal(tensor, other)


def test_readiness():
    told = []
    tensor = xla(3) * 2
    event = readiness.on_ready_event(tensor)
    assert event.wait(30)
    assert c_extension._check_tensor_need_materialization([tensor]) == [False]
    done = readiness.on_ready_event(tensor)  # of a tensor that is there
    assert done.wait(30)
    readiness.on_ready_callback(tensor, lambda t: told.append(t) or event.set())
    event.clear()
    for _ in range(300):
        if told:
            break
        event.wait(0.1)
    assert told[0] is tensor


def test_operators_of_your_own():
    take_kernels_for_xla()
    XLA_LIB.define("twice_for_a_test(Tensor x) -> Tensor")
    torch.library.impl(XLA_LIB, "twice_for_a_test", "XLA")(lambda x: x * 2)
    x = xla(3)
    assert torch.equal(torch.ops.xla.twice_for_a_test(x), x * 2)


@pytest.mark.parametrize("device", ["cpu", "xla", "meta"])
def test_reshapes_by_another_tensor(device):
    source = torch.zeros(6, 2, device=device)
    made = torch.ops.xla.dynamic_expand(torch.ones(1, 3, device=device), [1, 3], source, 0, 0)
    assert made.shape == (6, 3)
    x = torch.arange(24.0, device=device)
    viewed = torch.ops.xla.dynamic_view(x, [2, 2], source, 0, 0, 2.0)
    assert viewed.shape == (12, 2)
    if device != "meta":
        assert torch.equal(viewed.cpu(), torch.arange(24.0).view(12, 2))
