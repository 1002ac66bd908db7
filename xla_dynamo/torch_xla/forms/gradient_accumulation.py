"""Names of `torch_xla.experimental.gradient_accumulation`: a loop over micro-batches on the device.

The step is traced at each call, since it is a function that may have changed. Calls that trace to
the same graph share an executable, whose body is compiled once however many steps there are.
"""

import collections
import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import xla_dynamo
from xla_dynamo.torch_private import FakeTensorMode, OpOverload, scan_op, schema

Tensor: TypeAlias = torch.Tensor
_MOST_LOOPS = 64


@dataclasses.dataclass(frozen=True)
class GradientAccumulationContext:
    """The sizes of a loop.

    Attributes:
        num_gradient_steps: over how many steps gradients are accumulated.
        num_iterable_tensors: how many tensors the steps go through.
        num_carried_tensors: how many tensors each step hands over to the next.
    """

    num_gradient_steps: int
    num_iterable_tensors: int
    num_carried_tensors: int


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[Tensor],
    model: nn.Module,
    *carried_tensors: Tensor,
) -> Any:
    """Add up the gradients of the mean loss of some steps, in one loop on the device.

    Args:
        train_step: takes one element of each of `iterable_tensors` along their first dimension,
            and the carried tensors. It returns a loss, or a tuple of a loss and the carried
            tensors of the next step. It writes into none of its inputs or the model's buffers.
        iterable_tensors: tensors of one first size, which is the number of steps.
        model: the model that `train_step` calls.
        carried_tensors: what the first step is handed, of the shapes and dtypes that each step
            returns.

    Returns:
        The mean of the losses; with carried tensors, a tuple of it and of the last step's. The
        gradients are added to those of the model's parameters.

    Raises:
        ValueError: there are no tensors to go through, or their first sizes differ or are 0.
        AssertionError: a step writes into its inputs, or into the model's buffers.
    """
    tensors = tuple(iterable_tensors)
    if not tensors:
        raise ValueError("iterable_tensors is empty: give a tensor of a batch for each step")
    for number, one in enumerate(tensors):
        if not isinstance(one, torch.Tensor) or not one.numel():
            raise ValueError(f"element {number} of iterable_tensors is no tensor with elements")
        if one.size(0) != tensors[0].size(0):
            raise ValueError(
                f"element {number} of iterable_tensors has {one.size(0)} steps, and element 0 has "
                f"{tensors[0].size(0)}"
            )
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    context = GradientAccumulationContext(len(tensors[0]), len(tensors), len(carried_tensors))
    step = _Step(context, train_step, model, list(trained))
    loss, gradients, carried = step.run(list(tensors), list(trained.values()), carried_tensors)
    for parameter, gradient in zip(trained.values(), gradients, strict=True):
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            with torch.no_grad():
                parameter.grad.add_(gradient)
    return (loss, *carried) if carried else loss


class _Step(nn.Module):
    """A training step as a module, whose parameters a trace puts others in place of."""

    def __init__(
        self,
        context: GradientAccumulationContext,
        train_step: Callable[..., Any],
        model: nn.Module,
        names: list[str],
    ) -> None:
        super().__init__()
        self.context, self.train_step, self.names = context, train_step, names
        self.model = model

    def forward(self, *args: Any) -> Any:
        return self.train_step(*args)

    def run(
        self, tensors: list[Tensor], params: list[Tensor], carried: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], tuple[Tensor, ...]]:
        """The mean loss, the gradients, and the last step's carried tensors."""
        first = [torch.zeros((), device=tensors[0].device), *map(torch.zeros_like, params)]
        first = [t.detach() for t in (*first, *carried)]
        body, others = self._traced(first, tensors, params)
        given = [*first, *tensors, *(p.detach() for p in params), *others]
        with torch.no_grad():
            results = list(_loop_of(body, given, len(first), len(tensors))(*given))
        loss, last = results[0], 1 + len(params)
        return loss, results[1:last], tuple(results[last:])

    def _traced(
        self, first: list[Tensor], tensors: list[Tensor], params: list[Tensor]
    ) -> tuple[torch.fx.GraphModule, list[Tensor]]:
        """The loop's body, and the tensors beside the arguments that it reads.

        The body takes the state, one element of each tensor, the parameters and those beside. It
        returns the next state.
        """
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(t) for t in (*first, *tensors, *params)]
        start = len(first)
        with mode, torch.no_grad():
            elements = [f[0].clone() for f in fakes[start : start + len(tensors)]]
        fakes[start : start + len(tensors)] = elements
        with mode:
            body = make_fx(self._body)(*fakes)
        others = _lift_constants(body)
        if _writes_into_inputs(body):
            raise AssertionError(
                "train_step writes into its inputs, or into buffers of the model, as a batch norm "
                "does in training: return what is to be carried to the next step, and let the rest "
                "be as it is"
            )
        return body, [t.detach() for t in others]

    def _body(self, *args: Tensor) -> list[Tensor]:
        context, count = self.context, len(self.names)
        rest = list(args)
        total, gradients = rest.pop(0), [rest.pop(0) for _ in range(count)]
        carried = [rest.pop(0) for _ in range(context.num_carried_tensors)]
        elements = [rest.pop(0) for _ in range(context.num_iterable_tensors)]
        named = {f"model.{name}": p for name, p in zip(self.names, rest, strict=True)}
        with torch.enable_grad():
            made = torch.func.functional_call(self, named, (*elements, *carried))
            loss, *carried = made if isinstance(made, tuple | list) else (made,)
            loss = loss / context.num_gradient_steps
            new = torch.autograd.grad(loss, rest, allow_unused=True)
        with torch.no_grad():
            added = [g.clone() if n is None else g + n for g, n in zip(gradients, new, strict=True)]
            # What is carried on is a tensor of its own.
            return [total + loss.detach(), *added, *(c.detach().clone() for c in carried)]


def _writes_into_inputs(body: torch.fx.GraphModule) -> bool:
    inputs: set[Any] = set()  # and their views
    for node in body.graph.nodes:
        if node.op == "placeholder":
            inputs.add(node)
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        for argument, value in zip(schema(node.target).arguments, node.args, strict=False):
            alias = argument.alias_info
            if alias is None or inputs.isdisjoint(value if isinstance(value, list) else [value]):
                continue
            if alias.is_write:
                return True
            inputs.add(node)
    return False


def _lift_constants(body: torch.fx.GraphModule) -> list[Tensor]:
    """Make arguments of the tensors that a graph has as constants; returns these tensors."""
    found: dict[str, torch.fx.Node] = {}
    tensors: list[Tensor] = []
    last = list(body.graph.find_nodes(op="placeholder"))[-1]
    for node in list(body.graph.find_nodes(op="get_attr")):
        value = getattr(body, str(node.target), None)
        if not isinstance(value, torch.Tensor):
            continue  # a graph inside
        if node.target not in found:
            with body.graph.inserting_after(last):
                last = found[str(node.target)] = body.graph.placeholder(f"beside_{len(found)}")
            last.meta = dict(node.meta)
            tensors.append(value)
        node.replace_all_uses_with(found[str(node.target)])
        body.graph.erase_node(node)
    body.recompile()
    return tensors


# What only saves time: the executables of bodies, by their text and their inputs.
_loops: collections.OrderedDict[Any, Callable[..., Any]] = collections.OrderedDict()


def _loop_of(
    body: torch.fx.GraphModule, given: Sequence[Tensor], carried: int, tensors: int
) -> Callable[..., Any]:
    """The compiled loop of a body, which takes the first state and the other tensors."""
    texts = tuple(m.code for m in body.modules() if isinstance(m, torch.fx.GraphModule))
    geometry = tuple((t.dtype, t.shape, t.stride(), t.device) for t in given)
    key = (texts, geometry, torch.get_float32_matmul_precision())
    if key not in _loops:
        _loops[key] = _compiled(body, given, carried, tensors)
        if len(_loops) > _MOST_LOOPS:
            _loops.popitem(last=False)
    return _loops[key]


def _compiled(
    body: torch.fx.GraphModule, given: Sequence[Tensor], carried: int, tensors: int
) -> Callable[..., Any]:
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"given_{i}") for i in range(len(given))]
    inside = graph.get_attr("body")
    state, rest = inputs[:carried], inputs[carried:]
    looped = graph.call_function(scan_op, (inside, state, rest[:tensors], tuple(rest[tensors:])))
    graph.output(tuple(graph.call_function(operator.getitem, (looped, i)) for i in range(carried)))
    with FakeTensorMode() as mode:
        examples = [mode.from_tensor(t) for t in given]
    return xla_dynamo.openxla(torch.fx.GraphModule({"body": body}, graph), examples)
