"""Programs that measure: each is a file of this folder."""

import os

from xla_dynamo.torchvision_operators import declare_missing_operators

# Compile times are those of cold processes, unless a measurement names a folder.
os.environ.setdefault("XLA_DYNAMO_CACHE_DIR", "")
declare_missing_operators()  # before a program imports transformers, which imports torchvision
