"""The handler of `call_scripts`, in LLVM IR: it runs plans, with no Python in the way.

XLA calls `handler` with a pointer to the frame of a call. The first operand is an array of
addresses of plans, and the handler's one attribute, an array, has the number of the plan. The parts
of a plan are shared with threads of XLA's pool: whoever has time takes the next one, so none waits
for a thread that is not there.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from xla_dynamo.runtime.cpu import script_layout as layout
from xla_dynamo.runtime.cpu.ffi_structures import (
    ERROR_CREATE,
    ERROR_DESTROY,
    EXECUTE,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    SCHEDULE,
    Api,
    Array,
    Buffer,
    DestroyArguments,
    ErrorArguments,
    Frame,
    ScheduleArguments,
)
from xla_dynamo.runtime.cpu.float_functions import write_float_functions
from xla_dynamo.runtime.cpu.llvm_functions import (
    ADDRESS,
    NUMBER,
    WORD,
    Function,
    offset,
    text,
)
from xla_dynamo.runtime.cpu.script_layout import Call, Job, Part, Plan, Word
from xla_dynamo.runtime.cpu.waiting_threads import CORE_FUNCTIONS, Module

TOO_MANY = f"a call has more than {layout.MOST_ADDRESSES} operands and results"
NO_MEMORY = "there is no memory for a call"
# The fields of a frame that have buffers, in the order of their slots.
_GIVEN = "operands", "results"

_NOTHING = ir.VoidType()
# The functions that the module calls: C's, OpenMP's, and the handler for all that is no call.
EXTERNALS = {
    "malloc": ir.FunctionType(ADDRESS, [WORD]),
    "free": ir.FunctionType(_NOTHING, [ADDRESS]),
    "sched_yield": ir.FunctionType(NUMBER, []),
    "usleep": ir.FunctionType(NUMBER, [NUMBER]),
    "omp_get_max_threads": ir.FunctionType(NUMBER, []),
    "omp_set_num_threads": ir.FunctionType(_NOTHING, [NUMBER]),
    "MKL_Set_Num_Threads_Local": ir.FunctionType(NUMBER, [NUMBER]),
    "other_handler": ir.FunctionType(ADDRESS, [ADDRESS]),
}


def written(architecture: str, knows_cores: bool) -> str:
    """The module's text: `handler`, and the functions of `float_functions`.

    Args:
        architecture: of the processor, as LLVM's triples have it.
        knows_cores: whether the functions of `CORE_FUNCTIONS` are there.
    """
    module = ir.Module("scripts")
    externals = EXTERNALS | (CORE_FUNCTIONS if knows_cores else {})
    functions = {name: ir.Function(module, kind, name) for name, kind in externals.items()}
    _Runner(module, functions).write(architecture)
    write_float_functions(module, architecture)
    return str(module)


class _Runner(Module):
    """Writes the functions of the module."""

    def write(self, architecture: str) -> None:
        """Write the handler, and what it calls before it."""
        self._run()
        self._work()
        self._release()
        self.write_waiting(architecture)
        self._help()
        self._error()
        self._handler()

    # --- parts ---------------------------------------------------------------------------------

    def _run(self) -> None:
        """`run(workspace, script)`: the message of the call that has failed, or null."""
        body = self.begin("run", ADDRESS, ADDRESS, ADDRESS)
        (workspace, script), build = body.arguments, body.build
        slots = build.ptrtoint(body.address(workspace, layout.SLOTS), WORD)
        place = body.variable(ADDRESS)  # where the next call is
        build.store(body.address(script, layout.WORD), place)
        # A function that takes a double finds 0.0, in a register that others do not look at.
        double = ir.DoubleType()
        kind = ir.FunctionType(NUMBER, [*[WORD] * layout.MOST_ARGUMENTS, double])
        with body.times(body.load(script)):
            call = build.load(place, typ=ADDRESS)
            words = body.load(call, Call.words.offset)
            first = body.address(call, ctypes.sizeof(Call))
            with body.times(words) as index:
                self._put(body, workspace, slots, body.element(first, Word, index))
            build.store(body.element(first, Word, words), place)
            arguments = [
                body.load(workspace, layout.ARGUMENTS + layout.WORD * number)
                for number in range(layout.MOST_ARGUMENTS)
            ]
            function = body.load(call, Call.function.offset, type_=kind.as_pointer())
            failed = build.icmp_signed(
                "!=", build.call(function, [*arguments, double(0.0)]), NUMBER(0)
            )
            with build.if_then(failed):
                build.ret(body.load(call, Call.failure.offset, type_=ADDRESS))
        build.ret(ADDRESS(None))

    def _put(self, body: Function, workspace: Any, slots: Any, word: Any) -> None:
        """Put a word into the workspace, as its kind says."""
        build = body.build
        kind, value = (body.load(word, o) for o in (Word.kind.offset, Word.value.offset))
        base = build.select(self._has(body, kind, layout.IN_SLOTS), slots, WORD(0))
        found = body.variable(WORD)
        build.store(build.add(base, value), found)
        with build.if_then(self._has(body, kind, layout.LOADED)):
            address = build.inttoptr(build.load(found, typ=WORD), ADDRESS)
            build.store(body.load(address), found)
        added = build.lshr(kind, WORD(layout.OFFSET))
        total = build.add(build.load(found, typ=WORD), added)
        body.store(total, workspace, body.load(word, Word.place.offset))

    def _has(self, body: Function, kind: Any, bit: int) -> Any:
        build = body.build
        return build.icmp_unsigned("!=", build.and_(kind, WORD(bit)), WORD(0))

    def _work(self) -> None:
        """`work(job)`: take parts and do them, until there are no others; returns how many.

        OpenMP's loops and MKL have one thread meanwhile: what a library computes here, it computes
        alone.
        """
        body = self.begin("work", WORD, ADDRESS)
        (job,), build = body.arguments, body.build
        workspace = body.variable(WORD, layout.WORKSPACE)
        threads = self.call(body, "omp_get_max_threads")
        self.call(body, "omp_set_num_threads", NUMBER(1))
        of_mkl = self.call(body, "MKL_Set_Num_Threads_Local", NUMBER(1))
        parts = body.load(job, Job.parts.offset)
        first = body.address(body.load(job, Job.plan.offset, type_=ADDRESS), ctypes.sizeof(Plan))
        with body.forever() as turn:
            number = body.add(1, job, Job.taken.offset, "monotonic")
            with build.if_then(build.icmp_unsigned(">=", number, parts)):
                self.call(body, "omp_set_num_threads", threads)
                self.call(body, "MKL_Set_Num_Threads_Local", of_mkl)
                build.ret(turn)
            part = body.element(first, Part, number)
            for given in range(layout.MOST_ADDRESSES):
                word = body.load(job, Job.addresses.offset + layout.WORD * given)
                body.store(word, workspace, layout.SLOTS + layout.WORD * given)
            for empty in range(layout.MOST_ADDRESSES, layout.NUMBER_OF_SLOTS):
                body.store(0, workspace, layout.SLOTS + layout.WORD * empty)
            failure = body.variable(ADDRESS)
            script = body.load(part, Part.script.offset, type_=ADDRESS)
            build.store(self.call(body, "run", workspace, script), failure)
            second = body.load(part, Part.second.offset, type_=ADDRESS)
            has_failed = self._is_there(body, build.load(failure, typ=ADDRESS))
            with build.if_then(build.and_(has_failed, self._is_there(body, second))):
                build.store(self.call(body, "run", workspace, second), failure)
            message = build.load(failure, typ=ADDRESS)
            with build.if_then(self._is_there(body, message)):
                place = body.address(job, Job.failure.offset)
                build.atomic_rmw("xchg", place, build.ptrtoint(message, WORD), "monotonic")
            body.add(1, job, Job.done.offset, "release")

    def _is_there(self, body: Function, address: Any) -> Any:
        return body.build.icmp_unsigned("!=", address, ADDRESS(None))

    # --- threads -------------------------------------------------------------------------------

    def _release(self) -> None:
        """`release(job)`: this thread uses the job no more."""
        body = self.begin("release", _NOTHING, ADDRESS)
        (job,), build = body.arguments, body.build
        users = body.add(-1, job, Job.users.offset, "acq_rel")
        with build.if_then(build.icmp_signed("==", users, WORD(1))):
            self.call(body, "free", job)
        build.ret_void()

    def _help(self) -> None:
        """`help(job)`: what a thread of the pool does, if it comes before all parts are taken."""
        body = self.begin("help", _NOTHING, ADDRESS)
        build, now = body.build, body.variable(ADDRESS)
        build.store(body.arguments[0], now)
        with body.forever():
            job = build.load(now, typ=ADDRESS)
            looks = body.load(job, Job.looks.offset)
            plan = body.load(job, Job.plan.offset, type_=ADDRESS)
            most = body.load(plan, Plan.helpers.offset)
            self.call(body, "leave", body.load(job, Job.core.offset))
            parts = self.call(body, "work", job)
            self.call(body, "release", job)
            # Who came too late is one too many.
            is_late = build.icmp_unsigned("==", parts, WORD(0))
            looks = build.select(is_late, WORD(0), looks)
            build.store(self.call(body, "stay", looks, most), now)
            with build.if_then(build.not_(self._is_there(body, build.load(now, typ=ADDRESS)))):
                build.ret_void()

    # --- calls ---------------------------------------------------------------------------------

    def _api(self, body: Function, frame: Any, number: int, arguments: Any) -> Any:
        """Call one of XLA's functions; returns the address of an error, or null."""
        api = body.load(frame, Frame.api.offset, type_=ADDRESS)
        kind = ir.FunctionType(ADDRESS, [ADDRESS]).as_pointer()
        at = Api.functions.offset + layout.WORD * number
        return body.build.call(body.load(api, at, type_=kind), [arguments])

    def _arguments(self, body: Function, structure: Any, **values: Any) -> Any:
        """Arguments for one of XLA's functions, on the stack."""
        size = ctypes.sizeof(structure)
        made = body.variable(WORD, size // layout.WORD)
        body.store(size, made, structure.struct_size.offset)
        body.store(0, made, structure.extension_start.offset)
        for name, value in values.items():
            body.store(value, made, offset(structure, name))
        return made

    def _error(self) -> None:
        """`error(frame, code, message)`: an error of XLA's, which a handler returns.

        No function of Python's makes it: one that raises would return that all is well.
        """
        body = self.begin("error", ADDRESS, ADDRESS, NUMBER, ADDRESS)
        frame, code, message = body.arguments
        arguments = self._arguments(body, ErrorArguments, message=message, code=code)
        body.build.ret(self._api(body, frame, ERROR_CREATE, arguments))

    def _handler(self) -> None:
        """`handler(frame)`: the address of an error, or null."""
        body = self.begin("handler", ADDRESS, ADDRESS, exported=True)
        (frame,), build = body.arguments, body.build
        stage = body.load(frame, Frame.stage.offset, type_=NUMBER)
        extension = body.load(frame, Frame.extension_start.offset, type_=ADDRESS)
        is_other = build.icmp_unsigned("!=", stage, NUMBER(EXECUTE))
        with build.if_then(build.or_(is_other, self._is_there(body, extension))):
            build.ret(self.call(body, "other_handler", frame))
        sizes = [body.load(frame, offset(Frame, name, "size")) for name in _GIVEN]
        too_many = build.icmp_unsigned(">", build.add(*sizes), WORD(layout.MOST_ADDRESSES))
        with build.if_then(too_many):
            build.ret(self._failure(body, frame, INTERNAL, "too_many", TOO_MANY))
        job = self.call(body, "malloc", WORD(ctypes.sizeof(Job)))
        with build.if_then(build.not_(self._is_there(body, job))):
            build.ret(self._failure(body, frame, RESOURCE_EXHAUSTED, "no_memory", NO_MEMORY))
        self._fill(body, frame, job, sizes)
        self._schedule(body, frame, job)
        self.call(body, "work", job)
        self.call(body, "wait", job)
        failure = body.load(job, Job.failure.offset, type_=ADDRESS)
        self.call(body, "release", job)
        with build.if_then(self._is_there(body, failure)):
            build.ret(self.call(body, "error", frame, NUMBER(INTERNAL), failure))
        build.ret(ADDRESS(None))

    def _failure(self, body: Function, frame: Any, code: int, name: str, message: str) -> Any:
        constant = text(self.module, name, message)
        at = body.build.bitcast(constant, ADDRESS)
        return self.call(body, "error", frame, NUMBER(code), at)

    def _fill(self, body: Function, frame: Any, job: Any, sizes: Sequence[Any]) -> None:
        """Write a call's addresses and its plan into its job."""
        build, start = body.build, WORD(0)
        addresses = body.address(job, Job.addresses.offset)
        for name, size in zip(_GIVEN, sizes, strict=True):
            buffers = body.load(frame, offset(Frame, name, "values"), type_=ADDRESS)
            with body.times(size) as index:
                at = build.mul(index, WORD(layout.WORD))
                buffer = body.load(buffers, at, type_=ADDRESS)
                to = build.mul(build.add(start, index), WORD(layout.WORD))
                body.store(body.load(buffer, Buffer.data.offset), addresses, to)
            start = build.add(start, size)
        attributes = body.load(frame, offset(Frame, "attributes", "values"), type_=ADDRESS)
        attribute = body.load(attributes, type_=ADDRESS)
        number = body.load(body.load(attribute, Array.data.offset, type_=ADDRESS))
        plans = body.load(job, Job.addresses.offset, type_=ADDRESS)
        plan = body.load(plans, build.mul(number, WORD(layout.WORD)), type_=ADDRESS)
        body.store(plan, job, Job.plan.offset)
        body.store(body.load(plan, Plan.parts.offset), job, Job.parts.offset)
        body.store(body.load(plan, Plan.looks.offset), job, Job.looks.offset)
        body.store(self.call(body, "core"), job, Job.core.offset)
        for field in (Job.taken, Job.done, Job.failure):
            body.store(0, job, field.offset)
        helpers = body.load(plan, Plan.helpers.offset)
        body.store(build.add(helpers, WORD(1)), job, Job.users.offset)

    def _schedule(self, body: Function, frame: Any, job: Any) -> None:
        """Ask for the plan's helpers; where XLA has no threads, it says so, and none comes."""
        build = body.build
        plan = body.load(job, Job.plan.offset, type_=ADDRESS)
        asked = self._arguments(
            body,
            ScheduleArguments,
            context=body.load(frame, Frame.context.offset),
            task=build.ptrtoint(self.address_of("help"), WORD),
            data=build.ptrtoint(job, WORD),
        )
        destroyed = self._arguments(body, DestroyArguments)
        helpers = body.times(body.load(plan, Plan.helpers.offset))
        with helpers, build.if_then(build.not_(self.call(body, "give", job))):
            error = self._api(body, frame, SCHEDULE, asked)
            with build.if_then(self._is_there(body, error)):
                body.add(-1, job, Job.users.offset, "monotonic")
                body.store(error, destroyed, DestroyArguments.error.offset)
                self._api(body, frame, ERROR_DESTROY, destroyed)
