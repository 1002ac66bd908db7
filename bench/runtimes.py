"""OpenVINO and ONNX Runtime as callables with a model's own inputs and outputs.

A model is exported at its first call (`torch.export`), which both runtimes read. They get and give
tensors in a row; what is nested is taken apart before and put together after.

They are called as somebody would who serves with them: in float32, or OpenVINO with its hint of
bfloat16 where the others have autocast, with the benchmark's number of
threads, their default optimizations, sizes that are fixed, and no copy at the border. Inputs are
read where torch has them. OpenVINO writes into new tensors of torch; ONNX Runtime hands over the
memory that it allocated. So no later call changes a result, as no other backend's does either.
"""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

Tensors = Sequence[torch.Tensor]
Run = Callable[[Tensors], Tensors]
# What a runtime makes of an exported program, the example tensors and the dtype to compute in.
Runtime = Callable[[torch.export.ExportedProgram, Tensors, torch.dtype], Run]
_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}


class _Flat(torch.nn.Module):
    """A model whose inputs and outputs are tensors in a row."""

    def __init__(self, model: torch.nn.Module, unflatten: Callable[[Tensors], Any]) -> None:
        super().__init__()
        self.model = model
        self._unflatten = unflatten
        # No attribute of the module changes while it is exported: torch.export refuses that.
        self._outputs = _Outputs()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments, keywords = self._unflatten(tensors)
        return self._outputs.flatten(self.model(*arguments, **keywords), tensors)


class _Outputs:
    """How a model's outputs are nested, and what of them is not computed: noted at the export."""

    def flatten(self, result: Any, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        leaves, self._spec = pytree.tree_flatten(result)
        places = {id(tensor): place for place, tensor in enumerate(inputs)}
        computed: dict[int, torch.Tensor] = {}
        # For each leaf, what gives it of the runtime's results, the inputs and the constants.
        self._sources: list[Callable[[Tensors, Tensors], Any]] = []
        for leaf in leaves:
            if id(leaf) in places:
                self._sources.append(_input(places[id(leaf)]))
            elif isinstance(leaf, torch.Tensor):
                computed.setdefault(id(leaf), leaf)
                self._sources.append(_result(list(computed).index(id(leaf))))
            else:
                self._sources.append(_constant(leaf))
        self._count = len(computed)
        return tuple(computed.values())

    def unflatten(self, results: Tensors, inputs: Tensors) -> Any:
        """The model's own result of what the runtime gives.

        Raises:
            RuntimeError: the runtime gives another number of tensors than the model.
        """
        if len(results) != self._count:
            raise RuntimeError(
                f"the model computes {self._count} tensors, the runtime {len(results)}"
            )
        leaves = [source(results, inputs) for source in self._sources]
        return pytree.tree_unflatten(leaves, self._spec)


def _input(place: int) -> Callable[[Tensors, Tensors], torch.Tensor]:
    return lambda results, inputs: inputs[place]


def _result(place: int) -> Callable[[Tensors, Tensors], torch.Tensor]:
    return lambda results, inputs: results[place]


def _constant(leaf: Any) -> Callable[[Tensors, Tensors], Any]:
    if leaf is None or isinstance(leaf, bool | int | float | str):
        return lambda results, inputs: leaf
    raise TypeError(
        f"the model returns a {type(leaf).__name__}, which is no tensor, number or text"
    )


class Exported:
    """A model that a runtime runs: exported at the first call, for the sizes of that call.

    The runtime keeps the weights as they were then.
    """

    def __init__(
        self,
        name: str,
        model: torch.nn.Module,
        runtime: Runtime,
        autocasts: Sequence[torch.dtype] = (),
    ) -> None:
        """Take a model and a runtime, and which dtypes of autocast that one takes as a hint."""
        self._name, self._model, self._runtime = name, model, runtime
        self._autocasts = autocasts
        self._key: Any = None
        self._run: Run | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The model's result.

        Raises:
            NotImplementedError: gradients are asked for, or an autocast that it has not.
            TypeError: the model returns what is neither a tensor nor a number or text.
            ValueError: the sizes, dtypes or constants are not those of the first call.
        """
        if torch.is_grad_enabled():
            raise NotImplementedError(
                f"{self._name} runs inference alone: leave it out of training, or call it under "
                "torch.no_grad()"
            )
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        if dtype is not None and dtype not in self._autocasts:
            raise NotImplementedError(f"{self._name} has no autocast to {dtype} here")
        leaves, spec = pytree.tree_flatten((arguments, keywords))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        key = (spec, [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for x in leaves])
        if self._run is None:
            with torch.autocast("cpu", enabled=False):
                self._key, self._run = key, self._export(leaves, spec, tensors, dtype)
        if key != self._key:
            raise ValueError(f"{self._name} was made for {self._key[1]}, not for {key[1]}")
        return self._flat._outputs.unflatten(self._run(tensors), tensors)

    def _export(
        self, leaves: list[Any], spec: pytree.TreeSpec, tensors: Tensors, dtype: torch.dtype | None
    ) -> Run:
        def unflatten(given: Tensors) -> Any:
            rest = iter(given)
            filled = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
            return pytree.tree_unflatten(filled, spec)

        self._flat = _Flat(self._model, unflatten)
        program = torch.export.export(self._flat, tuple(tensors), strict=False)
        return self._runtime(program, tensors, dtype or torch.float32)


def _places(program: torch.export.ExportedProgram, read: Sequence[set[str]]) -> list[int]:
    """Which of the program's inputs each input of a runtime is, told by its names.

    A runtime may leave out unused inputs. ONNX calls an input that is also an output otherwise;
    where there is such a name, all inputs are there, in order.

    Raises:
        RuntimeError: neither names nor order tell.
    """
    places = {name: place for place, name in enumerate(program.graph_signature.user_inputs)}
    found = [next((places[n] for n in names if n in places), None) for names in read]
    known = [place for place in found if place is not None]
    if len(known) == len(read):
        return known
    if len(read) == len(places):
        return list(range(len(read)))
    raise RuntimeError(f"the program has the inputs {list(places)}, the runtime {list(read)}")


def openvino(program: torch.export.ExportedProgram, tensors: Tensors, dtype: torch.dtype) -> Run:
    """OpenVINO's CPU plugin, with the hint of a precision."""
    with _telling_nobody():
        import openvino as ov

        model = ov.convert_model(program)
    places = _places(program, [port.names for port in model.inputs])
    # Its conversion leaves every size dynamic, though the exported program has fixed ones.
    shapes = [ov.PartialShape(list(tensors[place].shape)) for place in places]
    model.reshape(dict(zip(model.inputs, shapes, strict=True)))
    settings = {
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = ov.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    results = _results(program)
    copied = _passed_on(compiled)
    written = [index for index in range(len(results)) if index not in copied]

    def shared(tensor: torch.Tensor) -> Any:
        return ov.Tensor(tensor.numpy(), shared_memory=True)

    def run(tensors: Tensors) -> Tensors:
        held = [tensors[place].contiguous() for place in places]
        for index, tensor in enumerate(held):
            request.set_input_tensor(index, shared(tensor))
        made = {i: torch.empty(results[i][0], dtype=results[i][1]) for i in written}
        for index, tensor in made.items():
            request.set_output_tensor(index, shared(tensor))
        request.infer()
        for index in copied:
            made[index] = torch.from_numpy(request.get_output_tensor(index).data.copy())
        return [made[index] for index in range(len(results))]

    return run


def _passed_on(compiled: Any) -> set[int]:
    """The outputs that are inputs, for OpenVINO 2026.4 writes such an output's memory to the input.

    So they are copied, and it gets no memory for them.
    """
    layers = {
        result.get_friendly_name(): result.input_value(0).get_node().get_rt_info()["layerType"]
        for result in compiled.get_runtime_model().get_results()
    }
    names = [port.get_node().get_friendly_name() for port in compiled.outputs]
    return {index for index, name in enumerate(names) if layers[name] == "Input"}


@contextlib.contextmanager
def _telling_nobody() -> Iterator[None]:
    """OpenVINO's Python package reports its use to its makers, except in continuous integration."""
    with mock.patch.dict(os.environ, {"CI": "true"}):
        yield


def _results(program: torch.export.ExportedProgram) -> list[tuple[torch.Size, torch.dtype]]:
    """Shapes and dtypes of the tensors that a program returns."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    named = {node.name: node.meta["val"] for node in output.all_input_nodes}
    values = [named[name] for name in program.graph_signature.user_outputs]
    return [(value.shape, value.dtype) for value in values]


def onnxruntime(program: torch.export.ExportedProgram, tensors: Tensors, _: torch.dtype) -> Run:
    """ONNX Runtime's CPU provider, in float32."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        # As a file: a message of protobuf has at most 2 GB.
        path = pathlib.Path(folder) / "model.onnx"
        exported = torch.onnx.export(program, tuple(tensors), dynamo=True, verbose=False)
        assert exported is not None
        exported.save(path, external_data=True)
        del exported
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    places = _places(program, [{name} for name in names])
    dtypes = [dtype for _, dtype in _results(program)]
    binding = session.io_binding()

    def run(tensors: Tensors) -> Tensors:
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        held = [tensors[place].contiguous() for place in places]
        for name, tensor in zip(names, held, strict=True):
            binding.bind_cpu_input(name, tensor.numpy())
        for output in session.get_outputs():
            binding.bind_output(output.name)
        session.run_with_iobinding(binding)
        values = [torch.from_dlpack(value) for value in binding.get_outputs()]
        # Its DLPack gives bools as bytes.
        return [v.view(dtype) for v, dtype in zip(values, dtypes, strict=True)]

    return run
