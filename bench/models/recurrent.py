"""Sequences, step by step or by dilated convolutions: language, speech and waves."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from bench.models.inputs import floats, integers, together
from bench.models.registry import register

_register = functools.partial(register, family="classic")


class RecurrentLanguageModel(nn.Module):
    """Predicts each next word from the state of cells; arXiv:1409.2329.

    This loop steps them because Dynamo leaves any frame that holds an `nn.LSTM` to eager.
    """

    def __init__(
        self, cell: type[nn.LSTMCell | nn.GRUCell], vocabulary: int, width: int, depth: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(0.5)
        self.cells = nn.ModuleList(cell(width, width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        steps = self.dropout(self.words(input_ids)).unbind(1)
        for cell in self.cells:
            state, hidden = None, []
            for step in steps:
                state = cell(step, state)
                hidden.append(state[0] if isinstance(state, tuple) else state)
            steps = self.dropout(torch.stack(hidden)).unbind()
        return self.head(torch.stack(steps, 1))


for _name, _cell in ("lstm_language_model", nn.LSTMCell), ("gru_language_model", nn.GRUCell):
    _register(  # the medium one for the Penn Treebank
        _name, RecurrentLanguageModel,
        {"cell": _cell, "vocabulary": 10_000, "width": 650, "depth": 2},
        {"cell": _cell, "vocabulary": 99, "width": 12, "depth": 2},
        integers("input_ids", (35,), (7,)), batch=20,
    )  # fmt: skip


class LocationAttention(nn.Module):
    """Attends by the query, the memory, and where it has attended before; arXiv:1506.07503."""

    def __init__(self, query: int, memory: int, width: int, filters: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, width, bias=False)
        self.memory = nn.Linear(memory, width, bias=False)
        self.places = nn.Conv1d(2, filters, 31, padding=15, bias=False)
        self.place = nn.Linear(filters, width, bias=False)
        self.energy = nn.Linear(width, 1)

    def forward(
        self, query: torch.Tensor, memory: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The attended memory (N, width) and the weights (N, length)."""
        place = self.place(self.places(weights).mT)
        energy = torch.tanh(self.query(query)[:, None] + self.memory(memory) + place)
        now = self.energy(energy).squeeze(-1).softmax(-1)
        return (now[:, None] @ memory).squeeze(1), now


class Tacotron(nn.Module):
    """Text to a spectrogram, taught with the true frames; as Tacotron 2, arXiv:1712.05884."""

    def __init__(self, letters: int, width: int, mels: int, hidden: int, filters: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.letters = nn.Embedding(letters, width)
        self.convolutions = nn.Sequential(*(self._convolution(width, width) for _ in range(3)))
        self.reader = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.prenet = nn.Sequential(
            nn.Linear(mels, width // 2), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(width // 2, width // 2), nn.ReLU(), nn.Dropout(0.5),
        )  # fmt: skip
        self.listener = nn.LSTMCell(width // 2 + width, hidden)
        self.attention = LocationAttention(hidden, width, width // 4, filters)
        self.speaker = nn.LSTMCell(hidden + width, hidden)
        self.frame = nn.Linear(hidden + width, mels)
        self.stop = nn.Linear(hidden + width, 1)
        self.postnet = nn.Sequential(
            self._convolution(mels, width), nn.Conv1d(width, mels, 5, padding=2)
        )

    @staticmethod
    def _convolution(inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv1d(inner, outer, 5, padding=2), nn.BatchNorm1d(outer), nn.ReLU(), nn.Dropout(0.5)
        )

    def forward(self, input_ids: torch.Tensor, frames: torch.Tensor) -> tuple[torch.Tensor, ...]:
        memory, _ = self.reader(self.convolutions(self.letters(input_ids).mT).mT)
        before = self.prenet(F.pad(frames, (0, 0, 1, -1)))  # each frame sees those before it
        zero = memory.new_zeros(len(memory), self.hidden)
        heard, spoken, context = (zero, zero), (zero, zero), torch.zeros_like(memory[:, 0])
        now = total = torch.zeros_like(memory[:, :, 0])
        states = []
        for frame in before.unbind(1):
            heard = self.listener(torch.cat([frame, context], -1), heard)
            context, now = self.attention(heard[0], memory, torch.stack([now, total], 1))
            total = total + now
            spoken = self.speaker(torch.cat([heard[0], context], -1), spoken)
            states.append(torch.cat([spoken[0], context], -1))
        steps = torch.stack(states, 1)
        coarse = self.frame(steps)
        return coarse, coarse + self.postnet(coarse.mT).mT, self.stop(steps).squeeze(-1)


_register(  # a third of a second of speech: its loop of 40 steps is unrolled when it is traced
    "tacotron", Tacotron,
    {"letters": 148, "width": 512, "mels": 80, "hidden": 1024, "filters": 32},
    {"letters": 99, "width": 16, "mels": 6, "hidden": 12, "filters": 4},
    together(integers("input_ids", (60,), (7,)), floats("frames", (40, 80), (4, 6))), whole=False,
)  # fmt: skip


class WaveNet(nn.Module):
    """Gated causal convolutions, ever more dilated, over a wave of numbers; arXiv:1609.03499."""

    def __init__(self, levels: int, width: int, skip: int, stacks: int, depth: int) -> None:
        super().__init__()
        self.dilations = [1 << level for level in range(depth)] * stacks
        self.embed = nn.Embedding(levels, width)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=d) for d in self.dilations
        )
        self.mixes = nn.ModuleList(nn.Conv1d(width, width + skip, 1) for _ in self.dilations)
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, levels, 1)
        )
        self.width, self.skip = width, skip

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids).mT
        skipped = x.new_zeros(x.shape[0], self.skip, x.shape[2])
        for dilation, gate, mix in zip(self.dilations, self.gates, self.mixes, strict=True):
            value, door = gate(F.pad(x, (dilation, 0))).chunk(2, 1)
            more, skip = mix(value.tanh() * door.sigmoid()).split([self.width, self.skip], 1)
            x, skipped = x + more, skipped + skip
        return self.head(skipped)


_register(
    "wavenet", WaveNet, {"levels": 256, "width": 32, "skip": 256, "stacks": 3, "depth": 10},
    {"levels": 99, "width": 8, "skip": 12, "stacks": 2, "depth": 3},
    integers("input_ids", (2048,), (20,)), batch=1,
)  # fmt: skip


class TemporalConvolution(nn.Module):
    """Residual blocks of dilated causal convolutions with normalized weights; arXiv:1803.01271."""

    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv1d(features, width, 1)
        self.dilations = [1 << level for level in range(depth)]
        pairs = [[self._convolution(width, d) for _ in range(2)] for d in self.dilations]
        self.pairs = nn.ModuleList(map(nn.ModuleList, pairs))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, classes)

    @staticmethod
    def _convolution(width: int, dilation: int) -> nn.Module:
        return nn.utils.parametrizations.weight_norm(nn.Conv1d(width, width, 3, dilation=dilation))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        x = self.embed(series)
        for dilation, pair in zip(self.dilations, self.pairs, strict=True):
            y = x
            for convolution in pair:
                y = self.dropout(convolution(F.pad(y, (2 * dilation, 0))).relu())
            x = (x + y).relu()
        return self.head(x[:, :, -1])


_register(
    "temporal_convolution", TemporalConvolution,
    {"features": 12, "width": 128, "depth": 8, "classes": 10},
    {"features": 3, "width": 8, "depth": 3, "classes": 4},
    floats("series", (12, 1000), (3, 20)),
)  # fmt: skip
