"""Make the target of a program from the platform and the user's options."""

from xla_dynamo.lowerings.target import ONEDNN_PACKED, Target
from xla_dynamo.options import Options
from xla_dynamo.runtime.libraries import libraries_of


def target_of(
    platform: str, options: Options, partitions: int = 1, *, bounded: bool = False
) -> Target:
    """The target of programs for devices of a PJRT platform ("cpu", "cuda", "tpu").

    A program that is divided calls no libraries: XLA's partitioner does not see into the calls, so
    each device would compute the whole of them. Neither does a bounded one: which places of an
    operand a library combines is not known. Weights are packed where they are frozen.
    """
    libraries: frozenset[str] = frozenset()
    if partitions == 1 and not bounded:
        libraries = frozenset(
            name for name in libraries_of(platform) if name.split("_")[0] in options.libraries
        )
        if not options.freeze:
            libraries -= {ONEDNN_PACKED}
    return Target(platform, libraries, partitions, options.matmul_precision, bounded)
