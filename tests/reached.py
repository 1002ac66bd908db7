"""A pytest plugin that tells what no test of a run has tried: `pytest -p tests.reached`.

A pass is tried by a module that it changes, a class of errors by one that a test expects, a rule of
the lowering table by a graph that it lowers. A run that leaves out a pass or a class of errors
fails. Rules are told: `make test` draws its cases, so not each run sends the same operators. What
only a process of a test's own reaches does not count.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from _pytest.raises import RaisesExc

from xla_dynamo import errors
from xla_dynamo.lowerings import TABLE
from xla_dynamo.lowerings.passes import table
from xla_dynamo.programs import lower_nodes
from xla_dynamo.torch_private import OpOverload

# Passes that have nothing to do on the CPU, or in one process.
ELSEWHERE = {"combine_collectives", "set_matmul_precision"}


class Reached:
    """What the tests of this process have reached, and in the main one those of all processes."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        # Before tests add some of their own.
        self.rules = {op for op in TABLE if _exists(op)}
        self.errors = _error_classes()

    def watch(self) -> None:
        """Put watchers in the places where rules are found, passes run and errors are expected."""
        find_rule, exit_ = lower_nodes.find_rule, RaisesExc.__exit__

        def found(op: OpOverload) -> Any:
            self.names.add(str(op))
            return find_rule(op)

        def expected(block: RaisesExc, kind: Any, error: BaseException | None, trace: Any) -> bool:
            chained = error
            while chained is not None:
                told = f"{type(chained).__name__} {chained}"  # Dynamo's error quotes ours
                self.names |= {name for name in self.errors if name in told}
                chained = chained.__cause__ or chained.__context__
            return exit_(block, kind, error, trace)

        lower_nodes.find_rule = found
        RaisesExc.__exit__ = expected  # type: ignore[method-assign]
        table.PASSES = tuple(
            dataclasses.replace(p, rewrite=self._watched(p.rewrite)) for p in table.PASSES
        )

    def _watched(self, rewrite: Callable[..., Any]) -> Callable[..., Any]:
        """The pass, which prints a module before and after until it has once changed one."""

        def rewritten(module: Any, target: Any) -> Any:
            known = rewrite.__name__ in self.names
            before = "" if known else str(module)
            notes = rewrite(module, target)
            if not known and str(module) != before:
                self.names.add(rewrite.__name__)
            return notes

        rewritten.__name__, rewritten.__module__ = rewrite.__name__, rewrite.__module__
        return rewritten

    def left(self) -> list[str]:
        """The passes and errors that no test has reached."""
        names = {p.name for p in table.PASSES} - ELSEWHERE | self.errors
        return sorted(names - self.names)

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
        rules = sorted(self.rules - self.names)
        reached = len(self.rules) - len(rules)
        terminalreporter.write_line(f"{reached} of {len(self.rules)} rules were reached")
        if terminalreporter.verbosity > 0:
            terminalreporter.write_line(f"not these: {' '.join(rules)}")


def _error_classes() -> set[str]:
    classes: list[type] = [errors.XlaDynamoError]
    for c in classes:
        classes += c.__subclasses__()
    return {c.__name__ for c in classes[1:]}


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
