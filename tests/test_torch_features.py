"""What torch's users write around a compiled model: docs/torch-features.md is the list."""

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import xla_dynamo
from xla_dynamo.frozen_inputs import FrozenProgram
from xla_dynamo.options import Options


def compiled(f, **kwargs):
    return torch.compile(f, backend="openxla", **kwargs)


@pytest.fixture
def frozen(monkeypatch):
    """A list that grows whenever values are computed from parameters beforehand."""
    runs = []
    keep = FrozenProgram._keep
    monkeypatch.setattr(FrozenProgram, "_keep", lambda *args: (runs.append(1), keep(*args)))
    return runs


@pytest.mark.parametrize(
    ("mode", "freezes"),
    [
        (None, False),
        ("default", False),
        ("reduce-overhead", False),
        ("max-autotune", True),
        ("max-autotune-no-cudagraphs", True),
    ],
)
def test_modes(mode, freezes, frozen):
    weight = nn.Parameter(torch.randn(5))
    f = compiled(lambda x: x * weight.exp(), mode=mode)
    x = torch.randn(3, 5)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(f(x), x * weight.exp())
            weight.add_(1)  # a frozen parameter may change, too
    assert bool(frozen) == freezes


def test_an_unknown_mode_is_an_error_that_lists_the_valid_ones():
    with pytest.raises(BackendCompilerFailed, match="max-autotune-no-cudagraphs") as caught:
        compiled(torch.sin, mode="fastest")(torch.randn(3))
    assert isinstance(caught.value.inner_exception, xla_dynamo.OptionError)
    for mode in ("fastest", ["default"], 1):
        with pytest.raises(xla_dynamo.OptionError, match=r"unknown mode .* 'reduce-overhead'"):
            Options.parse({}, mode)


def test_options_come_before_the_mode():
    """`torch.compile` refuses both at once; a direct call of the backend may have both."""
    assert not Options.parse({"freeze": False}, "max-autotune").freeze
    assert Options.parse({"rng": "torch"}, "max-autotune").freeze
    with pytest.raises(RuntimeError, match="Either mode or options"):
        compiled(torch.sin, mode="max-autotune", options={"freeze": False})
