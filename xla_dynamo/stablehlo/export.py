"""An `ExportedProgram` of torch to a `StableHLOGraphModule`: the weights apart, one module."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)

from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.decompositions.whole_resampling import resampling_is_whole
from xla_dynamo.errors import OptionError, UnsupportedError, UnsupportedOperator
from xla_dynamo.graphs.fallback import eager_reason
from xla_dynamo.graphs.preparation import prepare
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.signatures import LOCATION, signature
from xla_dynamo.graphs.sizes import is_symbolic, static_values
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.builders.dtypes import dtype_name
from xla_dynamo.options import Options
from xla_dynamo.programs.lower_exported import lower_exported
from xla_dynamo.programs.program import Constant, Input, NegativeZero, Program, Seed
from xla_dynamo.programs.targets import target_of
from xla_dynamo.stablehlo.dynamic_dimensions import DynamicDimensions
from xla_dynamo.stablehlo.export_options import StableHLOExportOptions
from xla_dynamo.stablehlo.graph_module import StableHLOGraphModule
from xla_dynamo.stablehlo.modules import artifact_of, custom_calls
from xla_dynamo.stablehlo.signature import (
    INPUT,
    NEGATIVE_ZERO,
    SEED,
    WEIGHT,
    Argument,
    Change,
    Leaf,
    Signature,
    Size,
    TensorSpec,
)
from xla_dynamo.stablehlo.torch_trees import tree_of
from xla_dynamo.torch_patches import exporting_alone
from xla_dynamo.torch_private import GraphModuleSerializer

Node: TypeAlias = torch.fx.Node
_PLATFORMS = ("cpu", "cuda", "tpu")
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_OUTPUTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_SCALAR = TensorSpec((), "float32")
_SEED = TensorSpec((Size.of(1),), "uint64")


def exported_program_to_stablehlo(
    exported_program: ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Lower an exported program to StableHLO, to be called, or saved and called without torch.

    The name and the meaning are those of `torch_xla.stablehlo.exported_program_to_stablehlo`.

    Args:
        exported_program: what `torch.export.export` returned.
        options: the options.

    Raises:
        OptionError: an option has no such value.
        UnsupportedOperator: an operator has no rule; the message names it and its line.
        UnsupportedError: the program has dynamic sizes in a way that StableHLO is not written for,
            or an input that is no tensor or constant.
    """
    options = options or StableHLOExportOptions()
    if options.platform not in (None, *_PLATFORMS):
        raise OptionError(f"platform must be one of {_PLATFORMS}, not {options.platform!r}")
    return _Export(exported_program, options).run()


class _Export:
    """An exported program on its way."""

    def __init__(self, given: ExportedProgram, options: StableHLOExportOptions) -> None:
        with exporting_alone(), resampling_is_whole():
            self.program = given.run_decompositions(dict(decompositions()))
        self.gm = self.program.graph_module
        if options.export_node_metadata:
            _name_locations_by_metadata(self.program)
        self.options = options
        self.placeholders = self.gm.graph.find_nodes(op="placeholder")
        self.platform = options.platform or self._platform()
        self.specs: list[InputSpec] = list(self.program.graph_signature.input_specs)
        self.leaves = [i for i, s in enumerate(self.specs) if s.kind is InputKind.USER_INPUT]
        self.weights: dict[str, torch.Tensor] = {}
        self.dynamic: DynamicDimensions | None = None
        self._names: dict[Any, str] = {}

    def _platform(self) -> str:
        fakes = [node.meta["val"] for node in self.placeholders]
        devices = {fake.device.type for fake in fakes if isinstance(fake, torch.Tensor)}
        return "cuda" if "cuda" in devices else "cpu"

    def run(self) -> StableHLOGraphModule:
        """Lower the graph, and describe how it is called."""
        self.refuse_dynamic_numbers()
        prepare(self.gm)
        _drop_checks_of_metadata(self.gm)
        self.refuse_what_only_torch_runs()
        static = [i for i, s in enumerate(self.specs) if s.kind in _WEIGHTS]
        lowering = Options(
            fallback="error", libraries=(), matmul_precision=self.options.matmul_precision
        )
        request = Request(lowering, "export", static_inputs=frozenset(static))
        is_dynamic = is_symbolic(self.gm)
        # Where sizes are dynamic, operations must be the same at all of them.
        target = target_of(self.platform, lowering, bounded=is_dynamic)
        custom_ops = frozenset(self.options.custom_ops_allowed_in_graph)
        if is_dynamic:
            self.dynamic = DynamicDimensions(self.gm, self.program.range_constraints)
            program = self.dynamic.lower(target, request, custom_ops)
        else:
            values = static_values(self.gm)
            program = lower_exported(self.gm, values, target, request, custom_ops)
        described = self.signature_of(program)
        return StableHLOGraphModule(described, artifact_of(program.module), self.weights)

    def refuse_dynamic_numbers(self) -> None:
        """Raise UnsupportedError for an input that is no tensor and no constant."""
        for index in self.leaves:
            argument = self.specs[index].arg
            if not isinstance(argument, TensorArgument | ConstantArgument):
                raise UnsupportedError(
                    f"the input {argument.name!r} is a {type(argument).__name__}, and an exported "
                    "program takes tensors and constants: pass it as a tensor"
                )

    def refuse_what_only_torch_runs(self) -> None:
        """Raise UnsupportedOperator for a node that would run in eager torch under torch.compile.

        Operators without a rule are left to the lowering, which may make custom calls of them.
        """
        options = Options()
        for node in self.gm.graph.nodes:
            reason = eager_reason(node, options)
            if reason is not None and reason != "no lowering":
                values = static_values(self.gm)
                raise UnsupportedOperator(
                    f"{signature(node, values)} cannot be exported: {reason}{describe(node)}"
                )

    def signature_of(self, program: Program) -> Signature:
        """The signature of the program."""
        call = self.program.call_spec
        return Signature(
            platform=self.platform,
            dimensions=self.dynamic.dimensions if self.dynamic is not None else (),
            arguments=tuple(self.arguments(program)),
            inputs=tuple(self.input(index) for index in self.leaves),
            outputs=tuple(self.outputs(program)),
            changes=tuple(self.changes(program)),
            results=self.results(program),
            input_tree=tree_of(call.in_spec),
            output_tree=tree_of(call.out_spec),
            custom_calls=custom_calls(program.module),
        )

    # --- inputs --------------------------------------------------------------------------------

    def arguments(self, program: Program) -> list[Argument]:
        """The arguments of the module, and the weights behind them."""
        found, constants = [], program.of(Constant)
        for slot in program.arguments:
            if isinstance(slot, Input):
                found.append(self.argument(slot.index))
            elif isinstance(slot, Constant):
                name = self.stored(f"constant.{constants.index(slot)}", slot.tensor)
                found.append(Argument(WEIGHT, name, _fixed(slot.tensor)))
            elif isinstance(slot, Seed):
                found.append(Argument(SEED, "", _SEED))
            else:
                assert isinstance(slot, NegativeZero)
                found.append(Argument(NEGATIVE_ZERO, "", _SCALAR))
        return found

    def argument(self, index: int) -> Argument:
        """The argument that is an input of the graph: the user's, or a weight."""
        spec = self.spec_of(self.placeholders[index])
        if self.specs[index].kind is InputKind.USER_INPUT:
            return Argument(INPUT, str(self.leaves.index(index)), spec)
        return Argument(WEIGHT, self.weight(self.specs[index]), spec)

    def weight(self, spec: InputSpec) -> str:
        """The name under which a parameter, a buffer or a constant is stored."""
        assert spec.target is not None
        tensors: Mapping[str, Any] = self.program.state_dict
        if spec.target not in tensors:
            tensors = self.program.constants
        return self.stored(spec.target, tensors[spec.target])

    def stored(self, name: str, tensor: torch.Tensor) -> str:
        """Store a tensor under a name; one that is stored already keeps its first name."""
        tensor = tensor.detach()
        address = tensor.data_ptr()
        bits = (tensor.is_conj(), tensor.is_neg())  # which the elements in memory do not show
        key = (address, tensor.shape, tensor.stride(), tensor.dtype, bits) if address else name
        if key not in self._names:
            self._names[key] = name
            self.weights[name] = tensor.resolve_conj().resolve_neg()
        return self._names[key]

    def input(self, index: int) -> Leaf:
        """A leaf of the user's inputs."""
        argument = self.specs[index].arg
        if isinstance(argument, ConstantArgument):
            return Leaf("constant", value=_constant(argument.value, f"input {argument.name!r}"))
        return Leaf("tensor", self.spec_of(self.placeholders[index]))

    def spec_of(self, node: Node) -> TensorSpec:
        """The shape and the dtype of a node's tensor."""
        fake = node.meta["val"]
        if self.dynamic is None:
            return _fixed(fake)
        shape = tuple(self.dynamic.size(node, n) for n in fake.shape)
        return TensorSpec(shape, dtype_name(fake.dtype))

    # --- results -------------------------------------------------------------------------------

    def outputs(self, program: Program) -> list[Leaf]:
        """The leaves of what a call returns."""
        found = []
        nodes: Any = self.gm.graph.output_node().args[0]
        specs = self.program.graph_signature.output_specs
        for node, spec, output in zip(nodes, specs, program.outputs, strict=True):
            if spec.kind not in _OUTPUTS:
                continue
            fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            if isinstance(fake, torch.SymInt) and self.dynamic is not None:
                found.append(Leaf("size", size=self.dynamic.size(node, fake)))
            elif output.result is None:
                found.append(Leaf("constant", value=_constant(output.number, "an output")))
            else:
                found.append(Leaf("tensor", self.spec_of(node), output.result))
        return found

    def results(self, program: Program) -> tuple[TensorSpec, ...]:
        """The shapes and dtypes of the module's results."""
        nodes: Any = self.gm.graph.output_node().args[0]
        known = {o.result: n for n, o in zip(nodes, program.outputs, strict=True)}
        return tuple(self.spec_of(known[number]) for number in range(len(program.results)))

    def changes(self, program: Program) -> list[Change]:
        """The weights and inputs that take new values."""
        found = []
        by_name = {spec.arg.name: i for i, spec in enumerate(self.specs)}
        specs = self.program.graph_signature.output_specs
        for spec, output in zip(specs, program.outputs, strict=True):
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                (given,) = (s for s in self.specs if s.kind in _WEIGHTS and s.target == spec.target)
                name = self.weight(given)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                name = str(self.leaves.index(by_name[spec.target]))
            else:
                if spec.kind not in (*_OUTPUTS, OutputKind.TOKEN):
                    raise UnsupportedError(
                        f"an output of kind {spec.kind.name} cannot be exported: export a program "
                        "for inference"
                    )
                continue
            assert output.result is not None
            kind = INPUT if spec.kind is OutputKind.USER_INPUT_MUTATION else WEIGHT
            found.append(Change(kind, name, output.result))
        return found


def _constant(value: Any, what: str) -> Any:
    if not isinstance(value, bool | int | float | str | None):
        raise UnsupportedError(
            f"{what} is {type(value).__name__} {value!r}, which a folder cannot hold: return "
            "tensors, numbers, text and None"
        )
    return value


def _name_locations_by_metadata(program: ExportedProgram) -> None:
    """Let each node's operations have the node's metadata as the name of their location."""
    serializer = GraphModuleSerializer(program.graph_signature, program.module_call_graph)
    for node in program.graph_module.graph.nodes:
        if node.op == "call_function":
            node.meta[LOCATION] = json.dumps(serializer.serialize_metadata(node))


def _fixed(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(map(Size.of, tensor.shape)), dtype_name(tensor.dtype))


def _drop_checks_of_metadata(gm: torch.fx.GraphModule) -> None:
    """Remove checks that a tensor has its traced dtype and device: the signature says so."""
    op = torch.ops.aten._assert_tensor_metadata.default
    for node in gm.graph.find_nodes(op="call_function", target=op):
        gm.graph.erase_node(node)
