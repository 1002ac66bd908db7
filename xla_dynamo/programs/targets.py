"""Make the target of a program from the platform and the user's options."""

from xla_dynamo.lowerings.target import Target
from xla_dynamo.options import Options
from xla_dynamo.runtime.libraries import libraries_of


def target_of(platform: str, options: Options) -> Target:
    """The target of programs for one device of a PJRT platform ("cpu", "cuda", "tpu")."""
    libraries = frozenset(
        name for name in libraries_of(platform) if name.split("_")[0] in options.libraries
    )
    return Target(platform, libraries, matmul_precision=options.matmul_precision)
