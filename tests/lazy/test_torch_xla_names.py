"""What stands for PyTorch/XLA's names is there, and what does not says what to do."""

import importlib
import runpy
import sys
import types

import pytest
import torch

import xla_dynamo
from docs import torch_xla_names
from tests.fresh_process import run
from xla_dynamo.errors import XlaDynamoError
from xla_dynamo.torch_xla import install
from xla_dynamo.torch_xla.modules import NotHere, _Missing
from xla_dynamo.torch_xla.names import TABLES

pytestmark = pytest.mark.usefixtures("torch_xla_installed")


@pytest.mark.parametrize("module", TABLES)
def test_each_name_is_there_or_says_what_to_do(module):
    found = importlib.import_module(module)
    for name, entry in TABLES[module].items():
        value = getattr(found, name)
        assert isinstance(value, _Missing) != bool(entry.target), name
        if not entry.target:
            with pytest.raises(NotHere, match=f"{module}.{name}"):
                value(1)
    assert set(TABLES[module]) <= set(dir(found))


def test_modules_are_found_by_every_way_of_importing():
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla import runtime as xr
    from torch_xla.core import xla_model

    assert xm is xla_model is torch_xla.core.xla_model
    assert xr.world_size() == 1
    assert xm.all_reduce is xla_dynamo.all_reduce
    assert torch_xla.__version__.startswith("2.9")
    assert torch_xla.debug.metrics.metrics_report is xla_dynamo.metrics.metrics_report
    with pytest.raises(ImportError, match="nonsense"):
        from torch_xla.core.xla_model import nonsense  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import torch_xla.nonsense


def test_what_is_missing_is_an_error_when_it_is_used():
    from torch_xla.experimental.custom_kernel import fa_custom_forward

    with pytest.raises(NotImplementedError, match="call flash_attention"):
        fa_custom_forward(1, 2)
    with pytest.raises(NotImplementedError, match="call flash_attention"):
        fa_custom_forward.apply(1)
    with pytest.raises(NotImplementedError):

        class Mine(fa_custom_forward):
            pass

    assert "not in xla_dynamo" in repr(fa_custom_forward)


def test_another_torch_xla_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_xla", types.ModuleType("torch_xla"))
    with pytest.raises(XlaDynamoError, match="uninstall torch_xla"):
        install()


def test_nothing_is_installed_by_an_import():
    told = run(
        "import sys, xla_dynamo.torch_xla, importlib.util as u; print(u.find_spec('torch_xla'))"
    )
    assert told.stdout.strip() == "None"


def test_the_page():
    assert torch_xla_names.PAGE.read_text() == torch_xla_names.page(), "run `make docs`"


def test_a_module_with_a_command_runs_as_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["consolidate_sharded_ckpts", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("torch_xla.distributed.fsdp.consolidate_sharded_ckpts", None, "__main__")
    assert not ended.value.code
    assert "--ckpt_prefix" in capsys.readouterr().out


def test_tensors_tell_whether_they_are_on_the_device():
    import torch_xla

    assert torch.ones(1, device=torch_xla.device()).is_xla
    assert not torch.ones(1).is_xla
    fn = torch.compile(lambda x: x + 1 if x.is_xla else x - 1, backend="eager", fullgraph=True)
    assert fn(torch.ones(1)) == 0
    assert fn(torch.ones(1, device="xla")).item() == 2
