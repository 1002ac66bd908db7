"""SIGTERM ends a server in order, and a later server finds what the first one compiled."""

import re
import signal
import threading
import time

import pytest

from tests.serving.running import Running


def in_threads(running, number, tokens):
    """Requests that have begun, and the list that their texts come into."""
    found = []

    def ask(n):
        try:
            found.append((n, running.completed(f"request {n}", tokens)))
        except (OSError, AssertionError) as error:
            found.append((n, error))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    running.until(lambda: taken(running) >= number, seconds=20)
    assert len(found) < number
    return threads, found


def taken(running):
    """How many requests have been taken, ended or not."""
    told = running.metrics()
    ended = sum(n for name, n in told.items() if name.startswith("vllm:request_success_total"))
    return told["vllm:num_requests_running"] + told["vllm:num_requests_waiting"] + ended


def test_a_second_server_from_its_start_to_its_end(served, cache, tmp_path, alone):
    """It says when it is not ready, loads all executables, and finishes what was begun.

    Also what waits for a batch; what comes later is refused, by the server or by its socket.
    """
    running = Running(cache, tmp_path)
    status, said = running.health()
    assert status == 503
    assert "loaded and compiled" in said["reason"]
    status, said = running.ask("/v1/completions", {"prompt": "x"})
    assert status == 503
    assert said["error"]["type"] == "server_error"
    with running:
        assert running.health() == (200, {"status": "ok"})
        # Dynamo's graph, and no program of XLA: the server of the other tests has left them.
        said = running.log.read_text()
        assert re.search(r"6 sizes of batches in [\d.]+ s, 1 compilations", said), said
        threads, found = in_threads(running, 7, 110)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        try:
            late = running.ask("/v1/completions", {"prompt": "late"})[0]
        except OSError:
            late = "refused"
        assert running.process.wait(60) == 0, running.log.read_text()
        for thread in threads:
            thread.join()
    assert late in ("refused", 503)
    assert sorted(found) == [(n, alone.completed(f"request {n}", 110)) for n in range(7)]
    assert "Traceback" not in running.log.read_text()


@pytest.mark.slow  # a server more
def test_after_the_grace_the_process_ends_all_the_same(cache, tmp_path):
    with Running(cache, tmp_path, "--grace", "0") as running:
        threads, found = in_threads(running, 7, 110)
        assert running.stop(20) == 0
        for thread in threads:
            thread.join()
        assert any(isinstance(text, Exception) for _, text in found)
        assert "Traceback" not in running.log.read_text()


@pytest.mark.slow  # a server more
def test_it_ends_while_it_compiles(tmp_path):
    running = Running(tmp_path / "cache", tmp_path)
    try:
        assert running.health()[0] == 503
        assert running.stop(30) == 0
    finally:
        running.__exit__()
