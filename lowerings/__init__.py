"""ATen operators to StableHLO: the table, the vocabulary, and one file a family of rules."""

import importlib

from xla_dynamo.lowerings.table import TABLE, Context, lowers

# In the order a newcomer may read them. Importing a family fills the table.
FAMILIES = (
    "pointwise",
    "conversions",
    "factories",
    "views",
    "padding",
    "indexing",
    "reductions",
    "scans",
    "sorting",
    "matmul",
    "convolution",
    "pooling",
    "normalization",
    "attention",
    "resampling",
    "random",
    "linear_algebra",
    "fourier",
    "distances",
    "special_functions",
)

for _family in FAMILIES:
    importlib.import_module(f"xla_dynamo.lowerings.{_family}")

__all__ = ["FAMILIES", "TABLE", "Context", "lowers"]
