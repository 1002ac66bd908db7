"""A server for language models: transformers' own, with the model compiled before it answers.

`prepare` compiles a model for continuous batching; `xla-dynamo serve` starts the server.
"""

from xla_dynamo.torchvision_operators import declare_missing_operators

declare_missing_operators()  # before a file below imports transformers, which imports torchvision

from xla_dynamo.serving.prepare import Prepared, prepare  # noqa: E402
from xla_dynamo.serving.sizes import Sizes  # noqa: E402

__all__ = ["Prepared", "Sizes", "prepare"]
