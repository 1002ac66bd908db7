"""Names of `torch_xla.distributed.xla_backend`, whose groups are torch's."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from xla_dynamo.errors import OptionError


def new_xla_process_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
) -> Any:
    """`torch.distributed.new_group`, with the options that PyTorch/XLA takes.

    Args:
        ranks: the global ranks of the group; all unless given.
        timeout: as for `new_group`.
        backend: likewise.
        pg_options: `{"xla_pg_options": {...}}`. A "mesh" lists groups of ranks, of which `ranks` is
            one. Collectives of a group here run in its own processes, so neither the mesh nor
            "spmd" changes what they compute.

    Raises:
        OptionError: the mesh does not list the ranks.
    """
    options = pg_options.get("xla_pg_options", {}) if isinstance(pg_options, dict) else {}
    mesh = options.get("mesh")
    if mesh is not None and ranks is not None and list(ranks) not in [list(m) for m in mesh]:
        raise OptionError(f"the mesh {mesh} of xla_pg_options does not list {list(ranks)}")
    is_theirs = isinstance(pg_options, dict)
    return dist.new_group(
        ranks, timeout=timeout, backend=backend, pg_options=None if is_theirs else pg_options
    )
