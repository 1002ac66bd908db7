"""Start the server: load and compile a model while it says so, answer, and end in order."""

import dataclasses
import gc
import logging
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import transformers
import uvicorn
from transformers.cli.serving.server import build_server

from xla_dynamo.errors import OptionError
from xla_dynamo.serving.engine import Engine
from xla_dynamo.serving.gate import Gate, error_answers
from xla_dynamo.serving.handlers import Chat, Completion, OneEngine, OneModel
from xla_dynamo.serving.loading import load
from xla_dynamo.serving.measurements import Measurements
from xla_dynamo.serving.prepare import compilations, prepare
from xla_dynamo.serving.request_forms import Bounds
from xla_dynamo.serving.sizes import Sizes
from xla_dynamo.serving.tiny_model import write_tiny_model

_log = logging.getLogger("xla_dynamo.serving")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a server is started with.

    Attributes:
        model: the folder of the model; None for a tiny one that is made.
        name: what requests call it; None for the folder's name.
        host: the address to listen at.
        port: likewise; 0 for a free one.
        dtype: see `loading.load`.
        quantize: see `loading.load`.
        longest: see `Sizes`; None for what `Sizes.of` takes.
        requests: see `Sizes`.
        batch_tokens: see `Sizes`.
        cache_tokens: see `Sizes`; None for what `Sizes.of` takes.
        prompt: the most tokens of a prompt; None for what fits.
        answer: the most tokens of an answer; None for what fits.
        body: the most bytes of a request's body.
        waiting: the most requests that wait while `requests` others are worked on.
        grace: seconds for what was begun, when the server is told to end.
        options: of the backend.
    """

    model: Path | None = None
    name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    dtype: str = "auto"
    quantize: str = "none"
    longest: int | None = None
    requests: int = 16
    batch_tokens: int = 256
    cache_tokens: int | None = None
    prompt: int | None = None
    answer: int | None = None
    body: int = 1 << 20
    waiting: int = 64
    grace: float = 30.0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


class Server:
    """A server of one model.

    Attributes:
        address: where it listens, as "http://127.0.0.1:8000".
        failure: what stopped the model from being loaded and compiled, or None.
    """

    def __init__(self, settings: Settings) -> None:
        """Listen; nothing is loaded yet.

        Raises:
            OptionError: the address is taken, or not of this machine.
        """
        self._settings = settings
        self._name = settings.name or (settings.model.resolve().name if settings.model else "tiny")
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            self._socket = socket.create_server((settings.host, settings.port), family=family)
        except (OSError, OverflowError) as error:
            place = f"{settings.host}:{settings.port}"
            raise OptionError(
                f"cannot listen at {place}: {error}; choose another --port"
            ) from error
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"http://{host}:{self._socket.getsockname()[1]}"
        self.failure: Exception | None = None
        self._measurements = Measurements(self._name)
        self._gate = Gate(self._measurements, settings.body, settings.requests + settings.waiting)
        config = uvicorn.Config(
            self._gate,
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=settings.grace,  # type: ignore[arg-type]  # seconds
        )
        self._uvicorn = _Uvicorn(config, self._gate)

    def run(self) -> int:
        """Serve until a signal ends it; returns the exit status.

        It is 0 behind SIGTERM and SIGINT, and 1 where the model could not be loaded or compiled.
        """
        # uvicorn raises the signal again when it is done, for whoever started it.
        before = {s: signal.signal(s, _stay) for s in (signal.SIGTERM, signal.SIGINT)}
        threading.Thread(target=self._open, name="warm-up", daemon=True).start()
        try:
            self._uvicorn.run(sockets=[self._socket])
        finally:
            gc.freeze()  # else the process would look at all its objects again before it ends
            if self._gate.engine is not None:
                self._gate.engine.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 1 if self.failure else 0

    def _open(self) -> None:
        """Load and compile the model, and let requests in."""
        try:
            self._say(f"loading and compiling; {self.address}/health says when it is ready")
            self._gate.application, self._gate.engine = self._made()
        except Exception as error:
            self.failure = error
            self._uvicorn.should_exit = True
            return
        self._say(f"ready: {self._name} at {self.address}/v1")

    def _made(self) -> tuple[Any, Engine]:
        settings = self._settings
        start = time.perf_counter()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        with tempfile.TemporaryDirectory() as made:
            folder = settings.model
            if folder is None:
                folder = Path(made)
                write_tiny_model(folder)
            model, tokenizer = load(folder, settings.dtype, settings.quantize)
        sizes = Sizes.of(
            model.config.get_text_config(),
            longest=settings.longest,
            requests=settings.requests,
            batch_tokens=settings.batch_tokens,
            cache_tokens=settings.cache_tokens,
        )
        loading = time.perf_counter() - start
        before = compilations()
        prepared = prepare(model, sizes, options=settings.options)
        self._say(
            f"loaded in {loading:.1f} s; {prepared.executables} sizes of batches in "
            f"{prepared.seconds:.1f} s, {compilations() - before} compilations"
        )
        gc.collect()
        gc.freeze()  # what is there stays: requests need not wait until it is looked at again
        engine = Engine(prepared, self._measurements)
        engine.start()
        most = sizes.longest - 1
        bounds = Bounds(
            name=self._name,
            longest=sizes.longest,
            prompt=min(settings.prompt or most, most),
            answer=min(settings.answer or most, most),
        )
        return made_application(model, tokenizer, engine, bounds, self._measurements), engine

    def _say(self, text: str) -> None:
        print(text, flush=True)


def made_application(
    model: Any, tokenizer: Any, engine: Engine, bounds: Bounds, measurements: Measurements
) -> Any:
    """The application of transformers, of FastAPI, for one model and an engine that works.

    It stands behind a `Gate`, which knows the paths of chats, completions and models alone.
    """
    manager, state = OneModel(bounds.name, model, tokenizer), OneEngine(engine, bounds)
    unused: Any = None
    application = build_server(
        manager,
        Chat(manager, state, bounds),
        completion_handler=Completion(manager, state, bounds),
        response_handler=unused,
        transcription_handler=unused,
        systemone_handler=unused,
        generation_state=state,
    )
    for raised, answer in error_answers(measurements).items():
        application.add_exception_handler(raised, answer)
    return application


class _Uvicorn(uvicorn.Server):
    """uvicorn, which lets no request in behind a signal."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._gate.is_closing = True
        super().handle_exit(sig, frame)


def _stay(*_: Any) -> None:
    """What a signal does that has been seen to."""
