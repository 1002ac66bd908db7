"""Calls of the handler of scripts as XLA makes them, with an API of our own behind the frame."""

import ctypes
import threading

from xla_dynamo.runtime.cpu import ffi_structures as ffi
from xla_dynamo.runtime.cpu.call_scripts import Plan, compiled

_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_OURS = 4711  # the address of an error
STATUS = ctypes.CFUNCTYPE(ctypes.c_int)


_functions = []


def function(body, name="f", arguments=0):
    """A function of C with 64-bit arguments, which runs Python; it returns 0 for None.

    It is kept: scripts have its address alone.
    """
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * arguments)
    made = kind(lambda *given: body(*given) or 0)
    made.__name__ = name
    _functions.append(made)
    return made


class Handler:
    """The handler, compiled for itself, whose surroundings are Python functions.

    Attributes:
        errors: the codes and the messages of the errors that it has made.
        destroyed: how many errors of the API it has given back.
        threads: what it has set OpenMP's number of threads to.
        living: jobs that are allocated and not freed.
        yields, sleeps: how often it has let others run, and slept.
        scheduled: how often it has asked the pool for a thread.
        cores: the sets of the first 64 cores, as bits, that threads were told to be on.
    """

    def __init__(self, *, has_memory=True, pool="threads", threads=None, core=None):
        """`pool` says what happens to what is scheduled: "threads", "inline", "late", "none".

        `threads` are the functions that tell and set OpenMP's number of threads, if not ours, and
        `core` tells the core of the thread that calls it, if not the system.
        """
        self.errors, self.threads, self.cores = [], [], []
        self.destroyed = self.living = self.yields = self.sleeps = self.scheduled = 0
        self._pool, self._waiting, self._started = pool, [], []
        self._lock = threading.Lock()
        c = ctypes.CDLL(None)
        c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        c.free.restype, c.free.argtypes = None, [ctypes.c_void_p]

        def malloc(size):
            self._count("living", 1)
            return c.malloc(size) if has_memory else None

        def free(address):
            self._count("living", -1)
            c.free(address)

        kinds = ctypes.CFUNCTYPE
        self._held = {
            "malloc": kinds(ctypes.c_void_p, ctypes.c_size_t)(malloc),
            "free": kinds(None, ctypes.c_void_p)(free),
            "sched_yield": STATUS(lambda: self._count("yields", 1)),
            "usleep": kinds(ctypes.c_int, ctypes.c_uint)(self._sleep),
        }
        if core is not None:
            kind = kinds(ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
            self._held["sched_getcpu"] = STATUS(core)
            self._held["sched_getaffinity"] = kind(self._tell_cores)
            self._held["sched_setaffinity"] = kind(self._choose_cores)
        threads = threads or (STATUS(lambda: 7), kinds(None, ctypes.c_int)(self.threads.append))
        addresses = compiled(threads, **self._held)
        self._held["threads"] = threads
        self._call = _Function(addresses["handler"])
        self._api = self._made_api()

    def _count(self, name, by):
        with self._lock:
            setattr(self, name, getattr(self, name) + by)
        return 0

    def _sleep(self, microseconds):
        threading.Event().wait(microseconds / 1e6)
        return self._count("sleeps", 1)

    def _tell_cores(self, thread, size, address):
        assert (thread, size) == (0, 128)
        ctypes.memset(address, 0, size)
        ctypes.c_uint64.from_address(address).value = 0b1111
        return 0

    def _choose_cores(self, thread, size, address):
        assert (thread, size) == (0, 128)
        self.cores.append(ctypes.c_uint64.from_address(address).value)
        return 0

    def _made_api(self):
        api = ffi.Api()
        for number, body in (
            (ffi.ERROR_CREATE, self._error),
            (ffi.ERROR_DESTROY, self._destroy),
            (ffi.SCHEDULE, self._schedule),
        ):
            self._held[number] = _Function(body)
            api.functions[number] = ctypes.cast(self._held[number], ctypes.c_void_p)
        return api

    def _error(self, address):
        given = ffi.ErrorArguments.from_address(address)
        assert given.struct_size == ctypes.sizeof(given)
        self.errors.append((given.code, given.message.decode()))
        return _OURS

    def _destroy(self, address):
        assert ffi.DestroyArguments.from_address(address).error == _OURS
        self._count("destroyed", 1)

    def _schedule(self, address):
        given = ffi.ScheduleArguments.from_address(address)
        assert given.context == 99
        self._count("scheduled", 1)
        task, data = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(given.task), given.data
        if self._pool == "none":
            return _OURS
        if self._pool == "inline":
            task(data)
        elif self._pool == "late":
            self._waiting.append((task, data))
        else:
            self._started.append(threading.Thread(target=task, args=[data]))
            self._started[-1].start()
        return None

    def finish(self):
        """Let all that is scheduled run to its end."""
        for task, data in self._waiting:
            task(data)
        for thread in self._started:
            thread.join()
        self._waiting, self._started = [], []

    def call(self, plans, number=0, operands=(), results=(), stage=ffi.EXECUTE):
        """Call a plan of some; returns whether all was well.

        Beside the array of the plans' addresses, the operands and results are arrays of ctypes.
        """
        addresses = (ctypes.c_int64 * len(plans))(*[plan.address for plan in plans])
        index = ctypes.c_int64(number)
        attribute = ffi.Array(0, 1, ctypes.addressof(index))
        frame = ffi.Frame(ctypes.sizeof(ffi.Frame), None, ctypes.addressof(self._api), 99, stage)
        held = [_fill(frame.operands, [addresses, *operands]), _fill(frame.results, results)]
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(attribute))
        frame.attributes.size = 1
        frame.attributes.values = ctypes.cast(pointer, type(frame.attributes.values))
        error = self._call(ctypes.addressof(frame))
        assert error in (None, _OURS)
        assert held
        return error is None


def _fill(values, arrays):
    """Make arrays the buffers of operands or results; returns what holds them."""
    buffers = [ffi.Buffer(data=ctypes.addressof(array)) for array in arrays]
    pointers = (ctypes.POINTER(ffi.Buffer) * len(buffers))(*map(ctypes.pointer, buffers))
    values.size = len(buffers)
    values.values = ctypes.cast(pointers, type(values.values))
    return buffers, pointers


def plan(*scripts, helpers=0, stays=False):
    """A plan whose parts have one script each, or a pair."""
    parts = [s if isinstance(s, tuple) else (s, None) for s in scripts]
    return Plan(parts, helpers, stays=stays)
