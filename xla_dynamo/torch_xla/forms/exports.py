"""Names of `unbounded_dynamism_export`, and an exported program run on the device."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.export import ExportedProgram

from xla_dynamo.torch_private import get_fake_args_kwargs
from xla_dynamo.torch_xla.kernels.custom_calls import (
    extract_custom_call_outputs_shape_dtype,
    stablehlo_custom_call,
)

_ENDLESS = torch.iinfo(torch.int64).max


def exported_program_has_symbolic_input_shape(ep: ExportedProgram) -> bool:
    """Whether an input of a program has a size that each call may choose."""
    fakes = [n.meta.get("val") for n in ep.graph_module.graph.find_nodes(op="placeholder")]
    return any(
        isinstance(fake, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in fake.shape)
        for fake in fakes
    )


def process_exported_program_with_symbolic_input(ep: ExportedProgram) -> None:
    """Nothing: programs with dynamic sizes are lowered as they are."""


def call_function(
    graph: torch.fx.Graph,
    target: Callable[..., Any],
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> torch.fx.Node:
    """Put a call into a graph, with its fake result in `meta["val"]`."""
    node = graph.call_function(target, args, kwargs)
    _, given, named = get_fake_args_kwargs(node)
    node.meta["val"] = target(*given, **named)
    return node


def remove_no_op_slice(gm: torch.fx.GraphModule) -> None:
    """Remove slices of a graph that take a whole dimension."""
    op = torch.ops.aten.slice.Tensor
    for node in gm.graph.find_nodes(op="call_function", target=op):
        source: Any = node.args[0]
        start, end, step = (
            node.args[i] if i < len(node.args) else default
            for i, default in ((2, None), (3, None), (4, 1))
        )
        if start in (None, 0) and end in (None, _ENDLESS) and step == 1:
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)


class XLAExportInterpreter(torch.fx.Interpreter):
    """Runs an exported program's graph on tensors of the 'xla' device, which record it.

    Operators of some namespaces become custom calls of StableHLO, so that the program can be
    written (`xm.get_stablehlo`), and run where XLA knows them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device: torch.device | str,
        custom_ops_allowed_in_graph: Collection[str] = (),
        gm_serializer: Any = None,
    ) -> None:
        """Take the graph, the device, and the namespaces; `gm_serializer` is not read."""
        super().__init__(module)  # type: ignore[arg-type]
        self._device = torch.device(device)
        self._namespaces = frozenset(custom_ops_allowed_in_graph)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operator; what makes tensors makes them on the device."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._device}
        return super().call_function(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, as a custom call where its operator's namespace says so."""
        if n.op == "call_function" and getattr(n.target, "namespace", None) in self._namespaces:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            forms = extract_custom_call_outputs_shape_dtype(n)
            return stablehlo_custom_call(tensors, str(n.target), *forms)
        return super().run_node(n)
