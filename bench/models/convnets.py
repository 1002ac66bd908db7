"""Convolutional networks for images, from their configurations in `transformers`."""

import functools
from typing import Any

from bench.models.inputs import images
from bench.models.registry import register

_register = functools.partial(register, family="convnet")

_TINY_RESNET: dict[str, Any] = {
    "embedding_size": 16, "hidden_sizes": [16, 32, 32, 64], "depths": [1, 2, 1, 1],
}  # fmt: skip
_TINY_CONVNEXT: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}

_register(
    "resnet50", "transformers.ResNetForImageClassification", {}, _TINY_RESNET, images(224, 64)
)
_register(
    "resnet18", "transformers.ResNetForImageClassification",
    {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic",
     "num_labels": 1000},
    {**_TINY_RESNET, "layer_type": "basic"}, images(224, 64),
)  # fmt: skip
_register(
    "mobilenet_v1", "transformers.MobileNetV1ForImageClassification", {},
    {"depth_multiplier": 0.25, "image_size": 64}, images(224, 64),
    trains=False,  # its head drops 99.9 % of the features
)  # fmt: skip
_register(
    "mobilenet_v2", "transformers.MobileNetV2ForImageClassification", {},
    {"depth_multiplier": 0.35, "image_size": 64, "tf_padding": True}, images(224, 64),
)  # fmt: skip
_register(
    "convnext", "transformers.ConvNextForImageClassification", {}, _TINY_CONVNEXT, images(224, 64)
)
_register(
    "convnextv2", "transformers.ConvNextV2ForImageClassification", {}, _TINY_CONVNEXT,
    images(224, 64),
)  # fmt: skip
_register(
    "efficientnet", "transformers.EfficientNetForImageClassification",
    {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224},
    {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320, "image_size": 64},
    images(224, 64),
)  # fmt: skip
_register(  # RegNet Y 4GF
    "regnet", "transformers.RegNetForImageClassification", {},
    {**_TINY_RESNET, "groups_width": 8}, images(224, 64), batch=2,
)  # fmt: skip
_register(  # BiT: weights standardized at each call, groups normalized
    "bit", "transformers.BitForImageClassification", {},
    {**_TINY_RESNET, "num_groups": 4}, images(224, 64), batch=2,
)  # fmt: skip
_register(
    "hgnet_v2", "transformers.HGNetV2ForImageClassification", {},
    {
        "embedding_size": 8, "hidden_sizes": [16, 16, 24, 32], "depths": [1, 1, 1, 1],
        "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 16, 24],
        "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [16, 16, 24, 32],
        "stage_num_blocks": [1, 1, 2, 1], "stage_numb_of_layers": [2, 2, 2, 2],
    },
    images(224, 64), batch=2,
)  # fmt: skip
