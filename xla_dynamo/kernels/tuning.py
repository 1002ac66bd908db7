"""Measure on this machine which forms of calls are the fastest (`options={"tune": True}`)."""

import concurrent.futures
import logging
import math
import threading
from collections.abc import Iterable

from xla_dynamo.errors import XlaDynamoError
from xla_dynamo.kernels import measurements
from xla_dynamo.kernels.libraries import can_execute_packed
from xla_dynamo.kernels.measurements import Measurement
from xla_dynamo.kernels.product_choices import Sizes, shipped
from xla_dynamo.kernels.product_forms import choice_of, forms_of
from xla_dynamo.kernels.trials import median_seconds
from xla_dynamo.runtime.cpu.onednn import OneDNNError

log = logging.getLogger("xla_dynamo")
# Products of more elements than this take too much memory beside the model.
_LARGEST = 1 << 28
# What is timed while something else is timed is timed wrong.
_alone = threading.Lock()


def measure(asked: Iterable[Sizes]) -> bool:
    """Measure what was never measured of what was asked; whether there was anything.

    It is done in a thread of its own, where no mode of torch's is active: whoever compiles traces.
    """
    with _alone:
        unknown = [s for s in asked if measurements.find(s.question) is None and _fits(s)]
        if not unknown or not can_execute_packed():
            return False
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            measurements.add(dict(pool.map(_measured, sorted(unknown, key=lambda s: s.question))))
    return True


def _fits(sizes: Sizes) -> bool:
    m, k, n = sizes.rows, sizes.inner, sizes.columns
    return sizes.stack * max(m * k, k * n, m * n) <= _LARGEST and math.prod(sizes[1:5]) > 0


def _measured(sizes: Sizes) -> tuple[str, Measurement]:
    """The question, and what was measured; no answer where oneDNN or XLA cannot compute a form."""
    try:
        seconds = median_seconds(forms_of(sizes))
    except (XlaDynamoError, OneDNNError) as error:
        log.info("tuning: %s: %s", sizes.question, error)
        return sizes.question, Measurement({}, {})
    choice = choice_of(seconds, shipped(sizes))
    log.info("tuning: %s: %s of %s", sizes.question, choice, seconds)
    return sizes.question, Measurement(choice._asdict(), seconds)
