"""PyTorch/XLA's variables that do the same here."""

from xla_dynamo.switches.switch import (
    FLAG,
    PYTORCH_XLA,
    Switch,
    count,
    declare,
    flag,
    positive,
)

MOST_CPU_DEVICES = 1024
# Variables of PyTorch/XLA that nothing reads here, and what to do instead.
_AS_DUMP = "XLA_DYNAMO_DUMP writes each program, and an error names its operator and line"
_AS_DTYPES = 'dtypes are as the program says: take `torch.autocast("xla")` or `model.bfloat16()`'
IGNORED = {
    "XLA_USE_BF16": _AS_DTYPES,
    "XLA_DOWNCAST_BF16": _AS_DTYPES,
    "XLA_USE_F16": _AS_DTYPES,
    "XLA_USE_32BIT_LONG": "int64 stays int64: take int32 where that is enough",
    "XLA_PERSISTENT_CACHE_PATH": "the disk cache is on, and XLA_DYNAMO_CACHE_DIR is its folder",
    "XLA_USE_SPMD": "marks alone partition programs (docs/sharding.md)",
    "TPU_NUM_DEVICES": "all devices that PJRT finds are used",
    "GPU_NUM_DEVICES": "all devices that PJRT finds are used",
    "XLA_IR_DEBUG": "operations have the user's lines in any case",
    "XLA_SAVE_TENSORS_FILE": _AS_DUMP,
    "XLA_SAVE_TENSORS_FMT": _AS_DUMP,
    "XLA_SAVE_HLO_FILE": _AS_DUMP,
    "XLA_DUMP_HLO_GRAPH": _AS_DUMP,
    "XLA_SYNC_WAIT": "`sync()` waits for the results, `sync(wait=False)` does not",
    "XLA_METRICS_PERCENTILES": "the report has PyTorch/XLA's usual percentiles",
    "XLA_STABLEHLO_COMPILE": "programs are StableHLO in any case",
}
GRAPH_FORMATS = ("text", "dot", "hlo", "stablehlo")


def _cpu_devices(text: str) -> int:
    if (number := positive(text)) > MOST_CPU_DEVICES:
        raise ValueError(text)
    return number


def _graph_format(text: str) -> str:
    if text not in GRAPH_FORMATS:
        raise ValueError(text)
    return text


CPU_NUM_DEVICES: Switch[int | None] = declare(
    Switch(
        "CPU_NUM_DEVICES",
        f"an integer from 1 to {MOST_CPU_DEVICES}",
        None,
        "as how many devices the CPU appears (docs/sharding.md); `torch_xla.launch` starts so many "
        "processes",
        "when the first program is compiled",
        _cpu_devices,
        PYTORCH_XLA,
        otherwise="what XLA_FLAGS says, or 1",
        shapes_programs=True,
    )
)
PJRT_DEVICE = declare(
    Switch(
        "PJRT_DEVICE",
        "the name of a PJRT platform, such as CPU, CUDA or TPU",
        "",
        "where the device 'xla' computes; programs of `torch.compile` run where their tensors are",
        "when the device is first used",
        str,
        PYTORCH_XLA,
        otherwise="CUDA where torch has a GPU, else CPU",
        shapes_programs=True,
    )
)
DYNAMIC_PLUGINS = declare(
    Switch(
        "PJRT_DYNAMIC_PLUGINS",
        FLAG,
        False,
        "whether PJRT_DEVICE names a plugin that was registered by `torch_xla`'s "
        "`plugins.register_plugin`",
        "when plugins are asked for",
        flag,
        PYTORCH_XLA,
    )
)
AUTO_SPMD = declare(
    Switch(
        "XLA_AUTO_SPMD",
        FLAG,
        False,
        "programs on the device 'xla' choose shardings, as after `use_spmd(auto=True)` "
        "(docs/sharding.md)",
        "at each new program",
        flag,
        PYTORCH_XLA,
        shapes_programs=True,
    )
)
AUTO_SPMD_MESH = declare(
    Switch(
        "XLA_AUTO_SPMD_MESH",
        "sizes with commas, whose product is the number of devices, as in 4,2",
        "",
        "the shape of the mesh for which shardings are chosen",
        "when shardings are chosen",
        str,
        PYTORCH_XLA,
        otherwise="all shapes of up to two axes are tried",
        shapes_programs=True,
    )
)
DEBUG_LEVEL = declare(
    Switch(
        "PT_XLA_DEBUG_LEVEL",
        "an integer, 0 or more",
        0,
        "1 tells why each program of the device 'xla' is compiled, and at the end what came too "
        "often; 2 tells each execution, too",
        "at each program",
        count,
        PYTORCH_XLA,
    )
)
DEBUG_ALL = declare(
    Switch(
        "PT_XLA_DEBUG",
        FLAG,
        False,
        "all that PT_XLA_DEBUG_LEVEL may tell, where that is not set",
        "at each program",
        flag,
        PYTORCH_XLA,
    )
)
DEBUG_FILE = declare(
    Switch(
        "PT_XLA_DEBUG_FILE",
        "a file",
        "",
        "where PT_XLA_DEBUG_LEVEL and reports of frames write to",
        "at each text",
        str,
        PYTORCH_XLA,
        otherwise="standard error",
    )
)
METRICS_FILE = declare(
    Switch(
        "XLA_METRICS_FILE",
        "a file, STDERR or STDOUT",
        "",
        "each step of the device 'xla' appends the report of metrics to it. Of several processes "
        "each has its own file, with its rank behind a dot",
        "at the end of each step",
        str,
        PYTORCH_XLA,
    )
)
METRICS_SAMPLES = declare(
    Switch(
        "XLA_METRICS_SAMPLES",
        "a positive integer",
        1024,
        "how many samples a metric keeps, for its percentiles",
        "when a metric gets its first sample",
        positive,
        PYTORCH_XLA,
    )
)
HLO_DEBUG = declare(
    Switch(
        "XLA_HLO_DEBUG",
        FLAG,
        False,
        "the StableHLO that `get_stablehlo` returns has the user's lines as locations",
        "at each call",
        flag,
        PYTORCH_XLA,
    )
)
SAVE_GRAPH_FMT = declare(
    Switch(
        "SAVE_GRAPH_FMT",
        f"one of {', '.join(GRAPH_FORMATS)}",
        "text",
        "the form in which `save_tensors_graph` writes a graph",
        "at each call",
        _graph_format,
        PYTORCH_XLA,
    )
)
MODELCMP_SAVEDIR = declare(
    Switch(
        "MODELCMP_SAVEDIR",
        "a folder; empty for none",
        "",
        "where `torch_xla.debug.model_comparator.save` saves tensors",
        "at each call",
        str,
        PYTORCH_XLA,
    )
)
MAX_ASYNC_QUEUE: Switch[int | None] = declare(
    Switch(
        "XLA_MAX_ASYNC_QUEUE",
        "a positive integer",
        None,
        "how many closures of a step may wait for their thread",
        "when an `AsyncClosureHandler` is made",
        positive,
        PYTORCH_XLA,
        otherwise="the handler's argument, 100",
    )
)
OP_PRINT_COMPUTATIONS = declare(
    Switch(
        "XLA_OP_PRINT_COMPUTATIONS",
        FLAG,
        False,
        "the HLO of each operator that `xla_op_registry.register` makes is printed",
        "when the operator meets new shapes",
        flag,
        PYTORCH_XLA,
    )
)
DEBUG = declare(
    Switch(
        "DEBUG",
        "an integer, 0 or more",
        0,
        "whether `torch_xla.utils.utils.get_print_fn` returns a function that prints",
        "at each call",
        count,
        PYTORCH_XLA,
    )
)
