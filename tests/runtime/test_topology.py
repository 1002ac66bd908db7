"""What the job consists of, under PyTorch/XLA's names. Fresh processes where a client is made."""

import subprocess
import sys
import textwrap

import pytest

import xla_dynamo
from tests.fresh_process import python
from xla_dynamo import runtime as xr
from xla_dynamo.errors import OptionError
from xla_dynamo.runtime import topology


def test_as_in_pytorch_xla_under_spmd():
    """Torch has one device; the runtime's are those that programs are partitioned over."""
    assert (xr.global_runtime_device_count(), xr.addressable_runtime_device_count()) == (8, 8)
    assert (xr.global_device_count(), xr.local_device_count(), xr.addressable_device_count()) == (
        1,
        1,
        1,
    )
    assert (xr.world_size(), xr.process_count(), xr.local_process_count()) == (1, 1, 1)
    assert (xr.process_index(), xr.global_ordinal(), xr.local_ordinal()) == (0, 0, 0)
    assert xr.device_type() == "CPU"


def test_attributes():
    assert xr.global_runtime_device_attributes() == [{"name": f"CPU:{i}"} for i in range(8)]
    assert xr.runtime_device_attributes("CPU:3") == {"name": "CPU:3"}
    with pytest.raises(OptionError, match="no device 'CPU:9', but CPU:0, CPU:1"):
        xr.runtime_device_attributes("CPU:9")


def test_a_count_of_devices_that_the_program_sets():
    out = python("""
        import torch, xla_dynamo
        xla_dynamo.runtime.set_device_count(4)
        from xla_dynamo import spmd
        x = spmd.mark_sharding(torch.ones(8), spmd.get_1d_mesh("data"), ("data",))
        print(torch.compile(lambda x: x.sum(), backend="openxla")(x).item())
        print(xla_dynamo.runtime.global_runtime_device_count())
        try:
            xla_dynamo.runtime.set_device_count(8)
        except xla_dynamo.OptionError as error:
            print(error)
    """)
    total, count, error = out.splitlines()
    assert (total, count) == ("8.0", "4")
    assert "before anything is compiled" in error


def test_whether_programs_are_partitioned():
    out = python("""
        import torch
        from xla_dynamo import runtime as xr, spmd
        print(xr.is_spmd())
        spmd.mark_sharding(torch.ones(1), spmd.Mesh([0], (1,)), (0,))
        print(xr.is_spmd())
    """)
    assert out.split() == ["False", "True"]
    out = python("""
        from xla_dynamo import runtime as xr
        xr.use_spmd()
        print(xr.is_spmd())
    """)
    assert out == "True"
    out = python("""
        from xla_dynamo.runtime import topology
        before = topology.chooses_shardings()
        topology.use_spmd(auto=True)
        topology.use_spmd()
        print(before, topology.chooses_shardings())
    """)
    assert out.split() == ["False", "True"]


def test_the_platform():
    out = python("""
        import xla_dynamo
        from xla_dynamo import runtime as xr
        xr.set_device_type("CPU")
        print(xr.device_type(), xr.global_runtime_device_count())
        xr.set_device_type("cpu")
        try:
            xr.set_device_type("TPU")
        except xla_dynamo.OptionError as error:
            print(error)
        print(xla_dynamo.xla_device_hw(xla_dynamo.device()))
    """)
    first, error, last = out.splitlines()
    assert first == "CPU 1"
    assert "the platform is CPU already" in error
    assert last == "CPU"


def test_no_such_platform():
    out = python(
        """
        import xla_dynamo
        try:
            xla_dynamo.runtime.global_runtime_device_count()
        except xla_dynamo.OptionError as error:
            print(error)
        """,
        PJRT_DEVICE="abacus",
    )
    assert "PJRT_DEVICE is 'abacus', and there is no such platform" in out


def test_nothing_is_imported_before_a_name_is_asked_for():
    code = """
        import sys, xla_dynamo
        runtime = xla_dynamo.runtime
        print(sorted(n for n in ("jax", "jaxlib", "rich", "numpy") if n in sys.modules))
        print("set_device_count" in dir(runtime), "world_size" in dir(runtime))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[0] == "[]"
    assert out.splitlines()[1] == "True True"


def test_names():
    assert xla_dynamo.runtime is xr
    for name in xr._LAZY:
        assert getattr(xr, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        xr.nonsense  # noqa: B018


def test_groups_of_devices():
    (every,) = topology.slices()
    assert [device.id for device in every] == list(range(8))
