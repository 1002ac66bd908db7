"""The inputs of a program as files: what they are, and their values up to a limit of bytes."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from xla_dynamo.torch_private import FakeTensorMode, new_symbol

_FUNCTIONS = {
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
}


def written(value: Any) -> Any:
    """What an input is, as JSON has it: sizes that are dynamic are texts."""
    if isinstance(value, torch.Tensor):
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": [_number(n) for n in value.shape],
            "stride": [_number(n) for n in value.stride()],
            "offset": _number(value.storage_offset()),
            "device": "cpu" if value.device.type == "xla" else str(value.device),
        }
    if isinstance(value, torch.SymInt | int | float | None):
        return {"number": _number(value)}
    return {"object": type(value).__name__}


def _number(n: Any) -> Any:
    if isinstance(n, torch.SymInt):
        return str(n.node.expr)
    return float(n) if isinstance(n, torch.SymFloat) else n


def symbols_of(values: Sequence[Any]) -> dict[str, list[int]]:
    """Of each symbol of dynamic sizes the value that it was traced at, and its range."""
    found: dict[str, list[int]] = {}
    for value in values:
        numbers = [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]
        for n in numbers:
            if not isinstance(n, torch.SymInt):
                continue
            environment = n.node.shape_env
            for symbol in n.node.expr.free_symbols:
                known = getattr(environment, "var_to_range", {}).get(symbol)
                hint = getattr(environment, "backed_var_to_val", None)
                hint = hint if hint is not None else getattr(environment, "var_to_val", {})
                low, high = (
                    (known.lower, known.upper)
                    if known is not None
                    else (sympy.Integer(2), sympy.oo)
                )
                low = max(0, int(low)) if low.is_number and low < 2**31 else 0
                high = min(2**31, int(high)) if high < 2**31 else 2**31
                found[str(symbol)] = [int(hint.get(symbol, max(low, 2))), low, high]
    return found


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """What values are drawn by, where they are not saved."""
    if tensor.numel() == 0:
        return {}
    if tensor.dtype.is_floating_point:
        finite = tensor.to(torch.float64)
        finite = finite[finite.isfinite()]
        if finite.numel() == 0:
            return {}
        return {"mean": float(finite.mean()), "std": float(finite.std(correction=0))}
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        return {}
    return {"low": int(tensor.min()), "high": int(tensor.max())}


def drawn(given: Mapping[str, Any], sizes: Mapping[str, int], seed: int) -> Any:
    """An input like the one that was written, with random values."""
    if "number" in given:
        return evaluated(given["number"], sizes)
    if "object" in given:
        return None
    dtype = getattr(torch, given["dtype"])
    shape = [evaluated(n, sizes) for n in given["shape"]]
    stride = [evaluated(n, sizes) for n in given["stride"]]
    made = torch.empty_strided(shape, stride, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(shape, generator=generator) * given.get("std", 1.0)
        values = values + given.get("mean", 0.0)
        if given.get("std") == 0.0:
            values = torch.full(shape, given["mean"])
    else:
        low, high = given.get("low", 0), given.get("high", 1)
        values = torch.randint(low, high + 1, shape, generator=generator)
    made.copy_(values.to(dtype))
    return made.to(given["device"])


def evaluated(written: Any, sizes: Mapping[str, Any]) -> Any:
    """A number, or the value of the text of a dynamic one at these sizes."""
    if not isinstance(written, str):
        return written
    return eval(written, {"__builtins__": {}}, {**_FUNCTIONS, **sizes})


def fakes(
    given: Sequence[Mapping[str, Any]], ranges: Mapping[str, Sequence[int]]
) -> tuple[FakeTensorMode, list[Any]]:
    """Fake values of inputs, of dynamic sizes where they were, and the mode that they are of."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    sizes = {name: new_symbol(mode, *numbers) for name, numbers in ranges.items()}
    found = []
    with mode:
        for each in given:
            if "shape" not in each:
                found.append(evaluated(each.get("number"), sizes))
                continue
            shape, stride = (
                [evaluated(n, sizes) for n in each["shape"]],
                [evaluated(n, sizes) for n in each["stride"]],
            )
            dtype = getattr(torch, each["dtype"])
            made = torch.empty_strided(shape, stride, dtype=dtype, device=each["device"])
            if offset := evaluated(each["offset"], sizes):
                made = made.as_strided(shape, stride, offset)
            found.append(made)
    return mode, found


def sizes_of(
    given: Sequence[Mapping[str, Any]], inputs: Sequence[Any], ranges: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The value of each symbol in a call, as far as an input has it for a size or a number."""
    found = {name: hint for name, (hint, _, _) in ranges.items()}
    for each, value in zip(given, inputs, strict=True):
        pairs = [(each.get("number"), value)]
        if isinstance(value, torch.Tensor):
            pairs = list(zip(each["shape"], value.shape, strict=True))
        found |= {text: int(n) for text, n in pairs if isinstance(text, str) and text in found}
    return found
