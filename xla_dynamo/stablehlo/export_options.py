"""The options of an export."""

import dataclasses
from collections.abc import Collection
from typing import Any


@dataclasses.dataclass
class StableHLOExportOptions:
    """How `exported_program_to_stablehlo` writes a program. Its attributes may be set.

    Attributes:
        platform: the PJRT platform whose forms the lowering chooses: "cpu", "cuda" or "tpu". The
            module is plain StableHLO for each, and runs on the others too. None means that of the
            model's tensors.
        custom_ops_allowed_in_graph: namespaces, as "mylib", of operators without a rule that become
            custom calls of the target "mylib.op". Other operators without a rule are errors.
        export_node_metadata: whether the operations of a node have the node's metadata as the name
            of their location: JSON with its stack trace and its modules.
        matmul_precision: of float32 matrix products: "highest", "high" or "medium".
    """

    platform: str | None = None
    custom_ops_allowed_in_graph: Collection[str] = dataclasses.field(default_factory=set)
    matmul_precision: str = "highest"
    export_node_metadata: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option.

        Raises:
            AttributeError: there is no such option.
        """
        known = [field.name for field in dataclasses.fields(self)]
        if name not in known:
            raise AttributeError(
                f"StableHLOExportOptions has no option {name!r}, but {', '.join(known)}; the "
                "arguments that a program was exported with are the exported program's own"
            )
        super().__setattr__(name, value)
