"""Load a model and its tokenizer from a folder, as transformers writes them."""

from pathlib import Path
from typing import Any

import torch
import transformers

from xla_dynamo.errors import OptionError

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8", "int8-dynamic", "int4")
# So many weights of a row share a scale, in int4.
_GROUP = 32
# torch packs so many rows of int4 together; a layer with some left over stays as it is.
_ROWS = 16


def load(folder: Path, dtype: str = "auto", quantize: str = "none") -> tuple[Any, Any]:
    """A causal language model, on the CPU and in inference, and its tokenizer.

    Args:
        folder: with `config.json`, weights as safetensors, and a tokenizer. No network is asked,
            and no code of the folder is run.
        dtype: one of `DTYPES`, of the weights and of the computations; "auto" is as they are saved.
        quantize: one of `QUANTIZATIONS`, of the weights of linear layers, by torchao. With
            "int8-dynamic" the inputs of these layers are quantized, too; "int4" has a scale for
            each 32 weights of a row, and leaves layers whose sizes are not whole.

    Raises:
        OptionError: there is no such model or tokenizer in the folder, or no such quantization.
    """
    if quantize not in QUANTIZATIONS:
        raise OptionError(f"quantize must be one of {', '.join(QUANTIZATIONS)}, not {quantize!r}")
    if not (folder / "config.json").is_file():
        raise OptionError(f"{folder} is no folder of a model: it has no config.json")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise OptionError(f"the model in {folder} cannot be loaded: {error}") from error
    if getattr(tokenizer, "_tokenizer", None) is None:
        raise OptionError(f"the tokenizer in {folder} has no tokenizer.json, which streaming needs")
    if quantize != "none":
        _quantize(model, quantize)
    return model.eval(), tokenizer


def _quantize(model: Any, quantize: str) -> None:
    try:
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
        from torchao.quantization import (
            Int8DynamicActivationInt8WeightConfig,
            Int8WeightOnlyConfig,
            quantize_,
        )
    except ImportError as error:
        raise OptionError(
            f"--quantize {quantize} needs torchao 0.18: pip install torchao"
        ) from error
    made = {
        "int8": Int8WeightOnlyConfig(set_inductor_config=False),
        "int8-dynamic": Int8DynamicActivationInt8WeightConfig(set_inductor_config=False),
        # The Int4WeightOnlyConfig that is no prototype needs a package for GPUs.
        "int4": PrototypeInt4WeightOnlyConfig(group_size=_GROUP, set_inductor_config=False),
    }
    head = model.get_output_embeddings()
    # A head that is tied to the embeddings shares their memory, which is looked up as it is.
    tied = head is not None and head.weight is model.get_input_embeddings().weight

    def chosen(module: Any, _: str) -> bool:
        if not isinstance(module, torch.nn.Linear) or (tied and module is head):
            return False
        rows, columns = module.weight.shape
        return quantize != "int4" or (rows % _ROWS == 0 and columns % _GROUP == 0)

    try:
        quantize_(model, made[quantize], filter_fn=chosen)
    except (ImportError, AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        raise OptionError(f"torchao cannot quantize this model to {quantize}: {error}") from error
