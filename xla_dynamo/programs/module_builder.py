"""The MLIR module under construction, and the arguments that nodes add to its main function."""

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.graphs.request import Request
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.functions import main_of, update_type
from xla_dynamo.lowerings.builders.shardings import SHARDING, declare_mesh, sharding_attribute
from xla_dynamo.lowerings.partitioning.kernel_products import call_products
from xla_dynamo.lowerings.partitioning.partition import partition
from xla_dynamo.lowerings.passes.unmerge_products import unmerge_products
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.program import Constant, Donated, Input, Result, Seed, Slot, Whole
from xla_dynamo.runtime import metrics

Node: TypeAlias = torch.fx.Node
# The operators between a literal, as in torch.tensor([1, 2]), and its readers.
_LITERALS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)


class ModuleBuilder:
    """The module that a graph, and the graphs inside it, write into.

    Attributes:
        target: what the module is for.
        request: the feeder's request.
        module: the module.
        main: its public function.
        block: the body of `main`.
        functions: inlined functions by their key (see `from_jax`).
        calls: how often it calls each kernel in Python.
        asked: calls whose form was looked up among measured ones (see `kernels.tuning`).
        arguments: a slot for each argument of `main`.
        whole: the arrays whose shards `main` takes and returns, once it is partitioned.
    """

    def observer(self) -> Callable[[str, ir.Module], None] | None:
        """What is shown the module behind each pass, if the program is dumped."""
        dump = self.request.dump
        return None if dump is None else dump.observer()

    def __init__(self, target: Target, request: Request) -> None:
        """Make a module whose `main` has neither arguments nor results yet."""
        self.target, self.request = target, request
        self.module = ir.Module.create()
        with ir.InsertionPoint(self.module.body):
            self.main = func.FuncOp("main", ([], []), visibility="public")
        if request.mesh is not None:
            declare_mesh(self.module, request.mesh.axis_names, request.mesh.mesh_shape)
        self.block = self.main.add_entry_block()
        self.functions: dict[Any, Any] = {}
        self.calls = collections.Counter[str]()
        self.asked: set[Any] = set()
        self.arguments: list[Slot] = []
        self.whole: Whole | None = None
        self._draws = 0
        self._seed: ir.Value | None = None

    def argument(self, slot: Slot, shape: Any, dtype: torch.dtype) -> ir.Value:
        """Another argument of `main`."""
        self.arguments.append(slot)
        return self.block.add_argument(tensor_type(shape, dtype), ir.Location.unknown())

    def constant(self, node: Node, tensor: torch.Tensor) -> ir.Value:
        """A tensor of a graph: a literal, or one that the user's code holds and may change."""
        tensor = tensor.detach()
        literal = all(user.target in _LITERALS for user in node.users)
        small = (
            tensor.numel() <= self.request.options.constant_limit and tensor.device.type == "cpu"
        )
        if literal and small and not tensor.dtype.is_complex:
            if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
                wide = build.array(tensor.float().tolist(), torch.float32)
                return build.cast(build.reshape(wide, tensor.shape), tensor.dtype)
            return build.reshape(build.array(tensor.tolist(), tensor.dtype), tensor.shape)
        return self.argument(Constant(tensor, literal), tensor.shape, tensor.dtype)

    @property
    def uses_rng(self) -> bool:
        """Whether a random key was asked for, and so `main` takes a seed."""
        return self._seed is not None

    def random_key(self) -> ir.Value:
        """A fresh ui64[2] key: the seed that is an argument, and the number of the draw."""
        if self._seed is None:
            self._seed = self.argument(Seed(), [1], torch.uint64)
        self._draws += 1
        return build.concatenate([self._seed, build.full([1], self._draws, torch.uint64)], 0)

    def finish(self) -> None:
        """Give `main` its type, and let it be what each device of the mesh computes."""
        update_type(self.main)
        self._partition()

    def _partition(self) -> None:
        """Partition the module, if it is known how before XLA does it.

        On other platforms XLA's partitioner is more than Shardy: it overlaps collectives.
        """
        if self.request.mesh is None or not self.target.is_cpu or self.target.embedded:
            return
        self.give_attributes(self.arguments, [])
        with metrics.timed("PartitionTime"):
            unmerge_products(self.module, self.target)
            found = partition(self.module)
        if found is None:
            return
        *_, last = self.block.operations
        arguments, results = self.block.arguments, last.operands
        shapes = tuple(map(build.shape_of, arguments)), tuple(map(build.shape_of, results))
        self.whole = Whole(self.module, *shapes, found.results)
        self.module, self.main = found.module, main_of(found.module)
        self.block, self.target = self.main.entry_block, self.target.of_one_shard()
        call_products(self.main, self.context())

    def call_kernels(self) -> None:
        """Let kernels compute products, which rules of bounded programs have left to XLA."""
        self.target = self.target.later()
        call_products(self.main, self.context())

    def context(
        self,
        out: Any = None,
        operands: tuple[Any, ...] = (),
        *,
        random_key: Callable[[], ir.Value] | None = None,
        inline: Any = None,
    ) -> Context:
        """What a rule may read beside its operands; no node's, and no graph's, unless given."""
        return Context(
            out=out,
            operands=operands,
            target=self.target,
            module=self.module,
            functions=self.functions,
            random_key=random_key or self.random_key,
            calls=self.calls,
            asked=self.asked,
            trains=self.request.trains,
            inline=inline,
        )

    def give_attributes(self, arguments: Sequence[Slot], results: Sequence[Result]) -> None:
        """Give each donated argument its new value for an alias, and in a mesh each its sharding.

        Args:
            arguments: a slot for each argument, but for the last ones that are whole.
            results: a slot for each result.
        """
        aliases = {slot.donated: number for number, slot in enumerate(results)}
        number = ir.IntegerType.get_signless(32)
        attributes = []
        for argument, slot in itertools.zip_longest(self.block.arguments, arguments):
            of_one: dict[str, ir.Attribute] = {}
            if isinstance(slot, Donated):
                of_one["tf.aliasing_output"] = ir.IntegerAttr.get(number, aliases[slot.index])
            if self.request.mesh is not None and self.whole is None:
                axes = slot.axes if isinstance(slot, Input) else ()
                of_one[SHARDING] = sharding_attribute(axes or [()] * build.rank_of(argument))
            attributes.append(ir.DictAttr.get(of_one))
        self.main.arg_attrs = ir.ArrayAttr.get(attributes)
