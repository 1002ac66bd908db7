"""Names of `torch_xla.stablehlo`: exported programs as bundles, which are called and written."""

import dataclasses
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

import xla_dynamo.stablehlo as ours
from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.errors import UnsupportedError
from xla_dynamo.jax.arrays import to_numpy
from xla_dynamo.stablehlo.folders import dtype_of
from xla_dynamo.stablehlo.modules import module_of, refined, returning, text_of
from xla_dynamo.stablehlo.signature import INPUT, NEGATIVE_ZERO, SEED, Argument, TensorSpec
from xla_dynamo.torch_private import pytree
from xla_dynamo.torch_xla.forms.stablehlo_bundles import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
    is_bundle,
    read_bundle,
    write_bundle,
)
from xla_dynamo.xla_builder.computations import computation_of_module, module_bytes
from xla_dynamo.xla_builder.user_computation import call, register

_CONSTANT = "constant "  # before the JSON of an output that is no tensor, as its dtype
_METHOD = "forward"


@dataclasses.dataclass
class StableHLOExportOptions:
    """How a program is exported and written.

    Attributes:
        include_human_readable_text: whether functions have a text, too.
        override_tracing_arguments, override_tracing_kwargs: not read: a program has the sizes that
            it was exported with.
        save_weights: whether a folder has the weights.
        inline_all_constant: not read: numbers of the program are constants in it.
        export_weights: whether the bundle has the weights.
        custom_ops_allowed_in_graph: namespaces of operators that become custom calls, of the target
            "namespace.operator.overload".
        export_node_metadata: whether operations have the metadata of the program's nodes as the
            names of their locations, which the text then shows.
        platform, matmul_precision: as of `xla_dynamo.stablehlo.StableHLOExportOptions`.
    """

    include_human_readable_text: bool = True
    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: Mapping[str, Any] | None = None
    save_weights: bool = True
    inline_all_constant: bool = True
    export_weights: bool = True
    custom_ops_allowed_in_graph: Collection[str] = dataclasses.field(default_factory=set)
    export_node_metadata: bool = False
    platform: str | None = None
    matmul_precision: str = "highest"

    def of_ours(self) -> ours.StableHLOExportOptions:
        """What `xla_dynamo.stablehlo` takes of them."""
        return ours.StableHLOExportOptions(
            platform=self.platform,
            custom_ops_allowed_in_graph=self.custom_ops_allowed_in_graph,
            matmul_precision=self.matmul_precision,
            export_node_metadata=self.export_node_metadata,
        )


class StableHLOGraphModule:
    """Functions in StableHLO with their weights, which are called with tensors.

    A call changes no weights. Its results are on the device of its arguments.
    """

    def __init__(
        self, bundle: StableHLOModelBundle, unflatten: Callable[[list[Any]], Any] | None = None
    ) -> None:
        """Take a bundle; `unflatten` nests results where the bundle does not say how."""
        self._unflatten = unflatten
        self._bundle = bundle
        self._name_to_stablehlo = {f.meta.name: f for f in bundle.stablehlo_funcs}
        self._default_method = bundle.stablehlo_funcs[0].meta.name
        self._placed: dict[Any, torch.Tensor] = {}
        self._keys: dict[Any, str] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first function; the arguments are nested as those of the export."""
        return self._evaluate(self._default_method, args, kwargs)

    def evaluate(self, method_name: str, args: Sequence[Any]) -> Any:
        """Call a function.

        Raises:
            KeyError: there is no such function.
            TypeError: an argument has another dtype or shape.
        """
        return self._evaluate(method_name, tuple(args), {})

    def _evaluate(self, method_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        meta = self._name_to_stablehlo[method_name].meta
        leaves = pytree.tree_leaves((args, kwargs))
        leaves = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in leaves]
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        device = next((x.device for x in tensors if x.device.type == "xla"), torch.device("cpu"))
        given = []
        for location, form in zip(meta.input_locations, meta.input_signature, strict=True):
            if location.type_ is VariableType.INPUT_ARG:
                given.append(_checked(leaves[location.position], form, location).to("xla"))
            else:
                given.append(self._weight(location, form))
        made = iter(call(self._key_of(method_name, given), given))
        results = [
            json.loads(form.dtype.removeprefix(_CONSTANT))
            if form.dtype.startswith(_CONSTANT)
            else next(made).to(device)
            for form in meta.output_signature
        ]
        if meta.output_pytree_spec is None:
            return results if self._unflatten is None else self._unflatten(results)
        return pytree.tree_unflatten(results, pytree.treespec_loads(meta.output_pytree_spec))

    def _weight(self, location: InputLocation, form: VariableSignature) -> torch.Tensor:
        """A weight or a further constant, on the 'xla' device."""
        is_named = location.type_ is VariableType.PARAMETER
        key = location.name if is_named else location.position
        if key not in self._placed:
            bundle = self._bundle
            if is_named and location.name not in bundle.state_dict:
                raise KeyError(f"the bundle has no weight {location.name!r}: it was left out")
            array = (
                bundle.state_dict[location.name]
                if is_named
                else bundle.additional_constants[location.position]
            )
            self._placed[key] = _tensor(array, form.dtype).to("xla")
        return self._placed[key]

    def _key_of(self, method_name: str, given: Sequence[torch.Tensor]) -> str:
        """The key of the computation of a function for these shapes."""
        function = self._name_to_stablehlo[method_name]
        shapes = tuple(tuple(x.shape) for x in given)
        key = (method_name, shapes)
        if key not in self._keys:
            module = module_of(function.bytecode)
            if any(form.dynamic_dims for form in function.meta.input_signature):
                module = refined(module, shapes)
            self._keys[key] = register(computation_of_module(method_name, module_bytes(module)))
        return self._keys[key]

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """A function as a portable artifact of StableHLO."""
        return self._name_to_stablehlo[method_name or self._default_method].bytecode

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """A function as text."""
        function = self._name_to_stablehlo[method_name or self._default_method]
        return text_of(module_of(function.bytecode)) if function.text is None else function.text

    def save(
        self,
        directory_path: str | os.PathLike[str],
        options: StableHLOExportOptions | None = None,
    ) -> None:
        """Write the functions and weights to a folder, as PyTorch/XLA does.

        Raises:
            StorageError: it cannot be written.
        """
        options = options or StableHLOExportOptions()
        write_bundle(self._bundle, directory_path, options.save_weights)

    @classmethod
    def load(cls, directory_path: str | os.PathLike[str]) -> "StableHLOGraphModule":
        """Read what `save`, PyTorch/XLA, or `xla_dynamo.stablehlo` wrote.

        Raises:
            StorageError: the folder holds none of them.
        """
        if is_bundle(directory_path) or not os.path.exists(directory_path):
            return cls(read_bundle(directory_path))
        module = ours.StableHLOGraphModule.load(directory_path)
        return cls(_bundle_of(module, None, None), module.signature.output_tree.unflatten)


def _checked(leaf: Any, form: VariableSignature, location: InputLocation) -> torch.Tensor:
    wanted, number = f"{form.dtype}{form.shape}", location.position
    if not isinstance(leaf, torch.Tensor):
        raise TypeError(f"input {number} is {type(leaf).__name__}, and {wanted} is taken")
    sizes = [n for d, n in enumerate(leaf.shape) if d not in form.dynamic_dims]
    expected = [n for d, n in enumerate(form.shape) if d not in form.dynamic_dims]
    if str(leaf.dtype) != f"torch.{form.dtype}" or sizes != expected:
        given = f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        raise TypeError(f"input {number} is {given}, and {wanted} is taken")
    return leaf.detach()


def _tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    """An array as a tensor, by the name of the dtype, since NumPy's files know no bfloat16."""
    shape = array.shape
    data = np.ascontiguousarray(array).view(dtype_of(dtype)).reshape(-1).view(np.uint8)
    return torch.from_numpy(data.copy()).view(getattr(torch, dtype)).reshape(shape)


def exported_program_to_stablehlo(
    exported_model: ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Lower an exported program to StableHLO, to be called or saved.

    Raises:
        see `xla_dynamo.stablehlo.exported_program_to_stablehlo`.
        UnsupportedError: the program returns a size.
    """
    options = options or StableHLOExportOptions()
    made = ours.exported_program_to_stablehlo(exported_model, options.of_ours())
    return StableHLOGraphModule(_bundle_of(made, exported_model, options))


def _bundle_of(
    made: ours.StableHLOGraphModule,
    exported: ExportedProgram | None,
    options: StableHLOExportOptions | None,
) -> StableHLOModelBundle:
    """The bundle of a module of ours, and of the program that it was made of."""
    options = options or StableHLOExportOptions()
    signature = made.signature
    if any(leaf.kind == "size" for leaf in signature.outputs):
        raise UnsupportedError(
            "the program returns a size, and functions of a bundle return tensors: return "
            "torch.tensor of it, or use xla_dynamo.stablehlo"
        )
    results = [leaf.result for leaf in signature.outputs if leaf.result is not None]
    artifact = returning(
        made.get_stablehlo_bytecode(), results, options.custom_ops_allowed_in_graph
    )
    weights: dict[str, Any] = {}
    constants: list[np.ndarray] = []
    locations = []
    for argument in signature.arguments:
        if argument.kind == INPUT:
            locations.append(InputLocation.input_arg(int(argument.name)))
        elif argument.kind in (SEED, NEGATIVE_ZERO) or argument.name.startswith("constant."):
            locations.append(InputLocation.constant(len(constants)))
            constants.append(_constant_of(argument, made.weights))
        else:
            locations.append(InputLocation.parameter(argument.name))
            weights[argument.name] = to_numpy(made.weights[argument.name])
    lowest = {dimension.name: dimension.low for dimension in signature.dimensions}
    outputs = [
        VariableSignature([], _CONSTANT + json.dumps(leaf.value))
        if leaf.spec is None
        else _form(leaf.spec, lowest)
        for leaf in signature.outputs
    ]
    in_spec = out_spec = None
    if exported is not None:
        in_spec = pytree.treespec_dumps(exported.call_spec.in_spec)
        out_spec = pytree.treespec_dumps(exported.call_spec.out_spec)
    meta = StableHLOFunctionMeta(
        name=_METHOD,
        stablehlo_version="0.0.0",  # as PyTorch/XLA writes: the artifact tells
        input_signature=[_form(argument.spec, lowest) for argument in signature.arguments],
        output_signature=outputs,
        input_locations=locations,
        unused_inputs=[],
        input_pytree_spec=in_spec,
        output_pytree_spec=out_spec,
    )
    text = None
    if options.include_human_readable_text:
        text = text_of(module_of(artifact))
    function = StableHLOFunc(meta, artifact, text)
    return StableHLOModelBundle(weights if options.export_weights else {}, constants, [function])


def _constant_of(argument: Argument, weights: Mapping[str, torch.Tensor]) -> np.ndarray:
    """The elements of an argument that is neither an input nor a weight of the model."""
    if argument.kind == SEED:  # the same at each call, as in PyTorch/XLA
        return np.zeros((1,), np.uint64)
    if argument.kind == NEGATIVE_ZERO:
        return np.array(-0.0, np.float32)
    return to_numpy(weights[argument.name])


def _form(spec: TensorSpec, lowest: Mapping[str, int]) -> VariableSignature:
    """The form of a tensor; dynamic sizes are told at the lowest that they may be."""
    dynamic = [d for d, size in enumerate(spec.shape) if size.number is None]
    sizes = [size.at(lowest) for size in spec.shape]
    return VariableSignature(sizes, spec.dtype, dynamic)


def save_as_stablehlo(
    exported_model: ExportedProgram,
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Export a program and write it to a folder, which `StableHLOGraphModule.load` reads."""
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir, options)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Export a model for arguments, and write it to a folder."""
    save_as_stablehlo(torch.export.export(torchmodel, tuple(args)), path, options)


def run_decompositions(exported_model: ExportedProgram) -> ExportedProgram:
    """A program of the operators that are lowered."""
    return exported_model.run_decompositions(dict(decompositions()))
