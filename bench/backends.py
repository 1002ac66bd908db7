"""What is compared: each backend's name, and how it makes a model into something to call.

Modules of a backend are imported when it is used: those of other projects live in environments of
their own (`bench.peers`), where ours is not installed, and this file is run there too.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

Call = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Backend:
    """A way to run a model.

    Attributes:
        about: one line for the report.
        compile: makes a callable of a module; compilation itself may wait for the first call.
        environment: the environment that it needs, "" for this one.
        packages: what must be installed here for it, of the extra "peers".
        finish: waits for results of a call that are still being computed.
        device: where the model and its inputs must be.
    """

    about: str
    compile: Callable[[torch.nn.Module], Call]
    environment: str = ""
    packages: tuple[str, ...] = ()
    finish: Callable[[Any], Any] = lambda result: result
    device: Callable[[], Any] = lambda: "cpu"


BACKENDS: dict[str, Backend] = {
    "eager": Backend("torch, no compiler", lambda model: model),
    "inductor": Backend("torch.compile's default", lambda model: torch.compile(model)),
    "openxla": Backend(
        'torch.compile(model, backend="openxla")',
        lambda model: torch.compile(model, backend="openxla"),
    ),
    "openxla-freeze": Backend(
        'openxla with options={"freeze": True}',
        lambda model: torch.compile(model, backend="openxla", options={"freeze": True}),
    ),
    "openxla-step": Backend("xla_dynamo.train_step, in training", lambda model: model),
}


def _inductor_freeze(model: torch.nn.Module) -> Call:
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return torch.compile(model)


BACKENDS["inductor-freeze"] = Backend("Inductor with freezing", _inductor_freeze)


def _inductor_max(model: torch.nn.Module) -> Call:
    import torch._inductor.config

    torch._inductor.config.freezing = True
    return torch.compile(model, mode="max-autotune")


BACKENDS["inductor-max"] = Backend("Inductor with freezing and max-autotune", _inductor_max)


def _torch_xla_device() -> Any:
    import torch_xla

    return torch_xla.device()


def _torch_xla_finish(result: Any) -> Any:
    import torch_xla.core.xla_model

    torch_xla.core.xla_model.wait_device_ops()  # sync(wait=True) waits for lazy graphs alone
    return result


BACKENDS["torch_xla"] = Backend(
    "PyTorch/XLA 2.9, torch.compile on its xla device",
    lambda model: torch.compile(model, backend="openxla"),
    environment="pytorch_xla",
    finish=_torch_xla_finish,
    device=_torch_xla_device,
)


class _Leaves(torch.nn.Module):
    """A model that returns its tensors in a list: JAX does not know transformers' own classes.

    Arguments that are no tensors are attributes, since JAX traces what is passed, flags too.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.constants: dict[str, Any] = {}

    def forward(self, **inputs: Any) -> list[Any]:
        return pytree.tree_leaves(self.model(**inputs, **self.constants))


def _torchax(model: torch.nn.Module) -> Call:
    import torchax

    leaves = _Leaves(model)
    compiled = torchax.compile(leaves)

    def call(**inputs: Any) -> list[Any]:
        leaves.constants = {k: v for k, v in inputs.items() if isinstance(v, bool | int | str)}
        return compiled(**{k: v for k, v in inputs.items() if k not in leaves.constants})

    return call


def _torchax_finish(result: Any) -> Any:
    import jax

    jax.block_until_ready([t.jax() for t in pytree.tree_leaves(result) if hasattr(t, "jax")])
    return result


def _torchax_device() -> Any:
    import torchax

    torchax.enable_globally()
    return "jax"


BACKENDS["torchax"] = Backend(
    "torchax, jax.jit of the whole model",
    _torchax,
    environment="pytorch_xla",
    finish=_torchax_finish,
    device=_torchax_device,
)


def _openvino(model: torch.nn.Module) -> Call:
    from bench import runtimes

    return runtimes.Exported("openvino", model, runtimes.openvino, (torch.bfloat16,))


def _onnxruntime(model: torch.nn.Module) -> Call:
    from bench import runtimes

    return runtimes.Exported("onnxruntime", model, runtimes.onnxruntime)


BACKENDS["openvino"] = Backend(
    "OpenVINO of torch.export, inference", _openvino, packages=("openvino",)
)
BACKENDS["onnxruntime"] = Backend(
    "ONNX Runtime of torch.onnx.export, inference in float32",
    _onnxruntime,
    packages=("onnxruntime", "onnx", "onnxscript"),
)


@contextlib.contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Counts what was compiled inside, filled in at the end: graphs, breaks, executables, eager.

    `graphs` and `graph_breaks` are Dynamo's; `executables` and `fallbacks` (operators that eager
    torch runs in between) are there for openxla alone.
    """
    from torch._dynamo.utils import counters

    counters.clear()
    counts: dict[str, int] = {}
    yield counts
    counts["graphs"] = counters["stats"].get("unique_graphs", 0)
    counts["graph_breaks"] = sum(counters["graph_break"].values())
    with contextlib.suppress(ImportError):
        from xla_dynamo.runtime import metrics

        if "UncachedCompile" in metrics.counter_names():
            counts["executables"] = metrics.counter_value("UncachedCompile")
            counts["fallbacks"] = sum(n.startswith("aten::") for n in metrics.counter_names())
