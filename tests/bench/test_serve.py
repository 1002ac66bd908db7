"""The benchmark's server of many clients."""

import pytest
import torch

from bench import __main__ as command_line
from bench import serve, server

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("length", [16, 40, 250])
@pytest.mark.parametrize("batch", range(1, 17))
def test_batches_are_cut_into_sizes_that_are_compiled(batch, length):
    cut = server.pieces(batch, length)
    assert sum(cut) == batch
    filled = [next(b for b in server.BATCHES if b >= n) for n in cut]
    assert (sum(filled) - batch) * length <= server.WASTE


def test_backends_serve_in_turns(capsys):
    asked = ["serve", "--size", "tiny", "--backends", "eager", "--seconds", "0.4", "--turns", "2"]
    assert command_line.main([*asked, "--models", "gpt2"]) == 0
    rows = [line.strip("│").split("│") for line in capsys.readouterr().out.splitlines()]
    figures = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
    assert float(figures["requests/s"]) > 0
    assert 0 < float(figures["p50 ms"]) <= float(figures["p99 ms"])


def test_a_server_that_fails_is_told(capsys):
    asked = ["serve", "--size", "tiny", "--backends", "eager", "--memory-limit", "0.05"]
    assert command_line.main([*asked, "--models", "bert"]) == 1
    assert "eager: memory: more than 0.05 GB in prepare" in capsys.readouterr().out


def test_clients_tell_what_the_server_raised():
    loop = server.Loop("eager", "bert", "tiny", 2, torch.get_num_threads(), pads=False)
    loop.server.model = None
    with pytest.raises(TypeError, match="not callable"):
        loop.take_turn(0, 0.1)
    assert serve.centile([3.0, 1.0, 2.0], 50) == 2.0
    assert serve.centile([3.0, 1.0, 2.0], 99) == 3.0


@pytest.mark.parametrize("model", serve.SERVED)
def test_small_models(model):
    loop = server.Loop("eager", model, "small", 2, torch.get_num_threads(), pads=False)
    assert loop.server.answer(torch.ones(2, 17, dtype=torch.long)).shape == (2, 17, 8192)
    assert server.sizes(loop.server.lengths[-1])[1][-1] == 256


@pytest.mark.parametrize("model", [pytest.param("bert", marks=pytest.mark.slow), "gpt2"])
def test_nothing_is_compiled_after_the_warm_up(model, monkeypatch, executables):
    monkeypatch.setattr(server, "BATCHES", (1, 2, 4))
    monkeypatch.setattr(server, "LENGTHS", range(16, 33, 16))
    loop = server.Loop("openxla", model, "tiny", 2, torch.get_num_threads(), pads=False)
    loop.warm_up()
    # One text, and up to four, of lengths up to 32.
    assert server.sizes(64) == ([1, 4], [16, 32])
    assert executables() == 2
    with torch.no_grad():
        for shape in ((1, 17), (3, 16), (2, 30), (4, 32)):
            ids = torch.randint(0, 99, shape)
            expected = loop.eager(input_ids=ids).logits
            torch.testing.assert_close(loop.server.answer(ids), expected, rtol=1e-4, atol=1e-4)
    assert loop.facts()["compiles"] == 0
