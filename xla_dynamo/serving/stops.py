"""Find stop strings in a text that comes in pieces, and hold back what may begin one."""

from collections.abc import Sequence


class StopFinder:
    """Passes a text on until a stop string comes.

    Attributes:
        strings: the stop strings.
        passed: all that may be sent so far, a str.
        is_found: whether a stop string has come; nothing is passed on behind it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings, none of them empty; without any, all is passed on at once."""
        self.strings = tuple(stops)
        self._held = ""
        self.passed = ""
        self.is_found = False

    def feed(self, piece: str) -> str:
        """Take the next piece of the text; what of the text may be sent now."""
        if self.is_found:
            return ""
        text = self._held + piece
        places = [place for stop in self.strings if (place := text.find(stop)) >= 0]
        if places:
            self.is_found, self._held = True, ""
            return self._pass(text[: min(places)])
        keep = max((_beginning(text, stop) for stop in self.strings), default=0)
        self._held = text[len(text) - keep :]
        return self._pass(text[: len(text) - keep])

    def rest(self) -> str:
        """The text is over: what was held back, and begins no stop string after all."""
        held, self._held = self._held, ""
        return self._pass(held)

    def _pass(self, text: str) -> str:
        self.passed += text
        return text


def _beginning(text: str, stop: str) -> int:
    """How many of the last characters of a text are the first ones of a stop string."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
