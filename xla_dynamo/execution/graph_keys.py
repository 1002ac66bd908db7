"""A key for one of Dynamo's graphs: all that decides which program it is lowered to, as a digest.

Two graphs of one key have one program. What a key cannot tell apart has none: functions of the
user's, tensors that the graph holds, graphs inside the graph.

Dynamic sizes are known by where they stand and what they may be, not by what they are. What a trace
decides by their values stands in guards, which whoever takes a program puts on the present sizes.
"""

import functools
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jaxlib.version
import sympy
import torch

from xla_dynamo.lowerings.passes import manager
from xla_dynamo.lowerings.table import REGISTERED_IN
from xla_dynamo.lowerings.target import Target
from xla_dynamo.options import Options
from xla_dynamo.runtime.saved_executables import digest
from xla_dynamo.torch_private import (
    OpOverload,
    OpOverloadPacket,
    decomposition_table,
    functorch_settings,
    global_settings,
    in_a_mode,
    is_conjugated_or_negated,
    library_kernels,
    log_api_usage,
    public_name,
    source_of,
    storage_id,
)

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NAMED = torch.dtype | torch.layout | torch.memory_format | torch.device
# Operators whose decompositions are torch's or ours.
_OF_TORCH = ("aten", "prims")
# Operators of ours whose arguments say all that they do; what they run is in `sources`.
_OF_OURS = tuple(
    f"xla.{name}{overload}"
    for name in ("attend_to_pages", "write_rows")
    for overload in ("", ".default")
)
# Those that a function of torch's may be traced to.
_REACHED = (*_OF_TORCH, "prim", "rngprims", "mkldnn", "mkl", "onednn", "quantized", "higher_order")


class NoKey(Exception):
    """A graph has no key; says why."""


def graph_key(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, target: Target
) -> str:
    """The key of a graph for these inputs, in hexadecimal digits.

    Args:
        gm: Dynamo's graph, whose nodes carry fake values in `meta["example_value"]`.
        inputs: what it is called with.
        options: the user's options.
        target: what its program is for.

    Raises:
        NoKey: something in it has no text that stands for it alone.
    """
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
        raise NoKey("it has a backward")
    if in_a_mode():
        raise NoKey("a mode of torch's dispatcher is active")
    _check_registries()
    if reason := manager.refusal_to_save(target):
        raise NoKey(reason)
    parts = [
        *_versions(),
        sources(),
        repr(options),
        _encoded([target.platform, sorted(target.libraries), target.partitions]),
        _encoded([target.matmul_precision, target.bounded, sorted(target.called_later)]),
        _encoded(manager.identities(target)),
        *global_settings(),
        functorch_settings(),
        *_graph(gm),
        *_inputs(gm, inputs),
    ]
    return digest(parts)


@functools.cache
def _versions() -> tuple[str, ...]:
    """Those of the libraries that trace, decompose and lower."""
    torchs = (torch.__version__, str(torch.version.git_version))
    return (*torchs, jax.__version__, jaxlib.version.__version__)


@functools.cache
def sources() -> str:
    """A digest of this package's own sources: a change in any may change programs."""
    found = hashlib.sha256()
    root = pathlib.Path(__file__).parents[1]
    for folder in (root, root / "lowerings", root / "runtime"):  # two may be links
        for path in sorted(folder.rglob("*.py")):
            found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _check_registries() -> None:
    """Refuse rules, kernels and decompositions whose code no key has."""
    for name in library_kernels():
        raise NoKey(f"somebody has registered the kernel {name}")
    for name, module in REGISTERED_IN.items():
        if name.partition(".")[0] in _REACHED and not module.startswith("xla_dynamo."):
            raise NoKey(f"{name} has a rule of {module}")
    for op, function in decomposition_table.items():
        if str(op).partition(".")[0] not in _OF_TORCH:
            continue
        while isinstance(function, functools.partial):
            function = function.func
        # Not `__module__`, which a wrapper may have from what it wraps.
        module = getattr(function, "__globals__", {}).get("__name__") or type(function).__module__
        if not module.startswith(("torch.", "xla_dynamo.")):
            raise NoKey(f"{op} has a decomposition of {module or 'nobody'}")


def _graph(gm: torch.fx.GraphModule) -> Iterator[str]:
    if list(gm.parameters()) or list(gm.buffers()):
        raise NoKey("the graph holds tensors")
    numbers: dict[torch.fx.Node, int] = {}
    for node in gm.graph.nodes:
        # Users' lines and modules are for messages alone.
        if node.op == "call_function":
            target = _function(node.target)
        elif node.op == "call_method":
            _check_method(node)
            target = str(node.target)
        elif node.op in ("placeholder", "output"):
            target = ""
        else:
            raise NoKey(f"the graph has a node of kind {node.op}: {node.target}")
        args = [] if node.op == "placeholder" else [node.args, node.kwargs]
        yield f"{node.op} {target} {_encoded(args, numbers)}"
        numbers[node] = len(numbers)


def _function(target: Any) -> str:
    if isinstance(target, OpOverload | OpOverloadPacket) and str(target) in _OF_OURS:
        return f"op {target}"
    if isinstance(target, OpOverload):
        if target.namespace not in _OF_TORCH:
            raise NoKey(f"the graph calls {target}, whose code is not torch's")
        return f"op {target}"
    name = "log_api_usage" if target is log_api_usage else public_name(target)
    if name is None:
        raise NoKey(f"the graph calls {target}, whose code is not torch's")
    return f"function {name}"


def _check_method(node: torch.fx.Node) -> None:
    owner = node.args[0]
    value = owner.meta.get("example_value") if isinstance(owner, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not hasattr(torch.Tensor, str(node.target)):
        raise NoKey(f"the graph calls a method {node.target} of what is no tensor")


def _inputs(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[str]:
    """The inputs without their elements, and which of them have one memory."""
    memories: dict[int, int] = {}
    symbols: dict[Any, str] = {}
    placeholders = gm.graph.find_nodes(op="placeholder")
    for index, (node, x) in enumerate(zip(placeholders, inputs, strict=True)):
        fake = node.meta.get("example_value")
        if isinstance(fake, torch.SymInt):
            yield f"{_dynamic_text(fake, symbols)} {source_of(node)}"
            continue
        if type(x) not in _PLAIN or not isinstance(fake, torch.Tensor):
            raise NoKey(f"input {index} is no plain tensor: {type(x).__name__}")
        if x.layout is not torch.strided or is_conjugated_or_negated(x) or x.is_quantized:
            raise NoKey(f"input {index} is no strided tensor")
        if type(fake.storage_offset()) is not int:
            raise NoKey(f"input {index} begins at a dynamic offset of its memory")
        kind = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        described = [type(x).__name__, kind, x.is_inference(), x.requires_grad, fake.requires_grad]
        is_dynamic = any(type(n) is not int for n in (*fake.shape, *fake.stride()))
        for each in (fake,) if is_dynamic else (x, fake):
            sizes = (*each.shape, *each.stride())
            described += [each.dtype, each.device, len(each.shape), each.storage_offset()]
            described += [n if type(n) is int else _dynamic_text(n, symbols) for n in sizes]
        described.append(memories.setdefault(storage_id(x), index))
        described.append(str(source_of(node)))
        yield _encoded(described)


def _dynamic_text(size: Any, symbols: dict[Any, str]) -> str:
    """A text of a dynamic size: which of the graph's symbols it is made of, and how."""
    if not isinstance(size, torch.SymInt):
        raise NoKey(f"the graph has a dynamic number {size!r}")
    expression, environment = size.node.expr, size.node.shape_env
    for symbol in sorted(expression.free_symbols - symbols.keys(), key=str):
        if symbol not in environment.var_to_range or not expression.is_symbol:
            raise NoKey(f"the graph has a dynamic size {expression} of none of its inputs")
        known = environment.var_to_range[symbol]
        symbols[symbol] = f"s{len(symbols)}({known.lower}..{known.upper})"
    names = {symbol: sympy.Symbol(symbols[symbol]) for symbol in expression.free_symbols}
    return f"open:{expression.xreplace(names)}"


def _encoded(value: Any, numbers: dict[torch.fx.Node, int] | None = None) -> str:
    """A text of a value that no other value has."""
    if isinstance(value, torch.fx.Node):
        return f"%{(numbers or {})[value]}"
    if value is None or value is Ellipsis or type(value) in (bool, int, str):
        return f"{type(value).__name__}:{value!r}"
    if type(value) is float:
        return f"float:{value.hex()}"
    if type(value) is complex:
        return f"complex:{value.real.hex()},{value.imag.hex()}"
    if isinstance(value, _NAMED):
        return f"torch:{value!r}"
    if isinstance(value, slice):
        return f"slice{_encoded((value.start, value.stop, value.step), numbers)}"
    if isinstance(value, tuple | list):
        kind = "list" if isinstance(value, list) else "tuple"
        return f"{kind}({','.join(_encoded(v, numbers) for v in value)})"
    if isinstance(value, dict):
        pairs = (f"{_encoded(k, numbers)}={_encoded(v, numbers)}" for k, v in value.items())
        return f"dict({','.join(pairs)})"
    raise NoKey(f"the graph has {value!r}, of type {type(value).__name__}")
