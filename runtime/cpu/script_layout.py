"""Plans and scripts in memory: what `call_scripts` writes and `script_runner` reads.

All are arrays of 64-bit words. A plan is

    the number of parts; how many threads are to help; how often each of them looks for the next
    call before it leaves; for each part the addresses of its script and of the one that is run if
    that fails, or 0

and a script is

    the number of calls; then for each call the address of the function, that of the message of its
    failure (a text that ends with 0), and the number of its words; and for each of these its place,
    a kind and a value

A place is an offset in bytes in the workspace of the thread, in which the arguments of a call are
first, and slots behind them. A word is the value, plus what the bits of its kind say.
"""

import ctypes

# The name under which XLA knows the handler.
TARGET = "xla_dynamo.script"
WORD = 8
# The most arguments of a call, and the most operands and results of a custom call together.
MOST_ARGUMENTS, MOST_ADDRESSES = 14, 12
# The first slots hold the addresses of operands and results, and the others are free.
NUMBER_OF_SLOTS = 40
ARGUMENTS, SLOTS = 0, WORD * MOST_ARGUMENTS
WORKSPACE = MOST_ARGUMENTS + NUMBER_OF_SLOTS
# What is added to a value: the address of the slots; whether the word at the sum is meant; and from
# this bit on a number that is added to that.
IN_SLOTS, LOADED, OFFSET = 1, 2, 8

# How often a thread that stays looks for the next call: about 200 µs.
LOOKS = 1 << 13


class Plan(ctypes.Structure):
    """How a plan begins."""

    _fields_ = [("parts", ctypes.c_int64), ("helpers", ctypes.c_int64), ("looks", ctypes.c_int64)]


class Part(ctypes.Structure):
    """A part of a plan: the address of its script, and of the one for its failure, or 0."""

    _fields_ = [("script", ctypes.c_int64), ("second", ctypes.c_int64)]


class Call(ctypes.Structure):
    """How a call in a script begins."""

    _fields_ = [
        ("function", ctypes.c_int64),
        ("failure", ctypes.c_int64),
        ("words", ctypes.c_int64),
    ]


class Word(ctypes.Structure):
    """A word that is written into the workspace before a call."""

    _fields_ = [("place", ctypes.c_int64), ("kind", ctypes.c_int64), ("value", ctypes.c_int64)]


class Job(ctypes.Structure):
    """What the threads of a call share, on the heap; the last one frees it.

    Attributes:
        users: how many still use it: who has made it, and those who are to help.
        taken: how many parts were taken; each thread adds one more when there are no others.
        parts: how many there are.
        done: how many are done.
        plan: its address.
        looks: how often a thread that has helped looks for the next call.
        core: the core of the thread that has made the call.
        failure: the address of a failure's message, or 0.
        addresses: of operands and results.
    """

    _fields_ = [
        ("users", ctypes.c_int64),
        ("taken", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("done", ctypes.c_int64),
        ("plan", ctypes.c_int64),
        ("looks", ctypes.c_int64),
        ("core", ctypes.c_int64),
        ("failure", ctypes.c_int64),
        ("addresses", ctypes.c_int64 * MOST_ADDRESSES),
    ]
