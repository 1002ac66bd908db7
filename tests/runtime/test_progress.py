"""The line of long compilations: on a terminal alone, gone afterwards, and safe with threads."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from xla_dynamo.runtime.progress import wanted

LONG = """
import threading, time, sys
from xla_dynamo.runtime.progress import progress
"""
ONE = """
with progress.showing("forward of MyModel", "XLA"):
    time.sleep(2.6)
    print("mine")
    time.sleep(0.4)
print("done")
"""
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("CI", "PYTEST_CURRENT_TEST")}


def on_terminal(code, columns=80, interrupt_after=None, **environment):
    """What a terminal gets of a program, and the program's exit status."""
    ours, theirs = pty.openpty()
    given = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": str(columns), **environment}
    process = subprocess.Popen(
        [sys.executable, "-O", "-c", LONG + code], stdout=theirs, stderr=theirs, env=given
    )
    os.close(theirs)
    written, start = b"", time.monotonic()
    while time.monotonic() - start < 60:
        if interrupt_after and time.monotonic() - start > interrupt_after and b"XLA," in written:
            process.send_signal(2)
            interrupt_after = None
        if select.select([ours], [], [], 0.1)[0]:
            try:
                some = os.read(ours, 4096)
            except OSError:
                break
            if not some:
                break
            written += some
    os.close(ours)
    return written.decode(), process.wait(30)


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_shows_the_line_and_keeps_the_users_output():
    text, status = on_terminal(ONE)
    assert status == 0
    assert "compiling forward of MyModel: XLA, 2 s" in plain(text)
    lines = [line.strip() for line in plain(text).replace("\r", "\n").splitlines()]
    assert lines.count("mine") == 1
    assert lines.count("done") == 1
    assert text.rindex("\x1b[2K") < text.rindex("done"), "the line is wiped before"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0, "the cursor is back"


def test_a_narrow_terminal_gets_one_line():
    text, _ = on_terminal(ONE, columns=20)
    drawn = [part for part in re.split(r"[\r\n]", plain(text)) if "comp" in part]
    assert drawn
    assert max(map(len, drawn)) <= 20


@pytest.mark.parametrize(
    ("environment", "code"),
    [({"XLA_DYNAMO_PROGRESS": "0"}, ONE), ({"CI": "true"}, ONE), ({}, ONE.replace("2.6", "0.1"))],
)
def test_nothing_is_shown_or_imported(environment, code):
    text, status = on_terminal(code + "print('rich.live' in sys.modules)", **environment)
    assert status == 0
    assert text.replace("\r", "").split() == ["mine", "done", "False"]


def test_exceptions_and_interruptions_leave_a_clean_terminal():
    failing = ONE.replace('print("mine")', 'raise ValueError("no")')
    text, status = on_terminal(failing)
    assert status == 1
    assert "ValueError: no" in plain(text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0
    text, status = on_terminal(ONE.replace("2.6", "30"), interrupt_after=1.0)
    assert status == -2
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0


def test_threads_share_one_line():
    code = """
def work(name):
    with progress.showing(name, "XLA"):
        time.sleep(3)
threads = [threading.Thread(target=work, args=(f"part {i}",)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
time.sleep(0.3)
print([t.name for t in threading.enumerate()])
"""
    text, status = on_terminal(code)
    assert status == 0
    assert "(and 3 more)" in plain(text)
    assert "['MainThread']" in plain(text), "the thread that draws has ended"


def test_no_terminal_gets_nothing():
    assert not wanted()
    done = subprocess.run(
        [sys.executable, "-c", LONG + ONE], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (done.stdout, done.stderr) == ("mine\ndone\n", "")
