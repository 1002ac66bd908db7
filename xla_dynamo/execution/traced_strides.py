"""Give tensors the strides that a graph was traced with, which torch's operators count on."""

import functools
from typing import Any

from xla_dynamo.calls.calls import Call
from xla_dynamo.programs.program import Strides


def with_strides(tensors: list[Any], strides: Strides) -> list[Any]:
    """Give some of these tensors, by number, other strides; returns the list."""
    for index, stride in strides.items():
        given = tensors[index]
        tensors[index] = given.new_empty_strided(given.shape, stride).copy_(given)
    return tensors


def taking_strides(strides: Strides, call: Call) -> Call:
    """A call that first gives these strides to inputs, by number."""

    @functools.wraps(call)
    def restride(args: list[Any]) -> list[Any]:
        return call(with_strides(args, strides))

    return restride if strides else call
