"""What was measured on this machine: by question, the answer, and how long each form took.

A question is the text of a call; the answer says which of its forms to take. What was measured on
processors of one model, by as many threads and with the same libraries, is one entry of the disk
cache. A process reads the entry once. One that has measured more writes it anew, with what others
have written since; where two write at once, the one's measurements are measured again some day.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import jaxlib.version
import torch

from xla_dynamo.process_state import kept
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.runtime.cache_settings import disk_cache
from xla_dynamo.runtime.cpu.features import processor
from xla_dynamo.runtime.saved_executables import digest

log = logging.getLogger("xla_dynamo")
KIND = "choices"
_lock = threading.Lock()


class Measurement(NamedTuple):
    """What was measured for a question.

    Attributes:
        answer: by what is to be chosen, the form to take.
        seconds: of a call in each form.
    """

    answer: Mapping[str, str]
    seconds: Mapping[str, float]


class _Known:
    """What this process knows, and the folder that it has read."""

    def __init__(self) -> None:
        self.folder: CacheFolder | None = None
        self.measurements: dict[str, Measurement] = {}
        self.are_ignored = False


_known = kept(_Known)


def find(question: str) -> Measurement | None:
    """What was measured for a question, here or by an earlier process; None if nothing was."""
    with _lock:
        return None if _known.are_ignored else _read().get(question)


def everything() -> dict[str, Measurement]:
    """All that is known, by question."""
    with _lock:
        return dict(_read())


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """In this block nothing counts as measured, in all threads: as if nobody had tuned."""
    _known.are_ignored = True
    try:
        yield
    finally:
        _known.are_ignored = False


def add(found: Mapping[str, Measurement]) -> None:
    """Take what was just measured, and keep it on disk."""
    with _lock:
        known = _read()
        known.update(found)
        folder, key = _known.folder, _key()
        if folder is not None and key is not None:
            known.update({k: v for k, v in _load(folder, key).items() if k not in known})
            folder.write(KIND, key, _text(known).encode())


def fingerprint() -> str:
    """A text that is another one where another answer is known: programs may differ then."""
    with _lock:
        known = {} if _known.are_ignored else _read()
        answers = {question: one.answer for question, one in known.items()}
        return json.dumps(answers, sort_keys=True)


def _read() -> dict[str, Measurement]:
    """All that is known. Whoever asks holds the lock."""
    folder = disk_cache()
    if folder is not None and folder is not _known.folder and (key := _key()) is not None:
        _known.measurements.update(_load(folder, key))
        _known.folder = folder
    return _known.measurements


def _key() -> str | None:
    """The key of the entry; None where nothing tells one processor from another."""
    here = processor()
    if here is None:
        return None
    return digest([here, jax.__version__, jaxlib.version.__version__, torch.__version__])


def _text(known: Mapping[str, Measurement]) -> str:
    return json.dumps({question: one._asdict() for question, one in known.items()})


def _load(folder: CacheFolder, key: str) -> dict[str, Measurement]:
    """What an entry holds; nothing if it is not there or not readable."""
    data = folder.read(KIND, key)
    if data is None:
        return {}
    try:
        read = {q: Measurement(**one) for q, one in json.loads(data).items()}
        if not all(_is_one(one) for one in read.values()):
            raise ValueError("an answer is no text, or a time no number")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        log.warning("disk cache: measurements are not used: %s", error)
        return {}
    return read


def _is_one(one: Measurement) -> bool:
    answers, times = one
    texts = isinstance(answers, dict) and all(isinstance(x, str) for x in answers.values())
    return texts and isinstance(times, dict) and all(isinstance(x, float) for x in times.values())
