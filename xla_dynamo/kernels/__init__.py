"""Kernels that programs call: what each computes, what it accepts, its call, and what runs."""

import importlib

# Importing one registers it (`lowerings.kernels`), so whoever asks for libraries has them all.
KERNELS = (
    "attention",
    "attention_gradients",
    "grouped_products",
    "convolution_weight_gradient",
    "convolution_weights",
    "int4_products",
    "integer_products",
    "narrow_products",
    "onednn_convolution",
    "onednn_product",
    "packed_convolution",
    "paged_attention",
    "planned_attention",
    "planned_product",
    "row_product",
)

for _kernel in KERNELS:
    importlib.import_module(f"xla_dynamo.kernels.{_kernel}")
