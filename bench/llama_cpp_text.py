"""Text by llama.cpp from the weights of a model of transformers, greedily, as `generate` gives it.

It needs `pip install gguf llama-cpp-python`; the second is built from its source, with CMake and a
C++ compiler, for the processor that it is built on.
"""

import functools
import pathlib
import tempfile
from typing import Any

import numpy as np
import torch

from bench import gguf_file


@functools.cache
def _told_nobody(api: Any) -> Any:
    """What llama.cpp logs to; it lives as long as the process does, for llama.cpp holds it."""
    return api.llama_log_callback(lambda level, text, data: None)


class LlamaCpp:
    """A context of llama.cpp for some texts at a time, called as `model.generate` is."""

    def __init__(
        self, model: torch.nn.Module, kind: str, *, threads: int, batch: int, places: int
    ) -> None:
        """Write the model's GGUF file and load it.

        Args:
            model: what `gguf_file.write` takes.
            kind: a name of `gguf_file.KINDS`.
            threads: of llama.cpp.
            batch: how many texts there are in each call.
            places: the most tokens of a text.
        """
        import llama_cpp as api

        self._api = api
        api.llama_log_set(_told_nobody(api), None)
        settings = api.llama_model_default_params()
        settings.n_gpu_layers = 0
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.gguf"
            gguf_file.write(model, path, kind)
            settings.use_mmap = False  # the file goes
            # Its kernels for AMX, which are for narrow weights, end with a segmentation fault.
            settings.use_extra_bufts = kind not in ("int8", "int4")
            self._model = api.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load the GGUF file of a {type(model).__name__}")
        settings = api.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = places * batch, batch
        settings.n_batch = settings.n_ubatch = 512
        settings.n_threads = settings.n_threads_batch = threads
        cache = api.GGML_TYPE_F32 if kind == "float32" else api.GGML_TYPE_F16
        settings.type_k = settings.type_v = cache
        self._context = api.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no context of {batch} texts of {places} tokens")
        self._words = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def __call__(self, ids: torch.Tensor, *, max_new_tokens: int, **kwargs: Any) -> torch.Tensor:
        """The texts with so many tokens more, int64 [batch, length + tokens]."""
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        for text, row in enumerate(ids.tolist()):  # the last tokens go together with the others'
            self._decode([(token, place, text, False) for place, token in enumerate(row[:-1])])
        texts = ids
        for _ in range(max_new_tokens):
            place = texts.shape[1] - 1
            rows = [(token, place, text, True) for text, token in enumerate(texts[:, -1].tolist())]
            self._decode(rows)
            best = [self._likeliest(row) for row in range(len(rows))]
            texts = torch.cat((texts, torch.tensor(best)[:, None]), dim=1)
        return texts

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """Run tokens, each with its place, its text, and whether its logits are wanted."""
        if not tokens:
            return
        batch = self._api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for row, (token, place, text, wanted) in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.logits[row] = token, place, wanted
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, text
        status = self._api.llama_decode(self._context, batch)
        self._api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama.cpp's llama_decode returns {status}")

    def _likeliest(self, row: int) -> int:
        logits = self._api.llama_get_logits_ith(self._context, row)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self._words,))))

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._api.llama_free(self._context)
        if getattr(self, "_model", None):
            self._api.llama_model_free(self._model)
