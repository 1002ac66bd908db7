"""Variables of others: launchers write them, libraries and the system read them."""

from xla_dynamo.switches.switch import LAUNCHERS, LIBRARIES, SYSTEM, Switch, declare

_WHEN_JOINED = "when the process joins the others"
_BY_OTHERS = "by the library"


def _of_launcher(name: str, kind: str, meaning: str) -> Switch[str]:
    return declare(Switch(name, kind, "", meaning, _WHEN_JOINED, str, LAUNCHERS))


_NUMBER = "an integer, 0 or more"
RANK = _of_launcher("RANK", _NUMBER, "torchrun: the number of this process")
WORLD_SIZE = _of_launcher("WORLD_SIZE", "a positive integer", "torchrun: how many processes")
LOCAL_RANK = _of_launcher("LOCAL_RANK", _NUMBER, "torchrun: its number on this host")
LOCAL_WORLD_SIZE = _of_launcher(
    "LOCAL_WORLD_SIZE", "a positive integer", "torchrun: how many processes on this host"
)
MASTER_ADDR = _of_launcher(
    "MASTER_ADDR", "a host", "where the first process listens; Slurm needs it set by hand"
)
MASTER_PORT = _of_launcher("MASTER_PORT", "a port", "the port there")
RESTARTS = _of_launcher(
    "TORCHELASTIC_RESTART_COUNT", _NUMBER, "torchrun: how often it has started the job again"
)
AGENT_STORE = declare(
    Switch(
        "TORCHELASTIC_USE_AGENT_STORE",
        "True or False",
        "",
        "torch: whether the launcher holds the store at MASTER_PORT; `xla_dynamo.launch` does",
        _BY_OTHERS,
        str,
        LAUNCHERS,
        is_read_here=False,
    )
)
SLURM_PROCID = _of_launcher("SLURM_PROCID", _NUMBER, "Slurm: the number of this process")
SLURM_NTASKS = _of_launcher("SLURM_NTASKS", "a positive integer", "Slurm: how many processes")
SLURM_LOCALID = _of_launcher("SLURM_LOCALID", _NUMBER, "Slurm: its number on this host")
SLURM_NTASKS_PER_NODE = _of_launcher(
    "SLURM_NTASKS_PER_NODE", "a positive integer", "Slurm: how many processes on this host"
)


def _of_library(
    name: str,
    kind: str,
    meaning: str,
    when: str = _BY_OTHERS,
    *,
    otherwise: str = "",
    shapes_programs: bool = True,
    is_read_here: bool = False,
) -> Switch[str]:
    return declare(
        Switch(
            *(name, kind, "", meaning, when, str, LIBRARIES),
            otherwise=otherwise,
            shapes_programs=shapes_programs,
            is_read_here=is_read_here,
        )
    )


XLA_FLAGS = _of_library(
    "XLA_FLAGS",
    "flags of XLA, with spaces",
    "XLA's flags for the process; what they say comes before this package's own choices, and the "
    "option `xla_options` before both. `--xla_force_host_platform_device_count=8` is as "
    "CPU_NUM_DEVICES=8; `--xla_dump_to=FOLDER` writes HLO, and leaves executables out of the disk "
    "cache",
    "when the first program is compiled",
    is_read_here=True,
)
PREALLOCATE = _of_library(
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "true or false",
    "JAX: whether XLA claims three quarters of a GPU's memory at once. It is false here unless "
    "set, since torch's allocator lives on the same GPU",
    "when a GPU is first used",
    otherwise="false",
    shapes_programs=False,
    is_read_here=True,
)
PLUGINS = _of_library(
    "PJRT_NAMES_AND_LIBRARY_PATHS",
    "NAME:PATH, with commas",
    "JAX: PJRT plugins, and where their libraries are",
    "when the first program is compiled",
    is_read_here=True,
)
_THREADS = "XLA: how many threads its pool on the CPU has, and calls of oneDNN take"
_CORES = "the cores that the process may use"
PJRT_NPROC = _of_library(
    "PJRT_NPROC",
    "a positive integer; XLA ignores other texts",
    _THREADS,
    otherwise=_CORES,
    is_read_here=True,
)
NPROC = _of_library(
    "NPROC",
    "a positive integer; XLA ignores other texts",
    "XLA: the same, where PJRT_NPROC is not set",
    otherwise=_CORES,
    is_read_here=True,
)
_of_library(
    "OMP_NUM_THREADS",
    "a positive integer",
    "OpenMP: how many threads eager torch takes, and torch's kernels that programs call",
    otherwise="the cores",
)
_of_library("JAX_PLATFORMS", "names with commas", "JAX: the platforms that it may use")
_of_library("JAX_ENABLE_X64", "true or false", "JAX: whether its functions have 64-bit types")
_of_library("CUDA_VISIBLE_DEVICES", "numbers with commas", "CUDA: the GPUs that the process has")
_of_library(
    "ONEDNN_MAX_CPU_ISA",
    "AVX2, AVX512_CORE, ...",
    "oneDNN: the newest instructions that its code may use, as if the processor had no others",
    otherwise="all that it has",
)
_of_library(
    "TORCH_COMPILE_DISABLE", "0 or 1", "torch: whether `torch.compile` leaves all to eager torch"
)
_of_library(
    "TORCH_LOGS",
    "names of logs with commas",
    "torch: `xla_dynamo` tells of each graph and each executable, `+xla_dynamo` of their StableHLO "
    "too; `graph_breaks`, `recompiles` and `guards` are Dynamo's",
    "at `import torch`",
    shapes_programs=False,
)
_of_library(
    "TORCH_TRACE",
    "a folder",
    "torch: Dynamo writes its trace there, for tlparse",
    "at `import torch`",
    shapes_programs=False,
)


def _of_system(name: str, kind: str, meaning: str, when: str = "when it matters") -> Switch[str]:
    return declare(Switch(name, kind, "", meaning, when, str, SYSTEM))


_CACHES = "the user's folder of caches, in which the disk cache is by default"
_AT_CACHE = "at the first compilation"
XDG_CACHE_HOME = _of_system("XDG_CACHE_HOME", "a folder", f"{_CACHES} (Linux)", _AT_CACHE)
LOCALAPPDATA = _of_system("LOCALAPPDATA", "a folder", f"{_CACHES} (Windows)", _AT_CACHE)
_NO_LINE = "no line of progress is shown"
_AT_COMPILATION = "at each compilation"
TERM = _of_system("TERM", "a terminal", f"where it is `dumb`, {_NO_LINE}", _AT_COMPILATION)
# Who sets one of these says that nobody looks: CI services, tests, notebooks' kernels.
UNWATCHED = tuple(
    _of_system(name, "any text", f"where it is set, {_NO_LINE}", _AT_COMPILATION)
    for name in ("CI", "PYTEST_CURRENT_TEST", "JPY_PARENT_PID")
)
# A user who sets one of these has chosen other settings of glibc's allocator.
ALLOCATOR = tuple(
    _of_system(
        name,
        "any text",
        "where it is set, glibc's allocator stays as it says; else it keeps large blocks that "
        "programs free and need again",
        "when the CPU is first used",
    )
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
)
PYTHONPATH = _of_system(
    "PYTHONPATH",
    "folders",
    "`python -m xla_dynamo.torch_xla` adds a folder, so that processes that the script starts find "
    "`torch_xla`, too",
    "when it starts",
)
