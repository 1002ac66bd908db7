"""What a test lets a process meet."""

import os
import signal


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def fail():
    raise ValueError("this one fails")
