"""The MLIR module under construction, and the arguments that nodes add to its main function."""

from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.options import Options
from xla_dynamo.programs.program import Constant
from xla_dynamo.runtime.libraries import libraries_of

Node: TypeAlias = torch.fx.Node
# What stands between a literal, as in torch.tensor([1, 2]), and those who use it.
_LITERALS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)


class ModuleBuilder:
    """What a graph and the graphs inside it write into.

    Attributes:
        platform: the PJRT platform that the module is for.
        options: what the user asked for.
        trains: whether the graph has a backward, or is one.
        libraries: the libraries, by name, that the module may call.
        module: the module.
        main: its public function.
        block: the body of `main`.
        functions: inlined functions by their key (see `from_jax`).
        calls: the kernels of torch that it calls.
        constants: the tensors behind the arguments that `constant` added.
        draws: how many random keys were asked for.
    """

    def __init__(self, platform: str, options: Options, trains: bool) -> None:
        """Make a module whose `main` has neither arguments nor results yet."""
        self.platform, self.options, self.trains = platform, options, trains
        self.libraries = frozenset(
            name for name in libraries_of(platform) if name.split("_")[0] in options.libraries
        )
        self.module = ir.Module.create()
        with ir.InsertionPoint(self.module.body):
            self.main = func.FuncOp("main", ([], []), visibility="public")
        self.block = self.main.add_entry_block()
        self.functions: dict[Any, Any] = {}
        self.calls: set[str] = set()
        self.constants: list[Constant] = []
        self.draws = 0
        self._seed: ir.Value | None = None

    def argument(self, shape: Any, dtype: torch.dtype) -> ir.Value:
        """Another argument of `main`."""
        return self.block.add_argument(tensor_type(shape, dtype), ir.Location.unknown())

    def constant(self, node: Node, tensor: torch.Tensor) -> ir.Value:
        """A tensor of a graph: a literal, or one that the user's code holds and may change."""
        tensor = tensor.detach()
        literal = all(user.target in _LITERALS for user in node.users)
        small = tensor.numel() <= self.options.constant_limit and tensor.device.type == "cpu"
        if literal and small and not tensor.dtype.is_complex:
            if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
                wide = build.array(tensor.float().tolist(), torch.float32)
                return build.cast(build.reshape(wide, tensor.shape), tensor.dtype)
            return build.reshape(build.array(tensor.tolist(), tensor.dtype), tensor.shape)
        return self.constant_argument(tensor, literal)

    def constant_argument(self, tensor: torch.Tensor, literal: bool = True) -> ir.Value:
        """A tensor that is the same at each call; `literal` if so are its numbers."""
        self.constants.append(Constant(tensor, literal))
        return self.argument(tensor.shape, tensor.dtype)

    def drop_constant(self, argument: ir.Value) -> None:
        """Take the last constant away again, which nobody reads."""
        del self.constants[-1]
        self.block.erase_argument(argument.arg_number)

    def random_key(self) -> ir.Value:
        """A fresh ui64[2] key: the seed that is an argument, and the number of the draw."""
        if self._seed is None:
            self._seed = self.argument([1], torch.uint64)
        self.draws += 1
        return build.concatenate([self._seed, build.full([1], self.draws, torch.uint64)], 0)

    def finish(self) -> None:
        """Give `main` its type, and the seed its place behind all other arguments."""
        if self._seed is not None:
            number = self._seed.arg_number
            behind = self.argument([1], torch.uint64)
            self._seed.replace_all_uses_with(behind)
            self.block.erase_argument(number)
        *_, last = self.block.operations
        types = ir.FunctionType.get(
            [a.type for a in self.block.arguments], [r.type for r in last.operands]
        )
        self.main.attributes["function_type"] = ir.TypeAttr.get(types)
