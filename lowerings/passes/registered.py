"""Passes that users add to those of the table."""

import dataclasses
import threading
from collections.abc import Callable, Collection
from typing import Any, Literal

from jax.extend.mlir import ir

from xla_dynamo.lowerings.passes import table
from xla_dynamo.lowerings.target import Target
from xla_dynamo.process_state import kept

Rewrite = Callable[[ir.Module, Target], Any]
Position = tuple[Literal["before", "after"], str]
# The last pass has to see all that computes with shards.
_LAST: Position = ("before", "gather_manual_regions")

_lock = threading.Lock()


class _Users:
    """The users' passes: the tuple is replaced and never changed, so reading it needs no lock."""

    def __init__(self) -> None:
        self.passes: tuple[RegisteredPass, ...] = ()
        self.version = 0


_users = kept(_Users)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class RegisteredPass:
    """A user's pass, and the handle by which it is removed: see `register_pass`.

    As a context manager, it is removed at the end of the block.

    Attributes:
        rewrite: the function that rewrites a module in place for a target.
        identity: the text that stands for the code of the pass; None if there is none.
        platforms: the PJRT platforms that it is for; None for all.
        position: before or after which pass of the table it runs.
    """

    rewrite: Rewrite
    identity: str | None
    platforms: frozenset[str] | None
    position: Position

    @property
    def name(self) -> str:
        """The identity, or the name of the function that rewrites."""
        name = getattr(self.rewrite, "__qualname__", type(self.rewrite).__qualname__)
        return self.identity or str(name)

    @property
    def module(self) -> str:
        """The module that has the function, for messages."""
        return str(getattr(self.rewrite, "__module__", type(self.rewrite).__module__))

    def is_for(self, target: Target) -> bool:
        """Whether the pass is for a target."""
        return self.platforms is None or target.platform in self.platforms

    def remove(self) -> None:
        """Run the pass no more. What was compiled with it stays; a second call does nothing."""
        with _lock:
            if self in _users.passes:
                _users.passes = tuple(other for other in _users.passes if other is not self)
                _users.version += 1

    def __enter__(self) -> "RegisteredPass":
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def register_pass(
    rewrite: Rewrite,
    *,
    identity: str | None = None,
    platforms: Collection[str] | None = None,
    before: str | None = None,
    after: str | None = None,
) -> RegisteredPass:
    """Run a pass of your own over the StableHLO module of every graph that is lowered from now on.

    A pass is called as `rewrite(module, target)`, with an `ir.Module` and a
    `xla_dynamo.lowerings.target.Target`. It changes the module in place and returns nothing; `main`
    must keep its arguments and its results. The module is verified behind it. A pass may be called
    by several threads at once, and for each graph, also for the program that computes the frozen
    values of `freeze`; `target` tells programs that are partitioned, bounded or part of JAX's.

    Graphs that were compiled before are not affected; `torch._dynamo.reset()` has them compiled
    anew. A graph with dynamic sizes that was traced before runs the pass when it is lowered for
    other sizes.

    Args:
        rewrite: the pass.
        identity: a text that changes whenever the code of the pass does, as "my-pass-3". The disk
            cache takes it into the keys of whole graphs; without one, no graph is read from it or
            written to it while the pass is registered. Executables are known by their module.
        platforms: the PJRT platforms that it is for, such as "cpu" and "cuda"; None for all.
        before: the name of the pass of the table (docs/how-it-works.md) before which it runs. Of
            several at one position, those registered first run first. By default a pass runs after
            all others that optimize, as `before="gather_manual_regions"`.
        after: the name of the pass after which it runs.

    Returns:
        The handle: `handle.remove()` undoes the registration, and so does the end of a `with` block
        on it.

    Raises:
        TypeError: `rewrite` is not callable, or an argument has the wrong type.
        ValueError: both `before` and `after` are given, one is no name of a pass, or a pass with
            this identity is registered already.
    """
    if not callable(rewrite):
        raise TypeError(f"register_pass needs a function of (module, target), not {rewrite!r}")
    if identity is not None and (not isinstance(identity, str) or not identity):
        raise TypeError(f"the identity of a pass must be a text or None, not {identity!r}")
    if isinstance(platforms, str):
        raise TypeError(f"platforms must be a list of names, as [{platforms!r}]")
    only = None if platforms is None else frozenset(platforms)
    made = RegisteredPass(rewrite, identity, only, _position(before, after))
    with _lock:
        if identity is not None and any(other.identity == identity for other in _users.passes):
            raise ValueError(
                f"a pass with the identity {identity!r} is registered already: call remove() of "
                "what register_pass returned for it first"
            )
        _users.passes = (*_users.passes, made)
        _users.version += 1
    return made


def _position(before: str | None, after: str | None) -> Position:
    if before is not None and after is not None:
        raise ValueError("a pass runs either before or after another one: give one of them")
    name = before if after is None else after
    if name is None:
        return _LAST
    names = [p.name for p in table.PASSES]
    if name not in names:
        raise ValueError(f"there is no pass {name!r}: the passes are {', '.join(names)}")
    return ("after", name) if before is None else ("before", name)


def registered_passes() -> tuple[RegisteredPass, ...]:
    """The users' passes, in the order of their registration."""
    return _users.passes


def registry_version() -> int:
    """A number that was another one whenever other passes were registered."""
    return _users.version


def passes_for(target: Target) -> list[table.Pass | RegisteredPass]:
    """All passes that are for a target, in the order in which they run."""
    users = _users.passes
    ordered: list[table.Pass | RegisteredPass] = []
    for ours in table.PASSES:
        ordered += [given for given in users if given.position == ("before", ours.name)]
        ordered.append(ours)
        ordered += [given for given in users if given.position == ("after", ours.name)]
    return [each for each in ordered if each.is_for(target)]
