"""`torch_xla._XLAC.lowering.LoweringContext`: the HLO that would compute tensors."""

from collections.abc import Sequence

import torch

from xla_dynamo.lazy.contents import cell_of, new_tensor
from xla_dynamo.lazy.pending_graphs import PendingGraph, pending_graph
from xla_dynamo.torch_xla.forms.graph_texts import computation_of
from xla_dynamo.torch_xla.forms.hlo_protos import module_as_json, module_as_text


class LoweringContext:
    """The HLO that would compute tensors, and what its parameters are. Nothing is executed."""

    def __init__(self, name: str = "PyLoweringContext") -> None:
        """Take the name of the module."""
        self._name = name
        self._graph: PendingGraph | None = None
        self._parameters: list[torch.Tensor] = []
        self._proto = b""

    def build(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lower the graph whose outputs are tensors of the 'xla' device."""
        graph = self._graph = pending_graph(tensors)
        # As tensors that live, so that no program writes into their memory.
        self._parameters = [new_tensor(value) for value in graph.values]
        computation = computation_of(graph, self._name)
        self._proto = bytes(computation.hlo().as_serialized_hlo_module_proto())

    def hlo(self) -> bytes:
        """The serialized HloModuleProto."""
        self._built()
        return self._proto

    def hlo_text(self) -> str:
        """The HloModuleProto in protobuf's text format, without literals."""
        self._built()
        return module_as_text(self._proto)

    def hlo_json(self) -> str:
        """The HloModuleProto as JSON, without literals."""
        self._built()
        return module_as_json(self._proto)

    def parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """The elements of each parameter, by its number, on the CPU."""
        graph = self._built()
        values = [tensor.cpu() for tensor in self._parameters]
        return dict(enumerate([*values, *graph.others]))

    def device_parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """Tensors of the device for the parameters that are its tensors, without a transfer."""
        self._built()
        return dict(enumerate(self._parameters))

    def tensor_parameter_id(self, tensor: torch.Tensor) -> int:
        """The number of the parameter that a tensor is, or -1."""
        value = cell_of(tensor).value
        values = self._built().values
        return next((i for i, known in enumerate(values) if known is value), -1)

    def set_name_string(self, name: str) -> None:
        """Give what is built from now on another name."""
        self._name = name

    def get_name_string(self) -> str:
        """The name of the module."""
        return self._name

    def _built(self) -> PendingGraph:
        if self._graph is None:
            raise RuntimeError("the context has no graph yet: call build([tensors])")
        return self._graph
