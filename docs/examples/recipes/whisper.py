"""Speech to text by Whisper of transformers: each token is a call of one compiled program.

    python -m docs.examples.recipes.whisper
    python -m docs.examples.recipes.whisper --model folder --audio speech.wav --steps 200

Without `--audio` it hears notes that it makes itself. Without `--model` the network is small and
has random weights, so that its tokens are no words: what can be seen is that they are eager's, and
how long each way takes. `--model` takes a folder of real weights in transformers' format, or a name
on the Hugging Face Hub. Longer audio is cut into pieces of 30 seconds, as many as Whisper hears.
"""

import argparse
import fractions
import functools
import pathlib
from collections.abc import Sequence

import numpy as np
import scipy.io.wavfile
import scipy.signal
import torch
import transformers
from matplotlib.figure import Figure

import xla_dynamo
from docs.examples.progress import plot, track
from docs.examples.recipes.common import beside_eager, multiple_of, options_of

RATE = 16_000  # samples a second, which is what Whisper hears


def notes(seconds: float) -> np.ndarray:
    """A major scale with overtones and a little noise, f32[RATE * seconds] from -1 to 1."""
    times = np.arange(0, seconds, 1 / RATE)
    steps = np.array([0, 2, 4, 5, 7, 9, 11, 12])[(2 * times).astype(int) % 8]
    phases = 2 * np.pi * np.cumsum(220 * 2 ** (steps / 12)) / RATE
    waves = sum(np.sin(overtone * phases) / overtone for overtone in range(1, 6))
    fading = np.exp(-6 * (times % 0.5))  # each note lasts half of a second
    noise = np.random.default_rng(0).normal(scale=0.01, size=len(times))
    return (0.3 * waves * fading + noise).astype("float32")


def read(path: pathlib.Path) -> np.ndarray:
    """The samples of a WAV file as one channel at RATE, f32 from -1 to 1."""
    rate, samples = scipy.io.wavfile.read(path)
    if samples.dtype == np.uint8:  # the only format whose silence is not zero
        samples = samples.astype("float32") / 128 - 1
    elif samples.dtype.kind == "i":
        samples = samples.astype("float32") / -float(np.iinfo(samples.dtype).min)
    mono = samples if samples.ndim == 1 else samples.mean(1)
    ratio = fractions.Fraction(RATE, rate)
    return scipy.signal.resample_poly(mono, ratio.numerator, ratio.denominator).astype("float32")


def audio_file(text: str) -> np.ndarray:
    """The type of an option that names a WAV file: the samples that `read` returns."""
    try:
        samples = read(pathlib.Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    if not len(samples):
        raise argparse.ArgumentTypeError(f"{text} has no samples")
    return samples


def positive(text: str) -> float:
    """The type of an option that is a number above zero."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"must be above zero, not {number}")
    return number


def random_model(
    width: int, layers: int, seconds: int
) -> tuple[transformers.WhisperForConditionalGeneration, transformers.WhisperFeatureExtractor]:
    """A Whisper with random weights that hears so many seconds, and its feature extractor."""
    size = {"attention_heads": width // 32, "ffn_dim": 4 * width, "layers": layers}
    config = transformers.WhisperConfig(
        vocab_size=2_000,
        d_model=width,
        max_source_positions=50 * seconds,  # the encoder's states are 20 ms apart
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        decoder_start_token_id=3,
        begin_suppress_tokens=None,
        # More than is usual: else the tokens of random weights hardly depend on what is heard.
        init_std=2.4 * width**-0.5,
        **{f"{part}_{name}": of for part in ("encoder", "decoder") for name, of in size.items()},
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None  # random weights may end at once
    return model, transformers.WhisperFeatureExtractor(chunk_length=seconds)


def main(arguments: Sequence[str] | None = None) -> dict[str, list[list[int]]]:
    """Write down the audio twice; return the tokens of its pieces, by who wrote them."""
    parser = parser_of_recipe()
    options = parser.parse_args(arguments)
    if options.language and not options.model:
        parser.error("--language is for a --model: random weights know none")
    torch.manual_seed(0)
    tokenizer = None
    if options.model:
        # float32, as the audio is: otherwise weights would have the dtype of their files.
        model = transformers.WhisperForConditionalGeneration.from_pretrained(
            options.model, dtype=torch.float32
        ).eval()
        extractor = transformers.WhisperFeatureExtractor.from_pretrained(options.model)
        tokenizer = transformers.WhisperTokenizer.from_pretrained(options.model)
    else:
        model, extractor = random_model(options.width, options.layers, options.piece)
    samples = notes(options.seconds) if options.audio is None else options.audio

    # Each piece is filled up with silence: all have one size, and so one program serves them.
    length = extractor.n_samples
    pieces = [samples[start : start + length] for start in range(0, len(samples), length)]
    features = [
        extractor(piece, sampling_rate=RATE, return_tensors="pt").input_features for piece in pieces
    ]
    words: dict[str, object] = {"max_new_tokens": options.steps, "do_sample": False}
    if options.language:
        words["language"] = options.language

    # The encoder runs once a piece, and is one graph. `generate` compiles the decoder's step.
    model.model.encoder.compile(backend="openxla", fullgraph=True, options={"freeze": True})
    ways = {
        "openxla": functools.partial(xla_dynamo.generate, model, **words),
        "eager": functools.partial(in_eager, model, **words),
    }
    tokens = {
        name: [way(piece)[0].tolist() for piece in track(features, name)]
        for name, way in ways.items()
    }

    calls = {name: functools.partial(way, features[0]) for name, way in ways.items()}
    seconds = beside_eager(f"a piece of {length / RATE:.0f} s", calls, rounds=3)
    plot(options.out / "seconds.png", seconds=seconds, what="a piece")
    draw(options.out / "heard.png", torch.cat(features, 2)[0].numpy())
    for number, piece in enumerate(tokens["openxla"]):
        text = tokenizer.decode(piece, skip_special_tokens=True) if tokenizer else piece
        print(f"{number * length / RATE:5.0f} s: {text}")
    same = sum(map(list.__eq__, tokens["openxla"], tokens["eager"]))
    print(f"{same} of {len(pieces)} pieces have eager's tokens; what was heard: {options.out}")
    return tokens


def in_eager(
    model: transformers.WhisperForConditionalGeneration, features: torch.Tensor, **words: object
) -> torch.Tensor:
    """What the model's own `generate` returns, with nothing compiled."""
    with torch.compiler.set_stance("force_eager"):
        return model.generate(features, **words)


def draw(path: pathlib.Path, log_mel: np.ndarray) -> None:
    """Draw what the encoder is given, f32[mel bins, frames], where a second has 100 frames."""
    figure = Figure(figsize=(10, 3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(log_mel, origin="lower", aspect="auto", extent=(0, log_mel.shape[1] / 100, 0, 80))
    axes.set(xlabel="seconds", ylabel="mel bin")
    figure.savefig(path, dpi=120)


def parser_of_recipe() -> argparse.ArgumentParser:
    """The recipe's options."""
    parser = options_of(__doc__, "whisper", steps=64)
    parser.description += "\n--steps is the largest number of tokens for a piece."
    parser.add_argument("--model", help="a folder, or a name on the hub; random weights without")
    parser.add_argument("--audio", type=audio_file, help="a WAV file; notes without")
    parser.add_argument("--language", help='of a multilingual model, as "en"; else it guesses')
    parser.add_argument("--seconds", type=positive, default=60, help="of the notes")
    parser.add_argument("--width", type=multiple_of(32), default=256, help="of the random model")
    parser.add_argument("--layers", type=multiple_of(1), default=4, help="of the random model")
    parser.add_argument(
        "--piece", type=multiple_of(1), default=30, help="the seconds that a random model hears"
    )
    return parser


if __name__ == "__main__":
    # Whisper warns at each call that max_new_tokens has precedence over its own max_length.
    transformers.logging.set_verbosity_error()
    main()
