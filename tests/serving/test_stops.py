"""Stop strings in a text that comes in pieces."""

import random

import pytest

from xla_dynamo.serving.stops import StopFinder


@pytest.mark.parametrize(
    ("stops", "pieces", "sent"),
    [
        (["."], ["a", "b.", "c"], ["a", "b", ""]),
        (["END"], ["xE", "N", "x"], ["x", "", "ENx"]),  # what began one, and was none
        (["END"], ["xE", "N", "D", "x"], ["x", "", "", ""]),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""]),
        (["bc", "abcd"], ["a", "b", "c"], ["", "", "a"]),
        ([], ["a", "b"], ["a", "b"]),
    ],
)
def test_what_may_be_sent(stops, pieces, sent):
    finder = StopFinder(stops)
    assert [finder.feed(piece) for piece in pieces] == sent
    assert finder.passed == "".join(sent)


def test_the_rest_is_sent_at_the_end():
    finder = StopFinder(["END"])
    assert finder.feed("the EN") == "the "
    assert (finder.rest(), finder.rest(), finder.passed) == ("EN", "", "the EN")
    assert not finder.is_found


def test_random_texts():
    """However a text is cut, and whatever stops it: what is sent ends before the first stop."""
    draw = random.Random(0)
    for _ in range(2000):
        text = "".join(draw.choices("ab", k=20))
        stops = ["".join(draw.choices("ab", k=draw.randint(1, 6))) for _ in range(2)]
        finder, end = StopFinder(stops), 0
        while end < len(text) and not finder.is_found:
            step = draw.randint(1, 3)
            finder.feed(text[end : end + step])
            end += step
        finder.rest()
        # Of those that are complete in what was fed, the one that begins first.
        places = [p for stop in stops if (p := text[:end].find(stop)) >= 0]
        assert finder.is_found == bool(places)
        assert finder.passed == (text[: min(places)] if places else text)
