"""Divide what a loop does with a row into a forward and a backward graph, as AOTAutograd does.

The forward hands values over to the backward, stacked row by row. What the backward can have
without that is not stacked: rows of the loop's own inputs, what is the same for all rows, and views
of both.
"""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from functorch.compile import aot_function, make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

from xla_dynamo.lazy.signatures import signature_of
from xla_dynamo.torch_private import FakeTensorMode, version_of
from xla_dynamo.torch_xla.forms.loop_operator import Body, body_of, run_loop

Tensors: TypeAlias = Sequence[torch.Tensor]
Node: TypeAlias = torch.fx.Node


@dataclasses.dataclass(frozen=True)
class Counts:
    """How many tensors a loop carries, goes through row by row, and has the same for all rows."""

    carry: int
    rows: int
    fixed: int

    def split(self, tensors: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """The three kinds of tensors, in a list that has them one behind the other."""
        first, second = self.carry, self.carry + self.rows
        return tensors[:first], tensors[first:second], tensors[second:]


@dataclasses.dataclass(frozen=True, eq=False)
class Divided:
    """A forward and a backward graph.

    Attributes:
        counts: of the inputs of the forward.
        results: how many results the forward has that are not handed over.
        forward: takes the inputs; returns the results, and what it hands over.
        backward: takes what is handed over, and the gradients of the results that have one; returns
            those of the inputs, or None. It is None itself where nothing has a gradient.
        differentiable: of each result, whether it has a gradient.
    """

    counts: Counts
    results: int
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    differentiable: tuple[bool, ...]

    @property
    def handed_over(self) -> list[Node]:
        """The nodes of the forward whose values are handed over."""
        return list(self.forward.graph.output_node().args[0][self.results :])

    @property
    def inputs(self) -> list[Node]:
        """The nodes of the forward's inputs."""
        return self.forward.graph.find_nodes(op="placeholder")


def divide(
    function: Callable[..., Sequence[torch.Tensor]],
    examples: tuple[Tensors, Tensors, Tensors],
    partition_fn: Callable[..., Any],
    trains: bool,
) -> Divided:
    """Trace a function of carried values, rows and fixed values, one behind the other.

    Args:
        function: returns the next carried values, and results.
        examples: what it is called with; of the rows, one each. None is read.
        partition_fn: divides the joint graph, as one of `functorch.compile`'s.
        trains: whether anything has a gradient.

    Raises:
        RuntimeError: the function writes into what it is given.
        ValueError: the carried values change their number, shapes or dtypes.
    """
    graphs: dict[str, torch.fx.GraphModule] = {}

    def keep(kind: str) -> Callable[..., Any]:
        def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
            graphs[kind] = graph
            return make_boxed_func(graph)

        return compiler

    def fresh(*args: torch.Tensor) -> list[torch.Tensor]:
        # AOTAutograd makes results that are views of inputs outside of the graph.
        return [one.clone() for one in function(*args)]

    carry, rows, fixed = examples
    counts = Counts(len(carry), len(rows), len(fixed))
    same = lambda t: t  # noqa: E731
    # Hooks of the caller's are for values, and not for the trace.
    hooks = torch.autograd.graph.saved_tensors_hooks(same, same)
    with FakeTensorMode(allow_non_fake_inputs=True), hooks:
        # What is carried has a gradient behind the first row, whether or not it has one before.
        given = [_like(t, trains and t.dtype.is_floating_point) for t in carry]
        given += [_like(t, trains and t.requires_grad) for t in (*rows, *fixed)]
        versions = [version_of(t) for t in given]
        compiled = aot_function(
            fresh,
            fw_compiler=keep("forward"),
            bw_compiler=keep("backward"),
            inference_compiler=keep("forward"),
            partition_fn=partition_fn,
        )
        with torch.set_grad_enabled(trains):
            results = compiled(*given)
            _check_carried(results[: counts.carry], given[: counts.carry])
            if [version_of(t) for t in given] != versions:
                raise RuntimeError(
                    "the function of a loop changes a tensor that it is given, or that it finds "
                    "outside, by an in-place operation: each row would read what another one "
                    "wrote. Return the new value as carry or as a result, or clone() it first"
                )
            with_gradient = [r for r in results if r.requires_grad]
            if with_gradient:
                torch.autograd.backward(with_gradient, [torch.ones_like(r) for r in with_gradient])
    differentiable = tuple(r.requires_grad for r in results)
    return Divided(counts, len(results), graphs["forward"], graphs.get("backward"), differentiable)


def _like(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    size, stride = tensor.size(), tensor.stride()
    made = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(requires_grad)


def _check_carried(after: Tensors, before: Tensors) -> None:
    """Raise ValueError unless what is carried keeps its form."""
    forms = [[(tuple(t.shape), t.dtype) for t in tensors] for tensors in (before, after)]
    if forms[0] != forms[1]:
        raise ValueError(
            f"the function of a loop must keep the form of what it carries: it takes {forms[0]}, "
            f"and returns {forms[1]}"
        )


class LoopWithGradients:
    """A loop whose backward is another loop, through the rows from the last one to the first."""

    def __init__(self, divided: Divided) -> None:
        """Make the body of the forward."""
        self.divided, self.counts = divided, divided.counts
        self._sources = [_source_of(n, divided.inputs, self.counts) for n in divided.handed_over]
        graph, self._constants = _without_constants(divided.forward)
        output = graph.graph.output_node()
        results, handed = output.args[0][: divided.results], output.args[0][divided.results :]
        stacked = [n for n, s in zip(handed, self._sources, strict=True) if s is None]
        output.args = ((*results, *map(_copied, stacked)),)
        self._forward = body_of(_clean(graph), self.counts.carry)
        self._backward: Body | None = None
        self._constants_behind: list[torch.Tensor] = []
        inputs = [None] * sum(dataclasses.astuple(self.counts))
        if divided.backward is not None:
            inputs = list(divided.backward.graph.output_node().args[0])
        carried = divided.differentiable[: self.counts.carry]
        _, of_rows, of_fixed = self.counts.split(inputs)
        # The numbers of the inputs that have a gradient, of each kind.
        self._carried = [i for i, has in enumerate(carried) if has]
        self._rows = [i for i, node in enumerate(of_rows) if node is not None]
        self._fixed = [i for i, node in enumerate(of_fixed) if node is not None]

    def run(self, carry: Tensors, rows: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
        """The results, and what is stacked for the backward."""
        given = [*fixed, *_on(rows[0].device, self._constants)]
        made = run_loop(self._forward, carry, rows, given)
        return made[: self.divided.results], made[self.divided.results :]

    def run_backward(
        self, gradients: Tensors, stacked: Tensors, rows: Tensors, fixed: Tensors
    ) -> list[torch.Tensor | None]:
        """The gradients of the inputs, or None.

        Args:
            gradients: those of the results that have one.
            stacked: what the forward handed over.
            rows: the inputs that the forward went through.
            fixed: its inputs that are the same for all rows.
        """
        count = len(self._carried)
        carry, of_rows = gradients[:count], gradients[count:]
        sums = [torch.zeros_like(fixed[i]) for i in self._fixed]
        groups = [carry, sums, of_rows, stacked, rows, fixed]
        if self._backward is None:
            self._trace_backward(groups)
            assert self._backward is not None
        given = [*fixed, *_on(rows[0].device, self._constants_behind)]
        made = run_loop(
            self._backward, [*carry, *sums], [*of_rows, *stacked, *rows], given, reverse=True
        )
        first, second = self.counts.carry, self.counts.carry + self.counts.rows
        places = [*self._carried, *(second + i for i in self._fixed)]
        places += [first + i for i in self._rows]
        found: list[torch.Tensor | None] = [None] * (second + self.counts.fixed)
        for place, gradient in zip(places, made, strict=True):
            found[place] = gradient
        return found

    def _trace_backward(self, groups: Sequence[Tensors]) -> None:
        """Make the body of the backward, which carries the sums of fixed inputs' gradients."""
        graph = self.divided.backward
        assert graph is not None
        ends = list(itertools.accumulate(map(len, groups)))
        through_rows = range(ends[1], ends[4])

        def step(*args: torch.Tensor) -> list[torch.Tensor]:
            parts = [args[end - len(g) : end] for g, end in zip(groups, ends, strict=True)]
            carry, sums, of_rows, stacked, rows, fixed = parts
            inputs = [*[None] * self.counts.carry, *rows, *fixed]
            waiting = iter(stacked)
            handed = [next(waiting) if s is None else s(inputs) for s in self._sources]
            made = self.counts.split(graph(*handed, *carry, *of_rows))
            before = [made[0][i] for i in self._carried]
            next_carry = [
                torch.zeros_like(like) if one is None else one
                for one, like in zip(before, carry, strict=True)
            ]
            added = [s + made[2][i] for s, i in zip(sums, self._fixed, strict=True)]
            # Results of a loop share no memory.
            return [x.clone() for x in (*next_carry, *added, *(made[1][i] for i in self._rows))]

        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            examples = [
                torch.empty(t.shape[i in through_rows :], dtype=t.dtype, device=t.device)
                for i, t in enumerate(itertools.chain(*groups))
            ]
            traced = make_fx(step)(*examples)
        traced, self._constants_behind = _without_constants(traced)
        self._backward = body_of(_clean(traced), ends[1])


def _on(device: torch.device, tensors: Tensors) -> list[torch.Tensor]:
    return [t.to(device) for t in tensors]


def _clean(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _copied(node: Node) -> Node:
    """A copy of a node's value: results of a loop share no memory."""
    with node.graph.inserting_before(node.graph.output_node()):
        copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"]
    return copy


def _without_constants(
    graph: torch.fx.GraphModule,
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A copy of a graph that takes its constants behind its inputs, and the constants."""
    new = torch.fx.Graph()
    new.output(new.graph_copy(graph.graph, {}))
    copied = torch.fx.GraphModule(graph, new)
    new = copied.graph
    constants: list[torch.Tensor] = []
    last = new.find_nodes(op="placeholder")[-1]
    for node in new.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(graph)
        if not isinstance(value, torch.Tensor):
            continue
        with new.inserting_after(last):
            last = new.placeholder(f"constant_{len(constants)}")
        last.meta["val"] = value.detach().to("meta")
        node.replace_all_uses_with(last)
        new.erase_node(node)
        constants.append(value.detach())
    copied.graph.lint()
    for name in [name for name, _ in copied.named_buffers(recurse=False)]:
        delattr(copied, name)  # whoever copies the graph would copy it, too
    copied.recompile()
    return copied, constants


Source = Callable[[Sequence[Any]], torch.Tensor]


def _source_of(node: Node, inputs: Sequence[Node], counts: Counts) -> Source | None:
    """How the backward has a value of the forward from its inputs; None if it must be stacked.

    What is carried is stacked: it is another value in each row.
    """
    chain = []
    while node not in inputs:
        is_operator = node.op == "call_function" and hasattr(node.target, "overloadpacket")
        if not is_operator or not signature_of(node.target).is_view:
            return None
        if len(node.all_input_nodes) != 1 or node.all_input_nodes[0] is not node.args[0]:
            return None
        chain.append(node)
        node = node.all_input_nodes[0]
    number = list(inputs).index(node)
    if number < counts.carry:
        return None

    def source(given: Sequence[Any]) -> torch.Tensor:
        value = given[number]
        for view in reversed(chain):
            value = view.target(value, *view.args[1:], **view.kwargs)
        return value

    return source
