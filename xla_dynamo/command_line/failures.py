"""What ends a command with a message and no traceback."""


class CommandFailure(Exception):
    """A command cannot do what was asked; the message says why, and what to do.

    Attributes:
        status: the exit status: 1, or 2 where the command line is wrong.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status
