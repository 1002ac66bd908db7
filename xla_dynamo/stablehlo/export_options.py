"""The options of an export."""

import dataclasses
from collections.abc import Collection


@dataclasses.dataclass(frozen=True, slots=True)
class StableHLOExportOptions:
    """How `exported_program_to_stablehlo` writes a program.

    Attributes:
        platform: the PJRT platform whose forms the lowering chooses: "cpu", "cuda" or "tpu". The
            module is plain StableHLO for each, and runs on the others too. None means that of the
            model's tensors.
        custom_ops_allowed_in_graph: namespaces, as "mylib", of operators without a rule that become
            custom calls of the target "mylib.op". Other operators without a rule are errors.
        matmul_precision: of float32 matrix products: "highest", "high" or "medium".
    """

    platform: str | None = None
    custom_ops_allowed_in_graph: Collection[str] = ()
    matmul_precision: str = "highest"
