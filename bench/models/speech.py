"""Models that hear or speak, from their configurations in `transformers`."""

import functools
from typing import Any

from bench.models.inputs import floats, integers, together
from bench.models.registry import register

_register = functools.partial(register, family="speech")

# Whole layers that are dropped, and spans that numpy masks, make each training step another graph.
_SAME_STEPS = {"layerdrop": 0.0, "apply_spec_augment": False}
_TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
}  # fmt: skip
_TINY_WAVES: dict[str, Any] = {
    **_TINY, **_SAME_STEPS, "conv_dim": [16, 16], "conv_stride": [5, 4], "conv_kernel": [10, 4],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16, "vocab_size": 32,
}  # fmt: skip
_ONE_SECOND = floats("input_values", (16000,), (640,))

_register("wav2vec2", "transformers.Wav2Vec2ForCTC", _SAME_STEPS, _TINY_WAVES, _ONE_SECOND)
_register(  # the large one's layout: norms first, and a norm after each convolution
    "hubert", "transformers.HubertForCTC",
    {**_SAME_STEPS, "do_stable_layer_norm": True, "feat_extract_norm": "layer"},
    {**_TINY_WAVES, "do_stable_layer_norm": True, "feat_extract_norm": "layer"},
    _ONE_SECOND, batch=2,
)  # fmt: skip
_register(
    "wavlm", "transformers.WavLMForCTC", _SAME_STEPS,
    {**_TINY_WAVES, "num_buckets": 8, "max_bucket_distance": 16}, _ONE_SECOND, batch=2,
)  # fmt: skip
_register(
    "wav2vec2_conformer", "transformers.Wav2Vec2ConformerForCTC",
    {**_SAME_STEPS, "vocab_size": 32},
    {**_TINY_WAVES, "conv_depthwise_kernel_size": 5}, _ONE_SECOND, batch=2,
)  # fmt: skip
_register(
    "sew", "transformers.SEWForCTC", _SAME_STEPS, {**_TINY_WAVES, "squeeze_factor": 2},
    _ONE_SECOND, batch=2,
)  # fmt: skip
_register(  # a third of the ten seconds that it was made for
    "audio_spectrogram_transformer", "transformers.ASTForAudioClassification", {"max_length": 340},
    {**_TINY, "max_length": 32, "num_mel_bins": 16, "patch_size": 4, "frequency_stride": 3,
     "time_stride": 3},
    floats("input_values", (340, 128), (32, 16)), batch=1,
)  # fmt: skip
_register(
    "whisper", "transformers.WhisperForConditionalGeneration", {"use_cache": False},
    {
        "vocab_size": 99, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "max_source_positions": 32,
        "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 3, "use_cache": False,
    },
    together(
        floats("input_features", (80, 3000), (16, 64)),
        integers("decoder_input_ids", (8,), (8,)),
        use_cache=False,
    ),
    batch=2,
)  # fmt: skip
_register(
    "speech_to_text", "transformers.Speech2TextForConditionalGeneration", {},
    {
        "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 37,
        "decoder_ffn_dim": 37, "conv_channels": 16, "input_feat_per_channel": 16,
        "max_source_positions": 64, "max_target_positions": 16,
    },
    together(
        floats("input_features", (400, 80), (64, 16)),
        integers("decoder_input_ids", (8,), (8,)),
        use_cache=False,
    ),
)  # fmt: skip
_register(
    "moonshine", "transformers.MoonshineForConditionalGeneration", {},
    {
        "vocab_size": 99, "hidden_size": 32, "intermediate_size": 37,
        "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
        "encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4,
        "partial_rotary_factor": 0.5, "pad_token_id": 0,
    },
    together(
        floats("input_values", (32000,), (4000,)),
        integers("decoder_input_ids", (8,), (8,)),
        use_cache=False,
    ),
)  # fmt: skip
_register(  # a vocoder: a spectrogram to a wave
    "hifi_gan", "transformers.SpeechT5HifiGan", {},
    {"model_in_dim": 16, "upsample_initial_channel": 32, "upsample_rates": [4, 2],
     "upsample_kernel_sizes": [8, 4], "resblock_kernel_sizes": [3, 5],
     "resblock_dilation_sizes": [[1, 3], [1, 3]]},
    floats("spectrogram", (64, 80), (10, 16)), batch=1,
)  # fmt: skip
