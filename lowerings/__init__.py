"""ATen operators to StableHLO: the table of rules, and one file of rules for each family."""

import importlib

from xla_dynamo.lowerings.table import TABLE, Context, find_refusal, find_rule, lowers

# In the order a newcomer may read them. Importing a family fills the table.
FAMILIES = (
    "pointwise",
    "arithmetic",
    "ternary",
    "rounding",
    "comparisons",
    "bitwise",
    "activations",
    "complex_numbers",
    "conversions",
    "factories",
    "views",
    "concatenation",
    "strided",
    "windows",
    "padding",
    "gather_scatter",
    "indexing",
    "embedding",
    "embedding_bags",
    "reductions",
    "softmax",
    "scans",
    "segments",
    "sorting",
    "searching",
    "histograms",
    "matmul",
    "grouped_matmul",
    "convolution",
    "pooling",
    "adaptive_pooling",
    "normalization",
    "batch_normalization",
    "attention",
    "fused_attention",
    "resampling",
    "grid_sample",
    "random",
    "distributions",
    "checkpointed_draws",
    "matrix_decompositions",
    "linear_solves",
    "symmetric_indefinite",
    "matrix_functions",
    "fourier",
    "distances",
    "special_functions",
    "bessel_functions",
    "orthogonal_polynomials",
    "control_flow",
    "flex_attention",
    "sharding",
    "manual_regions",
    "collectives",
    "composites",
)

for _family in FAMILIES:
    importlib.import_module(f"xla_dynamo.lowerings.{_family}")

__all__ = ["FAMILIES", "TABLE", "Context", "find_refusal", "find_rule", "lowers"]
