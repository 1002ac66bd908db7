"""Convolutions by oneDNN with weights in its own layout, and scripts that execute them.

A convolution is made once for a form, a weight and a bias: oneDNN says which layout it wants, and
the weight is brought into it. Its script writes the result into the program's memory, with what
follows (bias, activation, sum) computed on the way (oneDNN's post-ops).
"""

import ctypes
import json
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.call_scripts import (
    FIRST_FREE,
    FIRST_MADE,
    NULL,
    Script,
    number,
    place_of_slot,
    slot,
)

_ALIGNMENT = 64  # XLA:CPU copies what is not aligned so
# Numbers of oneapi/dnnl/dnnl_types.h: what memory is to a primitive, and what may be asked of one.
_SOURCE, _RESULT, _WEIGHT, _BIAS, _SCRATCHPAD, _FROM, _TO = 1, 17, 33, 41, 80, 1, 17
_POST_OP, _SECOND = 32768, 2  # what is the second operand of a post-op
_WEIGHT_DESC, _SCRATCHPAD_DESC = 131, 136
_INFERENCE, _DIRECT, _ADD, _USERS_SCRATCHPAD = 96, 1, 0x1FFF0, 1
_ALLOCATED = -1  # an address: oneDNN has memory of its own
# Activations: their number, and their two parameters.
_ACTIVATIONS = {
    "gelu_erf": (0x31, 0.0, 0.0),
    "gelu_tanh": (0x2B, 0.0, 0.0),
    "hardswish": (0x34, 1 / 6, 0.5),
    "leaky_relu": (0x20, None, 0.0),
    "swish": (0x2C, 1.0, 0.0),
}


def can_pack() -> bool:
    """Whether programs for the CPU can execute primitives of oneDNN; registers what does."""
    library = onednn.library()
    return library is not None and call_scripts.register(_delete)


def _delete(memory: int) -> None:
    onednn.library().dnnl_memory_destroy(ctypes.c_void_p(memory))


class Convolution:
    """A convolution with a packed weight, and the script that executes it.

    Attributes:
        script: the script, in memory; it reads and writes what this object holds.
    """

    def __init__(self, form: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Pack a weight.

        Args:
            form: JSON (see `lowerings.passes.call_packed`): the shapes `image`, `kernel` and
                `result` of [batch, channel, *spatial], `padding`, `stride` and `dilation` of each
                spatial dimension, `groups`, and `then`: what follows. The script's operands are
                the image and what is added, if anything; channels are innermost in memory.
            weight: float32 [out, in / groups, *spatial].
            bias: float32 [out].

        Raises:
            OneDNNError: oneDNN cannot compute it.
        """
        given = json.loads(form)
        onednn.set_threads()
        groups, kernel = given["groups"], given["kernel"]
        if groups > 1:
            kernel = [groups, kernel[0] // groups, *kernel[1:]]
        self._source = _channels_last(given["image"])
        self._result = _channels_last(given["result"])
        attributes = self._attributes(given["then"])
        desc = onednn.Object(
            "primitive_desc",
            "convolution_forward_primitive_desc_create",
            onednn.engine(),
            _INFERENCE,
            _DIRECT,
            self._source,
            onednn.described(kernel, None),
            onednn.described([kernel[-4] * groups if groups > 1 else kernel[0]], [1])
            if bias is not None
            else None,
            self._result,
            onednn.numbers(given["stride"]),
            onednn.numbers([d - 1 for d in given["dilation"]]),
            onednn.numbers(given["padding"]),
            onednn.numbers(given["padding"]),
            attributes,
        )
        self._primitive = onednn.Object("primitive", "primitive_create", desc)
        self._desc = desc
        self._pack(kernel, weight)
        if bias is not None:
            self._bias = bias
            self._bias_memory = onednn.memory(onednn.described([len(bias)], [1]), bias.data_ptr())
        self.script = self._script(given["then"], bias is not None).memory()

    def _attributes(self, then: Sequence[Any]) -> onednn.Object:
        operations = onednn.Object("post_ops", "post_ops_create")
        for name, *parameters in then:
            if name == "add":
                onednn.check("post_ops_append_binary", operations, _ADD, self._result)
            else:
                kind, *known = _ACTIVATIONS[name]
                alpha, beta = [*parameters, *known[len(parameters) :]]
                numbers = ctypes.c_float(alpha), ctypes.c_float(beta)
                onednn.check("post_ops_append_eltwise", operations, kind, *numbers)
        attributes = onednn.Object("primitive_attr", "primitive_attr_create")
        onednn.check("primitive_attr_set_scratchpad_mode", attributes, _USERS_SCRATCHPAD)
        onednn.check("primitive_attr_set_post_ops", attributes, operations)
        return attributes

    def _pack(self, shape: Sequence[int], weight: torch.Tensor) -> None:
        """Bring a weight into the layout that the primitive wants."""
        wanted, size = onednn.chosen(self._desc, _WEIGHT_DESC)
        self._weight = torch.empty(size, dtype=torch.uint8)
        self._weight_memory = onednn.memory(wanted, self._weight.data_ptr())
        plain = weight.contiguous()
        layout = onednn.described(shape, torch.empty(shape, device="meta").stride())
        source = onednn.memory(layout, plain.data_ptr())
        engine = onednn.engine()
        reorder = onednn.Object(
            "primitive_desc",
            "reorder_primitive_desc_create",
            layout,
            engine,
            wanted,
            engine,
            None,
        )
        primitive = onednn.Object("primitive", "primitive_create", reorder)
        onednn.execute(primitive, {_FROM: source, _TO: self._weight_memory})

    def _script(self, then: Sequence[Any], has_bias: bool) -> Script:
        library, script = onednn.library(), Script()
        made = {_SOURCE: (self._source.handle, slot(1))}
        for index, (name, *_) in enumerate(then, 1):
            if name == "add":
                made[_POST_OP * index | _SECOND] = (self._result.handle, slot(2))
        made[_RESULT] = (self._result.handle, slot(1 + len(made)))
        scratchpad, size = onednn.chosen(self._desc, _SCRATCHPAD_DESC)
        if size:
            made[_SCRATCHPAD] = (scratchpad.value or 0, number(_ALLOCATED))
        given = {_WEIGHT: number(self._weight_memory.handle)}
        if has_bias:
            given[_BIAS] = number(self._bias_memory.handle)
        engine = number(onednn.engine().handle)
        for place, (name, (desc, address)) in enumerate(made.items(), FIRST_MADE):
            script.call(
                library.dnnl_memory_create, place_of_slot(place), number(desc), engine, address
            )
            given[name] = slot(place)
        words = [word for name, one in given.items() for word in (number(name), one)]
        script.call(
            library.dnnl_primitive_execute,
            number(self._primitive.handle),
            number(onednn.stream().handle),
            number(len(given)),
            place_of_slot(FIRST_FREE),
            stored=dict(enumerate(words, FIRST_FREE)),
        )
        for place in range(FIRST_MADE, FIRST_MADE + len(made)):
            # It is forgotten, or a failure of a later call would delete it again.
            script.call(library.dnnl_memory_destroy, slot(place), stored={place: NULL})
        return script


def _channels_last(shape: Sequence[int]) -> onednn.Object:
    """The description of an image [batch, channel, *spatial] with the channels innermost."""
    batch, channels, *spatial = shape
    strides = torch.empty(batch, *spatial, channels, device="meta").stride()
    return onednn.described(shape, (strides[0], strides[-1], *strides[1:-1]))


def handles_of(convolutions: Sequence[Convolution]) -> torch.Tensor:
    """The addresses of the scripts of convolutions, int64, one for each.

    The result's memory holds the convolutions, so they live as long as a buffer over it.
    """
    holder = _Holder(8 * len(convolutions) + _ALIGNMENT)
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(holder)) % _ALIGNMENT
    holder.held = tuple(convolutions)
    memory = torch.frombuffer(holder, dtype=torch.int64, count=len(convolutions), offset=offset)
    memory.copy_(torch.tensor([ctypes.addressof(one.script) for one in convolutions]))
    return memory


class _Holder(bytearray):
    """The memory of addresses, which holds what they are addresses of."""

    held: Sequence[Convolution] = ()
