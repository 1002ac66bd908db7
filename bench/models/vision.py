"""Transformers that see: classes, boxes, depth and segments of images, videos, and image with text.

All are made from their configurations in `transformers`.
"""

import functools
from typing import Any

from bench.models.inputs import floats, images, together, tokens
from bench.models.registry import register
from bench.models.text import TINY_TEXT

_register = functools.partial(register, family="vision")

_TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
    "image_size": 30, "patch_size": 5,
}  # fmt: skip
_TINY_WINDOWS: dict[str, Any] = {
    "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32,
}  # fmt: skip
_TINY_STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1]}

_register("vit", "transformers.ViTForImageClassification", {}, _TINY, images(224, 30))
_register("deit", "transformers.DeiTForImageClassificationWithTeacher", {}, _TINY, images(224, 30))
_register("swin", "transformers.SwinForImageClassification", {}, _TINY_WINDOWS, images(224, 32))
_register("swinv2", "transformers.Swinv2ForImageClassification", {}, _TINY_WINDOWS, images(224, 32))
_register(
    "beit", "transformers.BeitForImageClassification",
    {"use_relative_position_bias": True}, {**_TINY, "use_relative_position_bias": True},
    images(224, 30), batch=2,
)  # fmt: skip
_register(
    "data2vec_vision", "transformers.Data2VecVisionForImageClassification",
    {"use_shared_relative_position_bias": True},
    {**_TINY, "use_shared_relative_position_bias": True}, images(224, 30), batch=2,
)  # fmt: skip
_register(  # DINOv2 small
    "dinov2", "transformers.Dinov2ForImageClassification",
    {"hidden_size": 384, "num_attention_heads": 6, "patch_size": 14, "image_size": 518},
    _TINY, images(224, 40),  # not the size it was made for: positions are interpolated
)  # fmt: skip
_register(
    "hiera", "transformers.HieraForImageClassification", {},
    {"embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2], "image_size": [64, 64]},
    images(224, 64), batch=2,
)  # fmt: skip
_register(
    "levit", "transformers.LevitForImageClassification", {},
    {"hidden_sizes": [16, 32, 48], "num_attention_heads": [1, 2, 3], "depths": [1, 2, 1],
     "key_dim": [8, 8, 8], "image_size": 64},
    images(224, 64),
)  # fmt: skip
_register(
    "cvt", "transformers.CvtForImageClassification", {},
    {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]}, images(224, 64),
)  # fmt: skip
_register(
    "pvt_v2", "transformers.PvtV2ForImageClassification", {},
    {**_TINY_STAGES, "num_attention_heads": [1, 2, 2, 3], "image_size": 64}, images(224, 64),
)  # fmt: skip
_register(
    "focalnet", "transformers.FocalNetForImageClassification", {},
    {"embed_dim": 8, "hidden_sizes": [16, 16], "depths": [1, 2], "focal_levels": [2, 2],
     "focal_windows": [3, 3], "image_size": 32},
    images(224, 32), batch=2,
)  # fmt: skip
_register(
    "poolformer", "transformers.PoolFormerForImageClassification", {}, _TINY_STAGES,
    images(224, 64),
)  # fmt: skip
_register(
    "swiftformer", "transformers.SwiftFormerForImageClassification", {},
    {"depths": [1, 1, 2, 1], "embed_dims": [8, 16, 16, 24], "image_size": 64}, images(224, 64),
)  # fmt: skip
_register(
    "mobilevit", "transformers.MobileViTForImageClassification", {},
    {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [4, 8, 8, 16, 16, 24, 32],
     "image_size": 64},
    images(256, 64),
)  # fmt: skip
_register(
    "mobilevitv2", "transformers.MobileViTV2ForImageClassification", {},
    {"width_multiplier": 0.25, "base_attn_unit_dims": [32, 48, 64], "n_attn_blocks": [1, 1, 1],
     "image_size": 64},
    images(256, 64),
)  # fmt: skip
_register(
    "segformer", "transformers.SegformerForSemanticSegmentation", {},
    {**_TINY_STAGES, "num_attention_heads": [1, 2, 2, 3], "decoder_hidden_size": 16},
    images(512, 64),
)  # fmt: skip
_register(
    "dpt", "transformers.DPTForDepthEstimation", {},
    {**_TINY, "num_hidden_layers": 4, "image_size": 32, "patch_size": 8,
     "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 16, 24],
     "fusion_hidden_size": 16},
    images(384, 32), batch=1,
)  # fmt: skip


def _detr(backbone: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """DETR on the ResNet of transformers, where its default is timm's with downloaded weights."""
    return {
        "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
        "backbone_config": {"model_type": "resnet", "out_features": ["stage4"], **backbone},
        **settings,
    }  # fmt: skip


_register(
    "detr", "transformers.DetrForObjectDetection", _detr({}),
    _detr(
        {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1]},
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=37, decoder_ffn_dim=37,
        encoder_attention_heads=4, decoder_attention_heads=4, num_queries=10,
    ),
    images(512, 64), batch=1,
)  # fmt: skip
_register(  # YOLOS tiny
    "yolos", "transformers.YolosForObjectDetection",
    {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768,
     "image_size": [512, 512], "use_mid_position_embeddings": False},
    {**_TINY, "image_size": [30, 30], "num_detection_tokens": 10,
     "use_mid_position_embeddings": True},
    images(512, 30), batch=1,
)  # fmt: skip
_register(  # 8 of the 16 frames that it was made for
    "videomae", "transformers.VideoMAEForVideoClassification", {"num_frames": 8},
    {**_TINY, "num_frames": 4},
    floats("pixel_values", (8, 3, 224, 224), (4, 3, 30, 30)), batch=1,
)  # fmt: skip
_register(
    "clip", "transformers.CLIPModel", {},
    {
        "text_config": {**TINY_TEXT, "eos_token_id": 98, "bos_token_id": 1},
        "vision_config": {**_TINY, "image_size": 32, "patch_size": 8},
        "projection_dim": 24,
    },
    together(images(224, 32), tokens(77)),
)  # fmt: skip
_register(
    "siglip", "transformers.SiglipModel", {},
    {"text_config": {**TINY_TEXT, "projection_size": 32, "bos_token_id": 1, "eos_token_id": 2},
     "vision_config": {**_TINY, "image_size": 32, "patch_size": 8}},
    together(images(224, 32), tokens(64, mask=False)), batch=2,
)  # fmt: skip
