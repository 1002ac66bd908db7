"""The handler of `call_scripts` as machine code for x86-64.

A function of Python's in the path of a call costs 10 to 20 µs, and holds the interpreter's lock.
There is no compiler on the user's machine, so the code stands here, assembled: its bytes, and what
the GNU assembler makes them of (a test assembles it again). All follows the System V ABI.

The handler is called as one of XLA's FFI (xla/ffi/api/c_api.h), with a pointer to the call's frame
in rdi. The first operand is an array of addresses of plans (see `call_scripts`), and the handler's
one attribute, an array, has the number of the plan. The plan's parts are shared with threads of
XLA's pool: whoever has time takes the next one, so none waits for a thread that is not there. What
the threads share is a job on the heap, which the last one frees:

    0  who still uses it        16  the number of parts     32  the plan
    8  the next part to take    24  the parts that are done 40  the function that failed, or 0
    64 the addresses of operands and results, at most 8

`parts` runs scripts. On its stack it has 6 words of arguments for the next call, the number of
OpenMP's threads to be restored, the script to be tried if this one fails, and 24 slots:

    rbx  the job                 r12  the function       r14  the next word of the script
    r13  the slots               r15  the calls that are left

Below are functions for scripts to call: `forget` clears the flags of floating-point exceptions,
`invalid` says whether an operation was invalid since, as a maximum with NaN is, and `clamp` brings
rsi floats at rdi between the bounds at rdx, each four times; it leaves NaN as it is.
"""

import ctypes
import mmap
import platform
import sys
from collections.abc import Mapping

# Where the next call's arguments lie on the stack, and then the slots.
ARGUMENTS, SLOTS = 0, 64
MOST_ARGUMENTS, NUMBER_OF_SLOTS = 6, 24

# Bytes, and the instruction or the label. In capitals: addresses, which are filled in.
LISTING = """
    f30f1efa              endbr64
    48837f0800            cmpq $0, 8(%rdi)
    0f8563010000          jne other
    837f2003              cmpl $3, 32(%rdi)
    0f8559010000          jne other
    55                    push %rbp
    53                    push %rbx
    4154                  push %r12
    4155                  push %r13
    4156                  push %r14
    4157                  push %r15
    4883ec48              sub $72, %rsp
    4889fd                mov %rdi, %rbp
    bf80000000            mov $128, %edi
    48b81111111111111111  movabs $MALLOC, %rax
    ffd0                  call *%rax
    4889c3                mov %rax, %rbx
    488d7b40              lea 64(%rbx), %rdi
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
    7417                  jz plan
    488b06                mov (%rsi), %rax
    488b4018              mov 24(%rax), %rax
    488907                mov %rax, (%rdi)
    4883c608              add $8, %rsi
    4883c708              add $8, %rdi
    48ffc9                dec %rcx
    ebe4                  jmp results
                          plan:
    488b85a0000000        mov 160(%rbp), %rax
    488b00                mov (%rax), %rax
    488b4010              mov 16(%rax), %rax
    488b00                mov (%rax), %rax
    488b4b40              mov 64(%rbx), %rcx
    488b0cc1              mov (%rcx,%rax,8), %rcx
    488b01                mov (%rcx), %rax
    48894310              mov %rax, 16(%rbx)
    4c8b6108              mov 8(%rcx), %r12
    48894b20              mov %rcx, 32(%rbx)
    31c0                  xor %eax, %eax
    48894308              mov %rax, 8(%rbx)
    48894318              mov %rax, 24(%rbx)
    48894328              mov %rax, 40(%rbx)
    498d442401            lea 1(%r12), %rax
    488903                mov %rax, (%rbx)
                          schedule:
    4d85e4                test %r12, %r12
    745d                  jz work
    48c7042428000000      movq $40, (%rsp)
    48c744240800000000    movq $0, 8(%rsp)
    488b4518              mov 24(%rbp), %rax
    4889442410            mov %rax, 16(%rsp)
    488d0590000000        lea helper(%rip), %rax
    4889442418            mov %rax, 24(%rsp)
    48895c2420            mov %rbx, 32(%rsp)
    4889e7                mov %rsp, %rdi
    488b4510              mov 16(%rbp), %rax
    ff9088000000          call *136(%rax)
    4885c0                test %rax, %rax
    741b                  jz scheduled
    f048ff0b              lock decq (%rbx)
    48c7042418000000      movq $24, (%rsp)
    4889442410            mov %rax, 16(%rsp)
    4889e7                mov %rsp, %rdi
    488b4510              mov 16(%rbp), %rax
    ff5040                call *64(%rax)
                          scheduled:
    49ffcc                dec %r12
    eb9e                  jmp schedule
                          work:
    4889df                mov %rbx, %rdi
    e86c000000            call parts
                          wait:
    f390                  pause
    488b4318              mov 24(%rbx), %rax
    483b4310              cmp 16(%rbx), %rax
    75f4                  jne wait
    4c8b6328              mov 40(%rbx), %r12
    4889df                mov %rbx, %rdi
    e841000000            call release
    31c0                  xor %eax, %eax
    4d85e4                test %r12, %r12
    7412                  jz leave
    4889ef                mov %rbp, %rdi
    4c89e6                mov %r12, %rsi
    48b85555555555555555  movabs $FAIL, %rax
    ffd0                  call *%rax
                          leave:
    4883c448              add $72, %rsp
    415f                  pop %r15
    415e                  pop %r14
    415d                  pop %r13
    415c                  pop %r12
    5b                    pop %rbx
    5d                    pop %rbp
    c3                    ret
                          other:
    48b86666666666666666  movabs $OTHER, %rax
    ffe0                  jmp *%rax
                          helper:
    53                    push %rbx
    4889fb                mov %rdi, %rbx
    e817000000            call parts
    4889df                mov %rbx, %rdi
    5b                    pop %rbx
                          release:
    f048ff0f              lock decq (%rdi)
    750c                  jnz released
    48b82222222222222222  movabs $FREE, %rax
    ffe0                  jmp *%rax
                          released:
    c3                    ret
                          parts:
    55                    push %rbp
    53                    push %rbx
    4154                  push %r12
    4155                  push %r13
    4156                  push %r14
    4157                  push %r15
    4881ec08010000        sub $264, %rsp
    4889fb                mov %rdi, %rbx
    48b83333333333333333  movabs $GET_THREADS, %rax
    ffd0                  call *%rax
    4889442430            mov %rax, 48(%rsp)
    bf01000000            mov $1, %edi
    48b84444444444444444  movabs $SET_THREADS, %rax
    ffd0                  call *%rax
    4c8d6c2440            lea 64(%rsp), %r13
                          next:
    b801000000            mov $1, %eax
    f0480fc14308          lock xadd %rax, 8(%rbx)
    483b4310              cmp 16(%rbx), %rax
    0f8dc9000000          jge finished
    48c1e004              shl $4, %rax
    48034320              add 32(%rbx), %rax
    4c8b7010              mov 16(%rax), %r14
    488b4018              mov 24(%rax), %rax
    4889442438            mov %rax, 56(%rsp)
    4c89ef                mov %r13, %rdi
    488d7340              lea 64(%rbx), %rsi
    b908000000            mov $8, %ecx
    f348a5                rep movsq
    31c0                  xor %eax, %eax
    b910000000            mov $16, %ecx
    f348ab                rep stosq
                          script:
    4d8b3e                mov (%r14), %r15
    4983c608              add $8, %r14
                          step:
    4d85ff                test %r15, %r15
    0f8481000000          jz done
    4d8b26                mov (%r14), %r12
    498b4e08              mov 8(%r14), %rcx
    4983c610              add $16, %r14
                          argument:
    4885c9                test %rcx, %rcx
    742d                  jz invoke
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
    48c1e808              2:  shr $8, %rax
    4801c6                add %rax, %rsi
    48893414              mov %rsi, (%rsp,%rdx)
    ebce                  jmp argument
                          invoke:
    488b3c24              mov (%rsp), %rdi
    488b742408            mov 8(%rsp), %rsi
    488b542410            mov 16(%rsp), %rdx
    488b4c2418            mov 24(%rsp), %rcx
    4c8b442420            mov 32(%rsp), %r8
    4c8b4c2428            mov 40(%rsp), %r9
    41ffd4                call *%r12
    85c0                  test %eax, %eax
    7505                  jnz failed
    49ffcf                dec %r15
    eb91                  jmp step
                          failed:
    4c8b742438            mov 56(%rsp), %r14
    48c744243800000000    movq $0, 56(%rsp)
    4d85f6                test %r14, %r14
    0f8573ffffff          jnz script
    4c896328              mov %r12, 40(%rbx)
                          done:
    f048ff4318            lock incq 24(%rbx)
    e922ffffff            jmp next
                          finished:
    488b7c2430            mov 48(%rsp), %rdi
    48b84444444444444444  movabs $SET_THREADS, %rax
    ffd0                  call *%rax
    4881c408010000        add $264, %rsp
    415f                  pop %r15
    415e                  pop %r14
    415d                  pop %r13
    415c                  pop %r12
    5b                    pop %rbx
    5d                    pop %rbp
    c3                    ret
                          forget:
    0fae5c24fc            stmxcsr -4(%rsp)
    836424fcc0            andl $-64, -4(%rsp)
    0fae5424fc            ldmxcsr -4(%rsp)
    31c0                  xor %eax, %eax
    c3                    ret
                          invalid:
    0fae5c24fc            stmxcsr -4(%rsp)
    8b4424fc              mov -4(%rsp), %eax
    83e001                and $1, %eax
    c3                    ret
                          clamp:
    0f100a                movups (%rdx), %xmm1
    0f105210              movups 16(%rdx), %xmm2
                          four:
    4883ee04              sub $4, %rsi
    7c18                  jl rest
    0f28c1                movaps %xmm1, %xmm0
    0f101f                movups (%rdi), %xmm3
    0f5fc3                maxps %xmm3, %xmm0
    0f28e2                movaps %xmm2, %xmm4
    0f5de0                minps %xmm0, %xmm4
    0f1127                movups %xmm4, (%rdi)
    4883c710              add $16, %rdi
    ebe2                  jmp four
                          rest:
    4883c604              add $4, %rsi
                          one:
    4883ee01              sub $1, %rsi
    7c1c                  jl clamped
    0f28c1                movaps %xmm1, %xmm0
    f30f101f              movss (%rdi), %xmm3
    f30f5fc3              maxss %xmm3, %xmm0
    0f28e2                movaps %xmm2, %xmm4
    f30f5de0              minss %xmm0, %xmm4
    f30f1127              movss %xmm4, (%rdi)
    4883c704              add $4, %rdi
    ebde                  jmp one
                          clamped:
    31c0                  xor %eax, %eax
    c3                    ret
"""
_ADDRESSES = {
    name: bytes([number]) * 8
    for name, number in (
        ("MALLOC", 0x11),
        ("FREE", 0x22),
        ("GET_THREADS", 0x33),
        ("SET_THREADS", 0x44),
        ("FAIL", 0x55),
        ("OTHER", 0x66),
    )
}


def can_run() -> bool:
    """Whether the code is for this processor and system."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def code() -> bytes:
    """The bytes of the listing."""
    return bytes.fromhex("".join(line[4:26] for line in LISTING.splitlines()))


def _labels() -> dict[str, int]:
    """Where the labels are in the code."""
    found, length = {}, 0
    for line in LISTING.splitlines():
        if line.endswith(":"):
            found[line.strip(" :")] = length
        length += len(bytes.fromhex(line[4:26]))
    return found


def load(addresses: Mapping[str, int]) -> dict[str, int]:
    """Put the code into memory of its own, for good.

    Args:
        addresses: of `malloc` and `free`, of OpenMP's `omp_get_max_threads` (GET_THREADS) and
            `omp_set_num_threads`, of the function `void* (frame, function)` that makes an error of
            the failure of a function that a script calls (FAIL), and of the handler for all that is
            no call (OTHER).

    Returns:
        The addresses of the handler and of what else has a label.

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
    return {"handler": start, **{label: start + place for label, place in _labels().items()}}


_loaded: list[mmap.mmap] = []
