"""Gradients of gradients: what a compiled backward gives under `create_graph=True`.

AOTAutograd's backward is a function without a derivative of its own. Asked for a gradient that
shall be differentiated, we do not run it: we run Dynamo's graph once more in eager torch, on the
inputs of the call, and let torch's autograd differentiate that. So the result has the history that
eager's has, of any order.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.dynamo.eager_run import (
    drawing_from,
    present_modes,
    run_eagerly,
    users_function,
)
from xla_dynamo.errors import UnsupportedError
from xla_dynamo.graphs.nodes import is_random, run_and_save_rng_state, run_with_rng_state
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.torch_private import (
    OutputType,
    base_of,
    function_of,
    is_traceable_wrapper_subclass,
    is_zero_tensor,
    keeps_graph,
    leave_to_python,
    version_of,
)

Node: TypeAlias = torch.fx.Node
Tensor: TypeAlias = torch.Tensor
aten = torch.ops.aten

_SMALL = 1 << 14  # the most elements of an input that is copied before it is changed
_REPLAYS = (run_and_save_rng_state, run_with_rng_state)
# Results 0 to 2 of these, in training, do not depend on the running statistics (arguments 3, 4).
_BATCH_NORMS = (
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
)
# Results that are results of AOTAutograd's function, too, and no views that are made afterwards.
_OWN = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
_OF_INTERMEDIATES = (
    OutputType.alias_of_intermediate_save_as_output,
    OutputType.alias_of_intermediate,
)
_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


class SecondOrder:
    """What one graph of Dynamo's needs so that its gradients can be differentiated."""

    def __init__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], draws_like_eager: bool
    ) -> None:
        """Take the graph, while Dynamo compiles it, and whether random numbers are eager's own."""
        self._gm, self._draws_like_eager = gm, draws_like_eager
        # Dynamo's examples are the tensors of the first call, which must not live on.
        inputs = gm.graph.find_nodes(op="placeholder")
        self._examples = [n.meta.get("example_value") for n in inputs]
        self._modes = present_modes(example_inputs)
        # Of the joint graph: the inputs that gradients are computed from, by number, and where it
        # draws random numbers for them.
        self._needed: frozenset[int] | None = None
        self._draw: str | None = None
        self._draws = self._is_placed = False

    def read_joint(self, joint: torch.fx.GraphModule, num_fwd_outputs: int) -> None:
        """Look up in AOTAutograd's joint graph what the gradients depend on."""
        outputs: Any = joint.graph.output_node().args[0]
        behind = _ancestors(outputs[num_fwd_outputs:])
        inputs = joint.graph.find_nodes(op="placeholder")
        primals = [n for n in inputs if not str(n.target).startswith("tangents")]
        self._needed = frozenset(i for i, node in enumerate(primals) if node in behind)
        if len(primals) != len(self._examples):  # AOTAutograd took inputs apart, or joined some
            self._needed = frozenset(range(len(self._examples)))
        self._draws = any(map(_draws, joint.graph.nodes))
        draws = (describe(n) for n in joint.graph.nodes if n in behind and _draws(n))
        self._draw = next(draws, None)

    def watch(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The same callable, whose gradients can be differentiated, if it has any.

        AOTAutograd's function shows in the history of its results. From the first call on, the
        function itself notes its inputs, and no call has anything to look up.
        """
        if self._needed is None:
            return compiled

        def call(*args: Any) -> Any:
            if self._is_placed:
                return compiled(*args)
            earlier = {a.grad_fn for a in args if isinstance(a, torch.Tensor)}
            small = enumerate(args) if self._needed else ()
            before = {
                i: a.detach().clone()
                for i, a in small
                if _is_small(self._examples[i]) and not _is_freed(a)
            }
            state = self._generator_state()
            results = compiled(*args)
            node = _new_function([*results, *args], earlier)
            if node is not None:
                function = function_of(node)
                recorder = _Recorder(self, function.metadata, len(node.needs_input_grad))
                node.second_order = recorder.note(args, [before[i] for i in recorder.copied], state)
                recorder.place(function)
                self._is_placed = True
            return results

        leave_to_python(call)
        return call

    def _generator_state(self) -> Tensor | None:
        return torch.get_rng_state() if self._draws and self._draws_like_eager else None


class _Recorder:
    """Notes the inputs of each call of AOTAutograd's function, for a gradient that wants them."""

    def __init__(self, order: SecondOrder, metadata: Any, number: int) -> None:
        """Take AOTAutograd's metadata of the function, and how many inputs it has."""
        self._order, self._metadata = order, metadata
        gm, examples, needed = order._gm, order._examples, order._needed
        assert needed is not None
        self._changed = {i for i, info in enumerate(metadata.input_info) if _changes(info)}
        self._is_plain = number == len(examples)
        # A changed input loses the value that gradients would be computed from. Small ones are
        # copied, as the vectors of spectral norm; not where their gradient is wanted, too.
        lost = sorted(needed & self._changed)
        copied = [
            i for i in lost if _is_small(examples[i]) and not metadata.input_info[i].requires_grad
        ]
        self.copied, self._copy_of = copied, _picker(copied)
        self._lost = [i for i in lost if i not in copied]
        checked = [
            i for i in sorted(needed - self._changed) if isinstance(examples[i], torch.Tensor)
        ]
        static = set(metadata.static_input_indices or ())
        held = [
            i
            for i, example in enumerate(examples)
            if i in checked or i in static or not _has_fixed_geometry(example)
        ]
        self._held_indices = held
        self._hold = _picker(held)
        self._check = _picker(checked)
        self._names = [n.name for n in gm.graph.find_nodes(op="placeholder")]

    def note(
        self, args: Sequence[Any], old: Sequence[Tensor], state: Tensor | None
    ) -> tuple[Any, ...]:
        """What a gradient of second order will need of a call."""
        checked = self._check(args)
        try:
            versions = list(map(version_of, checked))
        except RuntimeError:  # an inference tensor, which has none
            versions = [0 if t.is_inference() else version_of(t) for t in checked]
        return self._hold(args), checked, versions, old, state

    def place(self, function: Any) -> None:
        """Let AOTAutograd's function note its inputs, and differentiate in eager if asked to."""
        run, differentiate = function.forward, function.backward
        order, note, gradients = self._order, self.note, self._gradients

        def forward(ctx: Any, *args: Any) -> Any:
            state = order._generator_state() if order._draws else None
            old = [x.detach().clone() for x in self._copy_of(args)] if self.copied else ()
            results = run(ctx, *args)
            ctx.second_order = note(args, old, state)
            return results

        def backward(ctx: Any, *tangents: Any) -> Any:
            if torch.is_grad_enabled():
                found = gradients(ctx, tangents)
            else:
                found = differentiate(ctx, *tangents)
            if not keeps_graph():
                ctx.second_order = None
            return found

        leave_to_python(forward)
        leave_to_python(backward)
        function.forward, function.backward = staticmethod(forward), staticmethod(backward)

    def _gradients(self, ctx: Any, tangents: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of all inputs, with a history."""
        self._refuse()
        noted = getattr(ctx, "second_order", None)
        saved = ctx.saved_tensors  # raises torch's own errors, for what was freed or changed
        if noted is None:
            raise RuntimeError(_FREED)
        del saved
        held, checked, versions, old, state = noted
        _check_versions(checked, versions)
        known = dict(zip(self._held_indices, held, strict=True))
        known |= zip(self.copied, old, strict=True)
        wants = ctx.needs_input_grad
        leaves = [self._leaf(i, known, wants[i]) for i in range(len(wants))]
        # What the graph changes is not to be changed once more.
        changed = self._changed
        given = [
            x.clone() if i in changed and isinstance(x, torch.Tensor) else x
            for i, x in enumerate(leaves)
        ]
        order = self._order
        with order._modes(), drawing_from(state if order._draws else None, order._draws):
            results = run_eagerly(order._gm, given)
        if len(tangents) == 1 and isinstance(tangents[0], list):
            tangents = tangents[0]
        pairs = [
            (y, t)
            for y, t in zip(self._function_results(given, results), tangents, strict=True)
            if isinstance(y, torch.Tensor) and y.requires_grad and t is not None
        ]
        indices = [i for i, wanted in enumerate(wants) if wanted]
        gradients: list[Any] = [None] * len(wants)
        if pairs:
            found = torch.autograd.grad(
                [y for y, _ in pairs],
                [leaves[i] for i in indices],
                [t for _, t in pairs],
                create_graph=True,
                allow_unused=True,
            )
            for i, gradient in zip(indices, found, strict=True):
                gradients[i] = gradient
        return tuple(gradients)

    def _refuse(self) -> None:
        """Raise an error where the graph cannot be run once more as it ran."""
        why, advice = "", ""
        order = self._order
        if not self._is_plain:
            why = "AOTAutograd passes its inputs in another form (they overlap, or are wrappers)"
            advice = "call the function with tensors of memory of their own"
        elif self._lost:
            names = ", ".join(self._names[i] for i in self._lost)
            why = f"it changes its input {names} in place, and the value before is needed"
            advice = "let it change a clone"
        elif order._draw is not None and not order._draws_like_eager:
            why = f"its gradients depend on random numbers{order._draw}"
            advice = (
                "compile it with options={'rng': 'torch'}, whose numbers can be drawn once more, "
                "or call .eval() on layers such as dropout"
            )
        elif (applied := users_function(order._gm)) is not None:
            why = f"torch.compile does not keep all of a user's own backward{describe(applied)}"
            advice = "write the function without torch.autograd.Function"
        if why:
            raise UnsupportedError(
                "a gradient through a compiled graph was asked for with create_graph=True, to be "
                "differentiated once more. That runs the graph again in eager torch, which this "
                f"one does not allow: {why}\n  {advice}, or leave it to eager"
            )

    def _leaf(self, index: int, known: dict[int, Any], wanted: bool) -> Any:
        """What stands for an input: its gradient is of this graph's uses of it alone."""
        if index not in known:  # nothing is computed from its value that a gradient depends on
            example = self._order._examples[index]
            x = torch.empty_strided(
                example.shape, example.stride(), dtype=example.dtype, device=example.device
            )
            return x.zero_().requires_grad_(wanted)
        x = known[index]
        if not isinstance(x, torch.Tensor):
            return x
        if not wanted or index in self._changed:
            return x.detach().requires_grad_(wanted)
        return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()

    def _function_results(self, given: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The results of AOTAutograd's function, in its order, from those of Dynamo's graph."""
        metadata = self._metadata
        found: list[Any] = [given[i] for i in metadata.mutated_inp_runtime_indices]
        bases: list[Any] = [None] * metadata.num_intermediate_bases
        for y, info in zip(results, metadata.output_info, strict=True):
            found.append(y if info.output_type in _OWN else None)
            if info.output_type in _OF_INTERMEDIATES:
                bases[info.base_idx] = base_of(y)
        return found + bases


def _new_function(values: Iterable[Any], earlier: Collection[Any]) -> Any:
    """The node of AOTAutograd's function in the history of what a call returned or changed.

    Nodes that are `earlier` than the call, and those behind them, are left out.
    """
    waiting = [v.grad_fn for v in values if isinstance(v, torch.Tensor)]
    seen = {None, *earlier}
    while waiting:
        node = waiting.pop(0)
        if node in seen:
            continue
        if function_of(node) is not None:
            return node
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return None


def _picker(indices: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function of a sequence: its items at some indices, as a tuple."""
    if not indices:
        return lambda _: ()
    if len(indices) == 1:
        (index,) = indices
        return lambda items: (items[index],)
    return operator.itemgetter(*indices)


def _is_small(example: Any) -> bool:
    return _has_fixed_geometry(example) and example.numel() <= _SMALL


def _is_freed(tensor: Tensor) -> bool:
    """Whether a tensor's memory was given back: the call refuses it, and a copy would read it."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_zero_tensor(tensor)
    return plain and tensor.numel() > 0 and not tensor.untyped_storage().nbytes()


def _changes(info: Any) -> bool:
    return bool(info.mutates_data or info.mutates_metadata)


def _has_fixed_geometry(example: Any) -> bool:
    """Whether a tensor like an example can be made, to stand for one that is not needed."""
    if not isinstance(example, torch.Tensor) or is_traceable_wrapper_subclass(example):
        return False
    return all(type(n) is int for n in (*example.shape, *example.stride()))


def _draws(node: Node) -> bool:
    return node.target in _REPLAYS or is_random(node)


def _ancestors(outputs: Sequence[Any]) -> set[Node]:
    """The nodes that the values of some nodes depend on, these included."""
    found: set[Node] = set()
    waiting = [n for n in outputs if isinstance(n, torch.fx.Node)]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, torch.fx.Node) and _is_batch_statistic(source, node.args[1]):
            waiting += [
                n for n in (*source.args[:3], *source.args[5:]) if isinstance(n, torch.fx.Node)
            ]
        else:
            waiting += node.all_input_nodes
    return found


def _is_batch_statistic(node: Node, index: Any) -> bool:
    """Whether a result of a node is one of batch norm in training that reads no running ones."""
    if node.target not in _BATCH_NORMS or index > 2:
        return False
    # (x, weight, bias, mean, variance, training, momentum, eps); the other is always in training
    return node.target is _BATCH_NORMS[1] or node.args[5] is True


def _check_versions(tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Raise torch's error for a tensor that was changed since the forward."""
    for tensor, version in zip(tensors, versions, strict=True):
        if not tensor.is_inference() and version_of(tensor) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{tensor.type()} {list(tensor.shape)}] is at version "
                f"{version_of(tensor)}; expected version {version} instead. It is an input of a "
                "compiled graph, which create_graph=True runs again to differentiate it"
            )
