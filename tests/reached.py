"""A pytest plugin that fails a run of the suite which leaves some of the package untried.

`python -m pytest -p tests.reached ...`, as `make test` does. Tried must be: each rule of the
lowering table, by a graph that it lowers; each pass, by a module that it changes; each class of
errors, by one that is raised. What only a process of a test's own reaches does not count.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from xla_dynamo import errors
from xla_dynamo.lowerings import TABLE, passes
from xla_dynamo.programs import lower_nodes
from xla_dynamo.torch_private import OpOverload

# What cannot be reached here, and why.
EXCUSED: dict[str, str] = {}


class Reached:
    """What the tests of this process have reached, and in the main one those of all processes."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.expected = expected()  # before tests add rules and classes of their own

    def watch(self) -> None:
        """Put watchers in the places where rules are found, passes run and errors are made."""
        find_rule, init = lower_nodes.find_rule, errors.XlaDynamoError.__init__

        def found(op: OpOverload) -> Any:
            self.names.add(str(op))
            return find_rule(op)

        def made(error: Exception, *args: Any) -> None:
            self.names.add(type(error).__name__)
            init(error, *args)

        lower_nodes.find_rule = found
        errors.XlaDynamoError.__init__ = made  # type: ignore[method-assign]
        passes.PASSES = tuple(
            dataclasses.replace(p, rewrite=self._watched(p.rewrite)) for p in passes.PASSES
        )

    def _watched(self, rewrite: Callable[..., None]) -> Callable[..., None]:
        """The pass, which prints a module before and after until it has once changed one."""

        def rewritten(module: Any, target: Any) -> None:
            known = rewrite.__name__ in self.names
            before = "" if known else str(module)
            rewrite(module, target)
            if not known and str(module) != before:
                self.names.add(rewrite.__name__)

        rewritten.__name__, rewritten.__module__ = rewrite.__name__, rewrite.__module__
        return rewritten

    def left(self) -> list[str]:
        """What none of the tests has reached."""
        return sorted(self.expected - self.names - EXCUSED.keys())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["reached"] = sorted(self.names)
        elif self.left() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_testnodedown(self, node: Any) -> None:
        self.names.update(getattr(node, "workeroutput", {}).get("reached", ()))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name in self.left():
            terminalreporter.write_line(f"NOT REACHED by any test: {name}", red=True)


def expected() -> set[str]:
    """The operators of our rules that this torch has, our passes, and our classes of errors."""
    classes: list[type] = [errors.XlaDynamoError]
    for c in classes:
        classes += c.__subclasses__()
    raised = {c.__name__ for c in classes[1:]}
    return {*filter(_exists, TABLE), *(p.name for p in passes.PASSES), *raised}


def _exists(op: str) -> bool:
    """Whether torch has an overload; operators of higher order have none."""
    namespace, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None) if name else None
    return not name or overload in getattr(packet, "overloads", list)()


def pytest_configure(config: pytest.Config) -> None:
    reached = Reached()
    reached.watch()
    config.pluginmanager.register(reached)
