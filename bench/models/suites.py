"""Which models a benchmark runs: three suites, each with the smaller ones, and three for one use.

"training" is for `--mode training`, "bfloat16" for `--dtype bfloat16`, and "runtimes" for the
backends `openvino` and `onnxruntime` beside the others.
"""

QUICK = (
    "resnet50", "mobilenet_v2", "vit", "bert", "gpt2", "llama", "ddpm_unet", "dlrm",
)  # fmt: skip

# The well-known ones, and no two that differ only in a detail.
STANDARD = (
    *QUICK,
    # text
    "albert", "deberta_v2", "distilbert", "modernbert", "roberta", "xlnet",
    # generation
    "bart", "mamba", "mixtral", "opt", "phi", "qwen2", "t5",
    # vision
    "clip", "deit", "detr", "dinov2", "mobilevit", "segformer", "swin",
    # speech
    "audio_spectrogram_transformer", "wav2vec2", "whisper",
    # diffusion
    "autoencoder_kl", "diffusion_unet", "dit", "stable_diffusion_3",
    # convolutional
    "alexnet", "convnext", "densenet121", "efficientnet", "regnet", "resnext50", "squeezenet1_1",
    "vgg16",
    # classics
    "dcgan_generator", "gcn", "lstm_language_model", "mlp_mixer", "nanogpt", "super_resolution",
    "tacotron", "unet_segmentation",
)  # fmt: skip

TRAINING = (
    "resnet50", "mobilenet_v2", "vit", "bert", "distilbert", "gpt2", "llama", "ddpm_unet",
    "dcgan_discriminator", "dlrm", "nanogpt", "super_resolution",
)  # fmt: skip

BFLOAT16 = (*QUICK, "t5", "whisper")

# Half of them convolutional: there runtimes with packed weights and fused epilogues gain most.
RUNTIMES = (
    "convnext", "densenet121", "efficientnet", "mobilenet_v2", "mobilenet_v3", "regnet", "resnet50",
    "unet_segmentation",
    "bert", "dit", "gpt2", "llama", "swin", "t5", "vit", "wav2vec2",
)  # fmt: skip

SUITES = {
    "quick": QUICK, "standard": STANDARD, "training": TRAINING, "bfloat16": BFLOAT16,
    "runtimes": RUNTIMES,
}  # fmt: skip


def suites_of(name: str) -> frozenset[str]:
    """The suites that a model of this name is in; every model is in "full"."""
    return frozenset({"full", *(suite for suite, names in SUITES.items() if name in names)})
