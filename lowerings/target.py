"""The target of a program, by which rules and passes choose the operations that they write."""

import dataclasses

# The names under which `Target.libraries` has oneDNN's kernels for float32, those for bfloat16,
# those that run as plans, those of them with packed weights, torch's, and those of them that run as
# plans; and the libraries of users' options that they belong to.
ONEDNN, ONEDNN_BFLOAT16, ONEDNN_PACKED = "onednn", "onednn_bfloat16", "onednn_packed"
ONEDNN_PLANS, TORCH_PLANS = "onednn_plans", "torch_plans"
TORCH = "torch"
LIBRARIES = {
    "onednn": frozenset({ONEDNN, ONEDNN_BFLOAT16, ONEDNN_PACKED, ONEDNN_PLANS}),
    "torch": frozenset({TORCH, TORCH_PLANS}),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Where a program will run, and what it may call there.

    Attributes:
        platform: the PJRT platform: "cpu", "cuda", "tpu".
        libraries: the libraries, by name, that programs may call there.
        partitions: over how many devices XLA partitions the program; 1 where it runs as it is.
        called_later: the libraries that a program may call when it is partitioned already
            (`lowerings.partitioning`), or right at all sizes up to its own (`lowerings.bounded`).
        over_processes: whether its devices are those of several processes.
        replicas: the ranks of the processes that run the program beside each other, each on its own
            values; () where this process runs it alone.
        matmul_precision: of float32 matrix products, in the words of
            torch.set_float32_matmul_precision.
        bounded: whether the program is for all sizes up to its own (see `lowerings.bounded`): its
            operations must be the same at all of them.
        embedded: whether the program becomes part of another, which JAX compiles by its own options
            and may shard over devices.
        tunes: whether the forms of calls are measured on this machine where nobody has yet.
    """

    platform: str
    libraries: frozenset[str] = frozenset()
    partitions: int = 1
    matmul_precision: str = "highest"
    bounded: bool = False
    embedded: bool = False
    tunes: bool = False
    called_later: frozenset[str] = frozenset()
    over_processes: bool = False
    replicas: tuple[int, ...] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether the platform is XLA:CPU."""
        return self.platform == "cpu"

    def of_one_shard(self) -> "Target":
        """The target of what each device computes of a program that is partitioned already."""
        everywhere = tuple(range(self.partitions))
        return dataclasses.replace(self.later(), partitions=1, replicas=everywhere)

    def later(self) -> "Target":
        """The target of a program that is partitioned or bounded already."""
        return dataclasses.replace(self, libraries=self.called_later, called_later=frozenset())

    @property
    def donates(self) -> bool:
        """Whether a program writes new values into its inputs' memory: not in shards of them."""
        return self.platform in ("cpu", "cuda") and self.partitions == 1
