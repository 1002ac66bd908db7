"""Threads that compile in the background, as many as there are cores; the process ends cleanly.

XLA cannot stop a compilation, and a thread that is inside it when the process tears down C++'s
globals would crash. So the end of the process waits for the compilations that have begun, and drops
those that have not.
"""

import atexit
import collections
import os
import threading
from collections.abc import Callable

Job = Callable[[], None]


class BackgroundThreads:
    """Runs jobs in the order in which they come, `most` at a time.

    Its threads are daemons that end when nothing is left to do. A job must not raise.
    """

    def __init__(self, most: int) -> None:
        """Begin without a thread."""
        self._most = most
        self._lock = threading.Lock()
        self._jobs: collections.deque[Job] = collections.deque()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def submit(self, job: Job) -> bool:
        """Run a job soon; False, and no job, if the process is about to end."""
        with self._lock:
            if self._closed:
                return False
            self._jobs.append(job)
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name="xla_dynamo compile", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter starts no thread any more
                    self._jobs.remove(job)
                    return False
                self._threads.add(thread)
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._threads.discard(threading.current_thread())
                    return
                job = self._jobs.popleft()
            job()

    def close(self) -> None:
        """Drop the jobs that have not begun, and wait for the others."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
        self.wait()

    def wait(self) -> None:
        """Wait until no job is left."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()


_threads: BackgroundThreads | None = None
_lock = threading.Lock()


def submit(job: Job) -> bool:
    """Run a job in one of the threads of this process: see `BackgroundThreads.submit`."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = BackgroundThreads(max(2, os.cpu_count() or 1))
            # After the import of jax, so before jax lets go of its clients.
            atexit.register(_threads.close)
    return _threads.submit(job)


def wait() -> None:
    """Wait until nothing is compiled in the background."""
    if _threads is not None:
        _threads.wait()
