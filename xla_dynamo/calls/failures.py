"""Errors of running programs."""

from xla_dynamo.errors import ExecutionError
from xla_dynamo.programs.program import Program


def failure(error: Exception, program: Program) -> ExecutionError:
    """An ExecutionError that names the line behind the graph's largest tensor."""
    where = ""
    if program.largest is not None:
        size, line = program.largest
        where = f"\n  The largest tensor of this graph ({size:,} bytes) is made{line}"
    return ExecutionError(f"PJRT failed while running a compiled graph: {error}{where}")
