"""How threads wait for each other, in LLVM IR: for parts that others do, and for the next call."""

from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir

from xla_dynamo.runtime.cpu import script_layout as layout
from xla_dynamo.runtime.cpu.llvm_functions import ADDRESS, NUMBER, WORD, Function
from xla_dynamo.runtime.cpu.script_layout import Job

# Who waits looks so often, with pauses between, which take about a millisecond together. Then it
# looks so often again, and lets other threads have its core between. Then it sleeps between.
SPINS, YIELDS, SLEEP_US = 1 << 15, 1 << 12, 100
# How many threads stay for the next call, what their places hold when nobody stays, and when one
# waits; and after how many looks it lets other threads have its core.
_STAYING, _NOBODY, _WAITING, _LOOKS_BETWEEN = 8, WORD(0), WORD(1), 32
# The bytes of a set of cores, as the kernel has it for 1,024 of them.
_CORES = 128
_NOTHING, _TRUTH = ir.VoidType(), ir.IntType(1)
# C's functions that tell and choose the core of a thread, where there are such (Linux).
CORE_FUNCTIONS = {
    "sched_getcpu": ir.FunctionType(NUMBER, []),
    "sched_getaffinity": ir.FunctionType(NUMBER, [NUMBER, WORD, ADDRESS]),
    "sched_setaffinity": ir.FunctionType(NUMBER, [NUMBER, WORD, ADDRESS]),
}
# What tells the processor that a thread waits: "pause" of x86, and "yield" of Arm, hint 1.
_PAUSE: dict[str, tuple[str, list[Any]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [NUMBER(1)]),
}
Pause: TypeAlias = Callable[[ir.IRBuilder], Any]


class Module:
    """A module that is written: its functions by name, those that it calls among them."""

    def __init__(self, module: ir.Module, functions: dict[str, ir.Function]) -> None:
        """Take a module and the functions that it calls, C's `sched_yield` and `usleep` too."""
        self.module, self._functions = module, functions

    def begin(self, name: str, result: ir.Type, *arguments: ir.Type, **how: Any) -> Function:
        """Begin a function, which others may call by its name then."""
        body = Function(self.module, name, result, arguments, **how)
        self._functions[name] = body.function
        return body

    def call(self, body: Function, name: str, *arguments: Any) -> Any:
        """Call a function of this name."""
        return body.build.call(self._functions[name], arguments)

    def address_of(self, name: str) -> Any:
        """The address of a function of this name."""
        return self._functions[name]

    def write_waiting(self, architecture: str) -> None:
        """Write `wait`, `stay`, `give`, `core` and `leave`."""
        name, given = _PAUSE[architecture]
        known = ir.Function(self.module, ir.FunctionType(_NOTHING, [x.type for x in given]), name)

        def pause(build: ir.IRBuilder) -> None:
            build.call(known, given)

        self._wait(pause)
        self._stay(pause)
        self._give()
        self._core()
        self._leave()

    def _wait(self, pause: "Pause") -> None:
        """`wait(job)`: until all parts are done.

        It is called when all are taken. So each that is not done is being done, by a thread that
        runs, and the wait ends when the last of their calls returns: it depends on no thread that
        is yet to come, and on no lock. There is no limit of time. After one the call would fail,
        and XLA would reuse memory that a late thread still writes to: a wrong number elsewhere.
        What is limited is how long a core is held by waiting.
        """
        body = self.begin("wait", _NOTHING, ADDRESS)
        (job,), build = body.arguments, body.build
        parts = body.load(job, Job.parts.offset)
        place = body.address(job, Job.done.offset)
        with body.forever() as turn:
            done = build.load_atomic(place, "acquire", layout.WORD, typ=WORD)
            with build.if_then(build.icmp_unsigned("==", done, parts)):
                build.ret_void()
            with build.if_else(build.icmp_unsigned("<", turn, WORD(SPINS))) as (soon, later):
                with soon:
                    pause(build)
                with later:
                    turns = WORD(SPINS + YIELDS)
                    with build.if_else(build.icmp_unsigned("<", turn, turns)) as (first, then):
                        with first:
                            self.call(body, "sched_yield")
                        with then:
                            self.call(body, "usleep", NUMBER(SLEEP_US))

    def _stay(self, pause: "Pause") -> None:
        """`stay(looks, most)`: the job that a call gives to this thread while it looks, or null.

        A thread of the pool that sleeps comes some 50 µs late, when a product of few rows is done.
        Who looks has a place in `staying`, where a call puts its job. So each job that is there is
        taken. Other threads may have the core between. No more threads stay than a call has
        helpers: they would take cores from those who work.
        """
        kind = ir.ArrayType(WORD, _STAYING)
        places = ir.GlobalVariable(self.module, kind, "staying")
        places.linkage, places.initializer = "internal", ir.Constant(kind, None)
        self._staying = places.bitcast(ADDRESS)
        body = self.begin("stay", ADDRESS, WORD, WORD)
        (looks, most), build = body.arguments, body.build
        with build.if_then(build.icmp_unsigned("==", looks, WORD(0))):
            build.ret(ADDRESS(None))
        are_few = build.icmp_unsigned("<", most, WORD(_STAYING))
        with body.times(build.select(are_few, most, WORD(_STAYING))) as number:
            place = self._place(body, number)
            with build.if_then(self._exchanged(body, place, _NOBODY, _WAITING)):
                with body.times(looks) as turn:
                    found = build.load_atomic(place, "monotonic", layout.WORD, typ=WORD)
                    with build.if_then(build.icmp_unsigned("!=", found, _WAITING)):
                        build.ret(self._taken(body, place))
                    pause(build)
                    every = build.and_(turn, WORD(_LOOKS_BETWEEN - 1))
                    with build.if_then(build.icmp_unsigned("==", every, WORD(0))):
                        self.call(body, "sched_yield")
                with build.if_then(self._exchanged(body, place, _WAITING, _NOBODY)):
                    build.ret(ADDRESS(None))
                build.ret(self._taken(body, place))
        build.ret(ADDRESS(None))

    def _place(self, body: Function, number: Any) -> Any:
        return body.address(self._staying, body.build.mul(number, WORD(layout.WORD)))

    def _exchanged(self, body: Function, place: Any, old: Any, new: Any) -> Any:
        """Whether a word that threads share was an old one, and has become a new one."""
        both = body.build.cmpxchg(place, old, new, "acq_rel", "monotonic")
        return body.build.extract_value(both, 1)

    def _taken(self, body: Function, place: Any) -> Any:
        """The job that a call has put into the place of this thread, which leaves it."""
        job = body.build.atomic_rmw("xchg", place, _NOBODY, "acq_rel")
        return body.build.inttoptr(job, ADDRESS)

    def _give(self) -> None:
        """`give(job)`: whether a thread that has stayed takes the job."""
        body = self.begin("give", _TRUTH, ADDRESS)
        (job,), build = body.arguments, body.build
        with body.times(WORD(_STAYING)) as number:
            given = build.ptrtoint(job, WORD)
            with build.if_then(self._exchanged(body, self._place(body, number), _WAITING, given)):
                build.ret(_TRUTH(1))
        build.ret(_TRUTH(0))

    # --- cores ---------------------------------------------------------------------------------

    def _core(self) -> None:
        """`core()`: the number of the core that this thread is on; -1 where nobody tells."""
        body = self.begin("core", WORD)
        if "sched_getcpu" in self._functions:
            body.build.ret(body.build.sext(self.call(body, "sched_getcpu"), WORD))
        else:
            body.build.ret(WORD(-1))

    def _leave(self) -> None:
        """`leave(core)`: go to another core, if this thread is on that one.

        The kernel lets two threads that are awake share a core for some milliseconds while another
        core has nothing to do. So a thread goes by saying that it may be anywhere else, and then
        that it may be where it could be before.
        """
        body = self.begin("leave", _NOTHING, WORD)
        (core,), build = body.arguments, body.build
        if "sched_getcpu" not in self._functions:
            build.ret_void()
            return
        here = self.call(body, "core")
        known = build.icmp_unsigned("<", core, WORD(8 * _CORES))
        shared = build.and_(build.icmp_signed("==", here, core), known)
        with build.if_then(shared, likely=False):
            before, after = (body.variable(WORD, _CORES // layout.WORD) for _ in range(2))
            own = NUMBER(0), WORD(_CORES)
            failed = self.call(body, "sched_getaffinity", *own, before)
            with build.if_then(build.icmp_signed("==", failed, NUMBER(0))):
                for place in range(0, _CORES, layout.WORD):
                    body.store(body.load(before, place), after, place)
                place = build.mul(build.udiv(core, WORD(64)), WORD(layout.WORD))
                bit = build.shl(WORD(1), build.urem(core, WORD(64)))
                others = build.and_(body.load(after, place), build.not_(bit))
                body.store(others, after, place)
                # Without another core it is an error, and nothing changes.
                self.call(body, "sched_setaffinity", *own, after)
                self.call(body, "sched_setaffinity", *own, before)
        build.ret_void()
