"""Run the passes over a module: in their order, timed, and under the debug switches of `switches`.

A user's pass may do anything to a module, so MLIR verifies the module behind each pass if there is
one of those, or where the switches ask for it.
"""

import dataclasses
import logging
import os
import pathlib
import time
from collections.abc import Callable, Hashable

from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError, OptionError
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.kernels import forms_of_calls
from xla_dynamo.lowerings.passes import table
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.registered import (
    RegisteredPass,
    passes_for,
    registered_passes,
    registry_version,
)
from xla_dynamo.lowerings.passes.switches import VARIABLE, Session, session
from xla_dynamo.lowerings.target import Target

log = logging.getLogger("xla_dynamo")
AnyPass = table.Pass | RegisteredPass


@dataclasses.dataclass(frozen=True, slots=True)
class Rewritten:
    """What the passes over one module have left beside it.

    Attributes:
        notes: the notes of all passes.
        seconds: how long each pass took, by its name, in the order in which they ran.
    """

    notes: Notes
    seconds: dict[str, float]


Observe = Callable[[str, ir.Module], None]


def run(module: ir.Module, target: Target, observe: Observe | None = None) -> Rewritten:
    """Run every pass that is for the target, the users' among them, on a module in place.

    `observe` is given the module as it was lowered, and behind each pass with the pass's name.

    Raises:
        LoweringError: a user's pass failed, or a pass left an invalid module.
        OptionError: the environment variable of the switches is wrong.
        ShardingError: see `gather_manual_regions`.
    """
    current = session()
    switches = current.switches
    if switches.skip:
        _check_names(switches.skip)
    number = current.next_module()
    chosen = passes_for(target)
    verifies = switches.verify or any(isinstance(each, RegisteredPass) for each in chosen)
    observers = [] if observe is None else [observe]
    if switches.dump is not None:
        observers.append(_Dump(switches.dump, number).write)
    for show in observers:
        show("lowered", module)
    if verifies:
        _verify(module, "the rules of the lowering table wrote an invalid module")
    notes, seconds = Notes(), dict[str, float]()
    for each in chosen:
        if not _may_run(each, current, number, target):
            log.debug("module %d: the pass %s is left out", number, each.name)
            if isinstance(each, table.Pass) and each.remove_marks is not None:
                each.remove_marks(module)
            continue
        start = time.perf_counter()
        found = _rewrite(each, module, target)
        taken = time.perf_counter() - start
        seconds[each.name] = seconds.get(each.name, 0.0) + taken  # two may have one name
        for show in observers:
            show(each.name, module)
        if verifies:
            _verify(module, _blame(each))
        if found is not None:
            notes = notes.joined(found)
    return Rewritten(notes, seconds)


def state() -> Hashable:
    """A value that is another one when other passes would run now, or others be left out."""
    return registry_version(), session().switches


def refusal_to_save(target: Target) -> str | None:
    """Why programs of whole graphs are neither saved nor found now; None if they are.

    What is found runs no passes, so it could not be dumped, and passes could not be counted.
    """
    switches = session().switches
    if switches.leaves_out or switches.dump is not None:
        return f"{VARIABLE} leaves out passes or dumps modules"
    for each in registered_passes():
        if each.identity is None and each.is_for(target):
            return f"the pass {each.name} of {each.module} is registered without an identity"
    return None


def identities(target: Target) -> list[str]:
    """The passes for a target in their order, each by a text that stands for its code.

    The package's own passes, whose code is among its sources, have their names.
    """
    return [
        f"registered {each.identity}" if isinstance(each, RegisteredPass) else each.name
        for each in passes_for(target)
    ]


def _check_names(names: frozenset[str]) -> None:
    needed = [each.name for each in table.PASSES if each.is_needed]
    known = [each.name for each in table.PASSES]
    known += [each.name for each in registered_passes()]
    for name in sorted(names):
        if name in needed:
            raise OptionError(f"{VARIABLE}: programs do not run without the pass {name}")
        if name not in known:
            raise OptionError(f"{VARIABLE}: no pass {name!r}: the passes are {', '.join(known)}")


def _may_run(each: AnyPass, current: Session, module: int, target: Target) -> bool:
    if isinstance(each, table.Pass) and each.is_needed:
        return True
    if each.name in current.switches.skip:
        return False
    if isinstance(each, table.Pass) and each.keeps_numbers:
        return True
    return current.allows(each.name, module, target.platform)


def _rewrite(each: AnyPass, module: ir.Module, target: Target) -> Notes | None:
    if isinstance(each, table.Pass):
        return each.rewrite(module, target)
    before, calls = _type_of_main(module), forms_of_calls(module)
    try:
        returned = each.rewrite(module, target)
    except Exception as error:
        raise LoweringError(
            f"{_described(each)} raised {type(error).__name__}: {error}\n"
            "  mend the pass, or remove it: register_pass returned the handle"
        ) from error
    if returned is not None:
        raise LoweringError(
            f"{_described(each)} returned {type(returned).__name__}: a pass changes the module in "
            "place, and returns nothing"
        )
    after = _type_of_main(module)
    if after != before:
        raise LoweringError(
            f"{_described(each)} changed the type of main from {before} to {after}: a "
            "pass has to keep the arguments and the results, as the caller binds tensors to them"
        )
    if changed := forms_of_calls(module) - calls:
        raise LoweringError(
            f"{_described(each)} wrote a call of a library that no kernel has checked: a pass may "
            "take such calls away, but not change their configuration, nor the types of their "
            f"operands and results\n  {min(changed)}"
        )
    return None


def _type_of_main(module: ir.Module) -> str:
    try:
        return str(main_of(module).type)
    except StopIteration:  # it is gone, or has another name
        return "none"


def _described(each: AnyPass) -> str:
    where = f" of {each.module}" if isinstance(each, RegisteredPass) else ""
    return f"the pass {each.name}{where}"


def _blame(each: AnyPass) -> str:
    if isinstance(each, RegisteredPass):
        advice = "mend the pass, or remove it: register_pass returned the handle"
    elif each.is_needed:
        advice = "this is a fault of xla_dynamo, not of the model"
    else:
        advice = (
            "this is a fault of xla_dynamo, not of the model; until it is mended, "
            f"{VARIABLE}=skip={each.name} compiles without the pass"
        )
    return f"{_described(each)} left an invalid module; {advice}"


def _verify(module: ir.Module, blame: str) -> None:
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise LoweringError(f"{blame}\n  {error}") from error


class _Dump:
    """The files of one module, in a folder of its own: as lowered, and behind each pass."""

    def __init__(self, folder: str, module: int) -> None:
        # Several processes may dump into one folder.
        self._folder = pathlib.Path(folder) / f"{os.getpid()}-{module:04}"
        self._count = 0

    def write(self, name: str, module: ir.Module) -> None:
        """Write the module, which is before the next pass what it is behind this one."""
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{self._count:02}-{safe}.mlir"
            path.write_text(f"{module}\n", encoding="utf-8")
        except OSError as error:
            raise OptionError(f"{VARIABLE}: no module can be dumped: {error}") from error
        self._count += 1
