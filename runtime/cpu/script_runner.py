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
from xla_dynamo.runtime.cpu.script_layout import Call, Part, Plan, Word

# Who waits looks so often, with pauses between, which take about a millisecond together. Then it
# looks so often again, and lets other threads have its core between. Then it sleeps between.
SPINS, YIELDS, SLEEP_US = 1 << 15, 1 << 12, 100
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
# What tells the processor that a thread waits: "pause" of x86, and "yield" of Arm, hint 1.
_PAUSE: dict[str, tuple[str, list[Any]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [NUMBER(1)]),
}


class Job(ctypes.Structure):
    """What the threads of a call share, on the heap; the last one frees it.

    Attributes:
        users: how many still use it: who has made it, and those who are to help.
        taken: how many parts were taken; each thread adds one more when there are no others.
        parts: how many there are.
        done: how many are done.
        plan: its address.
        failure: the address of a failure's message, or 0.
        addresses: of operands and results.
    """

    _fields_ = [
        ("users", ctypes.c_int64),
        ("taken", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("done", ctypes.c_int64),
        ("plan", ctypes.c_int64),
        ("failure", ctypes.c_int64),
        ("addresses", ctypes.c_int64 * layout.MOST_ADDRESSES),
    ]


def written(architecture: str) -> str:
    """The module's text: `handler`, and the functions of `float_functions`.

    Args:
        architecture: of the processor, as LLVM's triples have it.
    """
    module = ir.Module("scripts")
    functions = {name: ir.Function(module, kind, name) for name, kind in EXTERNALS.items()}
    name, given = _PAUSE[architecture]
    pause = ir.Function(module, ir.FunctionType(_NOTHING, [one.type for one in given]), name)
    _Runner(module, functions).write(pause, given)
    write_float_functions(module, architecture)
    return str(module)


class _Runner:
    """The functions of the module, by name: those that it calls, and those that are written."""

    def __init__(self, module: ir.Module, functions: dict[str, ir.Function]) -> None:
        self._module, self._functions = module, functions

    def write(self, pause: ir.Function, given: Sequence[Any]) -> None:
        """Write the handler, and what it calls before it."""
        self._run()
        self._work()
        self._release()
        self._help()
        self._wait(pause, given)
        self._error()
        self._handler()

    def _begin(self, name: str, result: ir.Type, *arguments: ir.Type, **how: Any) -> Function:
        body = Function(self._module, name, result, arguments, **how)
        self._functions[name] = body.function
        return body

    def _call(self, body: Function, name: str, *arguments: Any) -> Any:
        return body.build.call(self._functions[name], arguments)

    # --- parts ---------------------------------------------------------------------------------

    def _run(self) -> None:
        """`run(workspace, script)`: the message of the call that has failed, or null."""
        body = self._begin("run", ADDRESS, ADDRESS, ADDRESS)
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
        """`work(job)`: take parts and do them, until there are no others.

        OpenMP's loops and MKL have one thread meanwhile: what a library computes here, it computes
        alone.
        """
        body = self._begin("work", _NOTHING, ADDRESS)
        (job,), build = body.arguments, body.build
        workspace = body.variable(WORD, layout.WORKSPACE)
        threads = self._call(body, "omp_get_max_threads")
        self._call(body, "omp_set_num_threads", NUMBER(1))
        of_mkl = self._call(body, "MKL_Set_Num_Threads_Local", NUMBER(1))
        parts = body.load(job, Job.parts.offset)
        first = body.address(body.load(job, Job.plan.offset, type_=ADDRESS), ctypes.sizeof(Plan))
        with body.forever():
            number = body.add(1, job, Job.taken.offset, "monotonic")
            with build.if_then(build.icmp_unsigned(">=", number, parts)):
                self._call(body, "omp_set_num_threads", threads)
                self._call(body, "MKL_Set_Num_Threads_Local", of_mkl)
                build.ret_void()
            part = body.element(first, Part, number)
            for given in range(layout.MOST_ADDRESSES):
                word = body.load(job, Job.addresses.offset + layout.WORD * given)
                body.store(word, workspace, layout.SLOTS + layout.WORD * given)
            for empty in range(layout.MOST_ADDRESSES, layout.NUMBER_OF_SLOTS):
                body.store(0, workspace, layout.SLOTS + layout.WORD * empty)
            failure = body.variable(ADDRESS)
            script = body.load(part, Part.script.offset, type_=ADDRESS)
            build.store(self._call(body, "run", workspace, script), failure)
            second = body.load(part, Part.second.offset, type_=ADDRESS)
            has_failed = self._is_there(body, build.load(failure, typ=ADDRESS))
            with build.if_then(build.and_(has_failed, self._is_there(body, second))):
                build.store(self._call(body, "run", workspace, second), failure)
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
        body = self._begin("release", _NOTHING, ADDRESS)
        (job,), build = body.arguments, body.build
        users = body.add(-1, job, Job.users.offset, "acq_rel")
        with build.if_then(build.icmp_signed("==", users, WORD(1))):
            self._call(body, "free", job)
        build.ret_void()

    def _help(self) -> None:
        """`help(job)`: what a thread of the pool does, if it comes before all parts are taken."""
        body = self._begin("help", _NOTHING, ADDRESS)
        self._call(body, "work", *body.arguments)
        self._call(body, "release", *body.arguments)
        body.build.ret_void()

    def _wait(self, pause: ir.Function, given: Sequence[Any]) -> None:
        """`wait(job)`: until all parts are done.

        It is called when all are taken. So each that is not done is being done, by a thread that
        runs, and the wait ends when the last of their calls returns: it depends on no thread that
        is yet to come, and on no lock. There is no limit of time. After one the call would fail,
        and XLA would reuse memory that a late thread still writes to: a wrong number elsewhere.
        What is limited is how long a core is held by waiting.
        """
        body = self._begin("wait", _NOTHING, ADDRESS)
        (job,), build = body.arguments, body.build
        parts = body.load(job, Job.parts.offset)
        place = body.address(job, Job.done.offset)
        with body.forever() as turn:
            done = build.load_atomic(place, "acquire", layout.WORD, typ=WORD)
            with build.if_then(build.icmp_unsigned("==", done, parts)):
                build.ret_void()
            with build.if_else(build.icmp_unsigned("<", turn, WORD(SPINS))) as (soon, later):
                with soon:
                    build.call(pause, given)
                with later:
                    turns = WORD(SPINS + YIELDS)
                    with build.if_else(build.icmp_unsigned("<", turn, turns)) as (first, then):
                        with first:
                            self._call(body, "sched_yield")
                        with then:
                            self._call(body, "usleep", NUMBER(SLEEP_US))

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
        body = self._begin("error", ADDRESS, ADDRESS, NUMBER, ADDRESS)
        frame, code, message = body.arguments
        arguments = self._arguments(body, ErrorArguments, message=message, code=code)
        body.build.ret(self._api(body, frame, ERROR_CREATE, arguments))

    def _handler(self) -> None:
        """`handler(frame)`: the address of an error, or null."""
        body = self._begin("handler", ADDRESS, ADDRESS, exported=True)
        (frame,), build = body.arguments, body.build
        stage = body.load(frame, Frame.stage.offset, type_=NUMBER)
        extension = body.load(frame, Frame.extension_start.offset, type_=ADDRESS)
        is_other = build.icmp_unsigned("!=", stage, NUMBER(EXECUTE))
        with build.if_then(build.or_(is_other, self._is_there(body, extension))):
            build.ret(self._call(body, "other_handler", frame))
        sizes = [body.load(frame, offset(Frame, name, "size")) for name in _GIVEN]
        too_many = build.icmp_unsigned(">", build.add(*sizes), WORD(layout.MOST_ADDRESSES))
        with build.if_then(too_many):
            build.ret(self._failure(body, frame, INTERNAL, "too_many", TOO_MANY))
        job = self._call(body, "malloc", WORD(ctypes.sizeof(Job)))
        with build.if_then(build.not_(self._is_there(body, job))):
            build.ret(self._failure(body, frame, RESOURCE_EXHAUSTED, "no_memory", NO_MEMORY))
        self._fill(body, frame, job, sizes)
        self._schedule(body, frame, job)
        self._call(body, "work", job)
        self._call(body, "wait", job)
        failure = body.load(job, Job.failure.offset, type_=ADDRESS)
        self._call(body, "release", job)
        with build.if_then(self._is_there(body, failure)):
            build.ret(self._call(body, "error", frame, NUMBER(INTERNAL), failure))
        build.ret(ADDRESS(None))

    def _failure(self, body: Function, frame: Any, code: int, name: str, message: str) -> Any:
        constant = text(self._module, name, message)
        at = body.build.bitcast(constant, ADDRESS)
        return self._call(body, "error", frame, NUMBER(code), at)

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
            task=build.ptrtoint(self._functions["help"], WORD),
            data=build.ptrtoint(job, WORD),
        )
        destroyed = self._arguments(body, DestroyArguments)
        with body.times(body.load(plan, Plan.helpers.offset)):
            error = self._api(body, frame, SCHEDULE, asked)
            with build.if_then(self._is_there(body, error)):
                body.add(-1, job, Job.users.offset, "monotonic")
                body.store(error, destroyed, DestroyArguments.error.offset)
                self._api(body, frame, ERROR_DESTROY, destroyed)
