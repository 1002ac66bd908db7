"""The handler of `call_scripts` as machine code for x86-64: a loop over calls of C functions.

A function of Python's in the path of a call costs 10 to 20 µs, and holds the interpreter's lock.
There is no compiler on the user's machine, so the code stands here, assembled: its bytes, and what
the GNU assembler makes them of (a test assembles it again). It is called as a handler of XLA's FFI
(xla/ffi/api/c_api.h), in the System V ABI, with a pointer to the call's frame in rdi.

On its stack it has 24 words of arguments for the next call, of which the last six go to registers,
and 24 slots above them. It fills the slots with the addresses of operands and results. The first
operand is an array of addresses of scripts, and the handler's one attribute, an array, has the
number of the one whose calls it makes:

    rbp  the call's frame            r13  the slots
    rbx  the script                  r14  the next word of the script
    r12  the function                r15  the calls that are left
"""

import ctypes
import mmap
import platform
import sys
from collections.abc import Mapping

# Where the next call's arguments lie on the stack: the first six, then all others; then the slots.
REGISTERS, STACKED, SLOTS = 144, 0, 192
NUMBER_OF_SLOTS = 24

# Bytes, and the instruction or the label. In capitals: addresses, which are filled in.
LISTING = """
    f30f1efa              endbr64
    48837f0800            cmpq $0, 8(%rdi)
    0f8544010000          jne other
    837f2003              cmpl $3, 32(%rdi)
    0f853a010000          jne other
    55                    push %rbp
    53                    push %rbx
    4154                  push %r12
    4155                  push %r13
    4156                  push %r14
    4157                  push %r15
    4881ec88010000        sub $392, %rsp
    4889fd                mov %rdi, %rbp
    4c8dac24c0000000      lea 192(%rsp), %r13
    31c0                  xor %eax, %eax
    4c89ef                mov %r13, %rdi
    b918000000            mov $24, %ecx
    f348ab                rep stosq
    4c89ef                mov %r13, %rdi
    488b4d38              mov 56(%rbp), %rcx
    488b7548              mov 72(%rbp), %rsi
                          operands:
    4885c9                test %rcx, %rcx
    7417                  jz results_begin
    488b06                mov (%rsi), %rax
    488b4018              mov 24(%rax), %rax
    488907                mov %rax, (%rdi)
    4883c608              add $8, %rsi
    4883c708              add $8, %rdi
    48ffc9                dec %rcx
    ebe4                  jmp operands
                          results_begin:
    488b4d60              mov 96(%rbp), %rcx
    488b7570              mov 112(%rbp), %rsi
                          results:
    4885c9                test %rcx, %rcx
    7417                  jz script
    488b06                mov (%rsi), %rax
    488b4018              mov 24(%rax), %rax
    488907                mov %rax, (%rdi)
    4883c608              add $8, %rsi
    4883c708              add $8, %rdi
    48ffc9                dec %rcx
    ebe4                  jmp results
                          script:
    488b85a0000000        mov 160(%rbp), %rax
    488b00                mov (%rax), %rax
    488b4010              mov 16(%rax), %rax
    488b00                mov (%rax), %rax
    498b4d00              mov (%r13), %rcx
    488b1cc1              mov (%rcx,%rax,8), %rbx
    4c8b3b                mov (%rbx), %r15
    4c8d7308              lea 8(%rbx), %r14
                          step:
    4d85ff                test %r15, %r15
    0f8489000000          jz done
    4d8b26                mov (%r14), %r12
    498b4e08              mov 8(%r14), %rcx
    4983c610              add $16, %r14
                          argument:
    4885c9                test %rcx, %rcx
    7426                  jz invoke
    498b16                mov (%r14), %rdx
    498b4608              mov 8(%r14), %rax
    498b7610              mov 16(%r14), %rsi
    4983c618              add $24, %r14
    48ffc9                dec %rcx
    a801                  test $1, %al
    7403                  jz 1f
    4c01ee                add %r13, %rsi
    a802                  1:  test $2, %al
    7403                  jz 2f
    488b36                mov (%rsi), %rsi
    48893414              2:  mov %rsi, (%rsp,%rdx)
    ebd5                  jmp argument
                          invoke:
    488bbc2490000000      mov 144(%rsp), %rdi
    488bb42498000000      mov 152(%rsp), %rsi
    488b9424a0000000      mov 160(%rsp), %rdx
    488b8c24a8000000      mov 168(%rsp), %rcx
    4c8b8424b0000000      mov 176(%rsp), %r8
    4c8b8c24b8000000      mov 184(%rsp), %r9
    41ffd4                call *%r12
    85c0                  test %eax, %eax
    7505                  jnz failed
    49ffcf                dec %r15
    eb85                  jmp step
                          failed:
    4889ef                mov %rbp, %rdi
    4c89ee                mov %r13, %rsi
    4c89e2                mov %r12, %rdx
    48b82222222222222222  movabs $FAIL, %rax
    ffd0                  call *%rax
    eb02                  jmp leave
                          done:
    31c0                  xor %eax, %eax
                          leave:
    4881c488010000        add $392, %rsp
    415f                  pop %r15
    415e                  pop %r14
    415d                  pop %r13
    415c                  pop %r12
    5b                    pop %rbx
    5d                    pop %rbp
    c3                    ret
                          other:
    48b83333333333333333  movabs $OTHER, %rax
    ffe0                  jmp *%rax
"""
_ADDRESSES = {"FAIL": b"\x22" * 8, "OTHER": b"\x33" * 8}


def can_run() -> bool:
    """Whether the code is for this processor and system."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def code() -> bytes:
    """The bytes of the listing."""
    return bytes.fromhex("".join(line[4:26] for line in LISTING.splitlines()))


def load(addresses: Mapping[str, int]) -> int:
    """Put the code into memory of its own, for good; returns its address.

    Args:
        addresses: of the function `void* (frame, slots, function)` that makes an error of the
            failure of a function that a script calls (FAIL), and of the handler for all that is no
            call (OTHER).

    Raises:
        OSError: the system gives this process no memory whose contents run.
    """
    filled = code()
    for name, mark in _ADDRESSES.items():
        filled = filled.replace(mark, addresses[name].to_bytes(8, "little"))
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(filled)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _loaded.append(memory)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(start, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect gives no memory that runs")
    return start


_loaded: list[mmap.mmap] = []
