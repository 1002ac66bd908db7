"""Make the target of a program from the platform and the user's options."""

import dataclasses

from jax.extend.mlir.dialects import func

from xla_dynamo.kernels import product_choices
from xla_dynamo.kernels.libraries import can_execute_packed, libraries_of
from xla_dynamo.lowerings.builders.functions import operations_of
from xla_dynamo.lowerings.passes.pack_weights import is_packable
from xla_dynamo.lowerings.target import (
    LIBRARIES,
    ONEDNN_PACKED,
    ONEDNN_PLANS,
    TORCH_PLANS,
    Target,
)
from xla_dynamo.options import Options

PLANS = frozenset({ONEDNN_PACKED, ONEDNN_PLANS, TORCH_PLANS})


def target_of(
    platform: str,
    options: Options,
    partitions: int = 1,
    *,
    bounded: bool = False,
    shares_memory: bool = True,
    own: int = 1,
    replicas: tuple[int, ...] = (),
) -> Target:
    """The target of programs for devices of a PJRT platform ("cpu", "cuda", "tpu").

    A program that is to be partitioned calls no libraries: no partitioner sees into the calls, so
    each device would compute the whole of them. The shards of one may, where this process has a
    single one of its devices, `own`: several would run one plan at once. Nor does one that is to be
    bounded: which places of an operand a library combines is not known. Its products may be calls
    when it is. Weights are packed where they are frozen. Plans need handles in torch's memory,
    which a placement may not share (`Placement.shares_memory`).
    """
    libraries: frozenset[str] = frozenset()
    is_changed = bounded or partitions > 1  # before it calls any
    if own == 1:
        allowed = frozenset().union(*(LIBRARIES[name] for name in options.libraries))
        libraries = libraries_of(platform) & allowed
        if not options.freeze or is_changed:
            libraries -= {ONEDNN_PACKED}
        if not shares_memory:
            libraries -= PLANS
    tunes = options.tune and ONEDNN_PLANS in libraries
    at_once, later = (frozenset(), libraries) if is_changed else (libraries, frozenset())
    return Target(
        platform,
        at_once,
        partitions,
        options.matmul_precision,
        bounded,
        tunes=tunes,
        called_later=later,
        over_processes=own < partitions or bool(replicas),
        replicas=replicas,
    )


def choices_of(target: Target) -> str:
    """A text that is another one where forms of calls may be chosen in another way."""
    called = target.libraries | target.called_later
    return product_choices.fingerprint() if ONEDNN_PLANS in called else ""


def target_of_plans(target: Target, main: func.FuncOp) -> Target:
    """The target of a function whose calls are about to become plans, if these can be executed.

    Whether they can is asked only if there is such a call.
    """
    planned = PLANS & target.libraries and any(map(is_packable, operations_of(main)))
    if not planned or can_execute_packed():
        return target
    return dataclasses.replace(target, libraries=target.libraries - PLANS)
