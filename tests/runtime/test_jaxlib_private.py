"""The parts of jaxlib that are not public are where we left them, and do what we rely on."""

import subprocess
import sys

import jax
import numpy as np
import pytest
import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.runtime import jaxlib_private
from xla_dynamo.runtime.buffers import export_buffer, import_tensor
from xla_dynamo.runtime.clients import placement_at, placement_over
from xla_dynamo.runtime.jaxlib_private import result_type, varying_axes
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.sharded_buffers import export_sharded, import_sharded

MOVED = "jaxlib changed: adapt xla_dynamo/runtime/jaxlib_private.py"

ADD = """
func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.add %a, %b : tensor<4xf32>
  return %c : tensor<4xf32>
}
"""


@pytest.fixture
def cpu() -> Placement:
    return placement_at("cpu", 0)


def test_import_and_export_share_memory(cpu):
    tensor = torch.randn(64)
    buffer = import_tensor(tensor, cpu)
    assert jaxlib_private.buffer_address(buffer) == tensor.data_ptr(), MOVED
    assert export_buffer(buffer).data_ptr() == tensor.data_ptr(), MOVED


def test_misaligned_memory_is_copied(cpu):
    tensor = torch.randn(65)[1:]
    buffer = import_tensor(tensor, cpu)
    assert jaxlib_private.buffer_address(buffer) != tensor.data_ptr(), MOVED
    torch.testing.assert_close(export_buffer(buffer), tensor)


def test_only_gpus_have_streams_for_imports(cpu):
    with pytest.raises(jax.errors.JaxRuntimeError, match="only implemented for GPU"):
        jaxlib_private.stream_of_imports(cpu.device)


def test_xla_is_told_where_cudas_compiler_is(cpu, monkeypatch):
    monkeypatch.setattr(jaxlib_private._lib, "cuda_path", "/the/wheels")
    monkeypatch.setattr(jaxlib_private, "platform_of", lambda device: "cuda")
    assert b"/the/wheels" in jaxlib_private.compile_options({}, cpu.devices).SerializeAsString()
    monkeypatch.setattr(jaxlib_private, "platform_of", lambda device: "cpu")
    assert b"/the/wheels" not in jaxlib_private.compile_options({}, cpu.devices).SerializeAsString()


def test_compile_and_execute(cpu):
    with make_ir_context():
        module = ir.Module.parse(ADD)
    options = jaxlib_private.compile_options({}, cpu.devices)
    loaded = jaxlib_private.compile_and_load(module, cpu.devices, options)
    execute = jaxlib_private.executor(loaded)
    ones = import_tensor(torch.ones(4), cpu)
    ((result,),) = execute([ones, ones])
    assert export_buffer(result).tolist() == [2, 2, 2, 2], MOVED


SHARDED = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<4x2xf32>, tensor<f32>) {
  %b = stablehlo.add %a, %a : tensor<4x2xf32>
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  return %b, %c : tensor<4x2xf32>, tensor<f32>
}
"""


def test_sharded_programs(cpu):
    mesh = Mesh(range(4), (2, 2), ("x", "y"))
    where, rows = placement_over(mesh, cpu), Sharding(mesh, (("y",), ()))
    with make_ir_context():
        module = ir.Module.parse(SHARDED)
        options = jaxlib_private.compile_options({}, where.devices)
        loaded = jaxlib_private.compile_and_load(module, where.devices, options)
    buffer = import_sharded(torch.ones(4, 2), rows, where)
    shapes = [shard.shape for shard in jaxlib_private.shards_of(buffer)]
    assert shapes == [(2, 2)] * 4, MOVED
    first, second = jaxlib_private.result_tilings(loaded, 4)
    assert first == rows.tiling(), MOVED  # by halves, each on two devices
    assert second.is_whole, MOVED
    twice, _ = jaxlib_private.executor(loaded)([buffer])
    torch.testing.assert_close(export_sharded(twice, first, (4, 2), where), torch.full((4, 2), 2.0))


def test_a_client_of_our_own():
    assert jaxlib_private.make_cpu_client().local_devices()[0].platform == "cpu", MOVED


def test_xla_options_reach_the_compiler(cpu):
    with make_ir_context():
        module = ir.Module.parse(ADD)
    options = jaxlib_private.compile_options({"no_such_xla_option": "1"}, cpu.devices)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_xla_option"):
        jaxlib_private.compile_and_load(module, cpu.devices, options)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint16, torch.uint64, torch.complex128, torch.bfloat16, torch.float8_e5m2],
)
def test_dtypes_cross_without_a_copy(cpu, dtype):
    tensor = torch.zeros(64, dtype=dtype)
    back = export_buffer(import_tensor(tensor, cpu))
    assert back.dtype is dtype
    assert back.data_ptr() == tensor.data_ptr()


ONEDNN = """
import torch
import torch.nn.functional as F
from xla_dynamo.kernels import onednn_convolution, onednn_product

onednn_convolution.FEWEST_IN_CONVOLUTION = 0
onednn_product.FEWEST_IN_PRODUCT = {torch.float32: 0, torch.bfloat16: 0}
image, kernel = torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 2)
for dtype in (torch.float32, torch.bfloat16):
    for f, args in (
        (lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 2), (image, kernel)),
        (torch.matmul, (image, image.mT)),
    ):
        args = [a.to(dtype) for a in args]
        actual = torch.compile(f, backend="openxla")(*args)
        torch.testing.assert_close(actual, f(*args))
"""


def test_calls_of_onednn_are_written_as_xla_reads_them():
    """In a process of its own, which such a call ends if it is of another form."""
    run = subprocess.run([sys.executable, "-c", ONEDNN], capture_output=True, text=True)
    assert run.returncode == 0, f"{MOVED}: calls_onednn\n{run.stderr[-2000:]}"


def test_only_cpus_have_onednn():
    assert not libraries_of("cuda")


def test_abstract_arrays_know_over_which_axes_they_vary():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    found = []

    def look(x):
        found.append((varying_axes(x), result_type((2, 3), x.dtype, [jax.typeof(x)])))
        return x

    for check in (True, False):
        rows = jax.sharding.PartitionSpec("data")
        jax.jit(jax.shard_map(look, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=check))(
            np.ones(4, np.float32)
        )
    assert [axes for axes, _ in found] == [{"data"}, set()], f"{MOVED}: varying_axes"
    assert [varying_axes(t) for _, t in found] == [{"data"}, set()], f"{MOVED}: result_type"
    assert varying_axes(np.ones(3)) == set()


def test_a_trace_that_cannot_be_written_is_forgotten(tmp_path):
    (tmp_path / "file").touch()
    jax.profiler.start_trace(tmp_path / "file")
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.profiler.stop_trace()
    jaxlib_private.forget_trace()
    with jax.profiler.trace(tmp_path / "folder"):
        pass
    assert any(tmp_path.rglob("*.xplane.pb")), f"{MOVED}: forget_trace"
