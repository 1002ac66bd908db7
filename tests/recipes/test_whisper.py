"""The recipe of Whisper: eager's tokens, and audio of any format.

Cold: nothing is cached on disk, and Dynamo starts anew.
"""

import numpy as np
import pytest
import scipy.io.wavfile
import transformers

from docs.examples.recipes import whisper

pytestmark = pytest.mark.usefixtures("cold", "others_may_warn")

SMALL = ["--piece", "2", "--steps", "8", "--width", "64", "--layers", "1"]


@pytest.mark.every(2)
def test_whisper(tmp_path, executables):
    """Three pieces, the last one shorter; the two programs serve all of them."""
    tokens = whisper.main([*SMALL, "--seconds", "5", "--out", str(tmp_path)])
    assert tokens["openxla"] == tokens["eager"]
    assert [len(piece) for piece in tokens["openxla"]] == [8, 8, 8]
    assert len(set(map(tuple, tokens["openxla"]))) > 1  # what is heard matters
    assert executables() == 2  # the encoder, and the step of the decoder
    for name in ("heard.png", "seconds.png"):
        assert (tmp_path / name).stat().st_size > 5_000


@pytest.mark.every(2)
def test_a_folder_of_weights(tmp_path, capsys):
    """As of a real model: halves, a tokenizer, and the language is one of its tokens."""
    model, extractor = whisper.random_model(width=64, layers=1, seconds=2)
    settings = model.generation_config
    settings.is_multilingual, settings.no_timestamps_token_id = True, 1_000
    settings.lang_to_id, settings.task_to_id = {"<|de|>": 1_001}, {"transcribe": 1_002}
    settings._from_model_config = False  # else transformers does not read them again
    words = {f"w{number}": number for number in range(2_000)}
    tokenizer = transformers.WhisperTokenizer(words, [])
    for part in (model.half(), extractor, tokenizer):
        part.save_pretrained(tmp_path)
    arguments = ["--model", str(tmp_path), "--language", "de", "--seconds", "2", "--steps", "4"]
    tokens = whisper.main([*arguments, "--out", str(tmp_path)])
    assert tokens["openxla"] == tokens["eager"]
    assert f"w{tokens['openxla'][0][0]}" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32"])
def test_read(tmp_path, dtype):
    """Two channels at another rate become one at Whisper's."""
    times = np.arange(48_000) / 48_000
    wave = 0.5 * np.sin(2 * np.pi * 440 * times)
    scales = {"uint8": 127, "int16": 2**15, "int32": 2**31, "float32": 1}
    samples = np.stack([wave, wave], 1) * scales[dtype] + (128 if dtype == "uint8" else 0)
    scipy.io.wavfile.write(tmp_path / "tone.wav", 48_000, samples.astype(dtype))
    read = whisper.read(tmp_path / "tone.wav")
    assert read.dtype == np.float32
    inside = slice(200, -200)  # resampling sees silence beyond both ends
    np.testing.assert_allclose(read[inside], wave[::3][inside], atol=0.02)


def test_notes():
    """Half a second of each note: an octave lies between the first and the eighth."""
    heard = whisper.notes(4)
    assert heard.dtype == np.float32
    assert np.abs(heard).max() <= 1

    def pitch(number):
        note = heard[number * whisper.RATE // 2 :][: whisper.RATE // 2]
        return np.abs(np.fft.rfft(note)).argmax() * 2

    assert pitch(0) == pytest.approx(220, abs=4)
    assert pitch(7) == pytest.approx(440, abs=4)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--width", "48"],
        ["--piece", "0"],
        ["--steps", "x"],
        ["--seconds", "nan"],
        ["--audio", "missing.wav"],
        ["--audio", "text.wav"],
        ["--audio", "empty.wav"],
        ["--language", "de"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(wrong, capsys, tmp_path, monkeypatch):
    """Each is an error that names the option, and for audio the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.wav").write_text("no sound")
    scipy.io.wavfile.write("empty.wav", 16_000, np.zeros((0, 2), "int16"))
    with pytest.raises(SystemExit):
        whisper.main(wrong)
    told = capsys.readouterr().err
    assert wrong[0] in told.splitlines()[-1]
    assert not wrong[1].endswith(".wav") or wrong[1] in told
