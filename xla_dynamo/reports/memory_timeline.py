"""The memory of a process over the calls of its programs, as rows and as a picture in SVG."""

import dataclasses
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from xla_dynamo.reports.memory import Moment, ProgramMemory, memory_of

if TYPE_CHECKING:
    from xla_dynamo.reports.watched_calls import WatchedCalls

_WIDTH, _HEIGHT, _LEFT = 900, 160, 70
# A browser draws no more steps than there are pixels.
_MOST_STEPS = 900


@dataclasses.dataclass(frozen=True, slots=True)
class CallMemory:
    """The memory around one call of a program.

    Attributes:
        program: its name.
        end: when the call ended, by `time.perf_counter`.
        before, after: the process's resident bytes.
        peak_bytes: what the program needs at its peak by its schedule, arguments included.
    """

    program: str
    end: float
    before: int
    after: int
    peak_bytes: int


def timeline_of(calls: Sequence["WatchedCalls"]) -> list[CallMemory]:
    """The latest calls of all programs, in the order in which they ended."""
    found = []
    for one in calls:
        memory = memory_of(one.built) if one.memory else None
        peak = memory.peak_bytes if memory else 0
        found += [
            CallMemory(one.built.name, s.end, s.before, s.after, peak) for s in list(one.memory)
        ]
    return sorted(found, key=lambda call: call.end)


def picture_of_calls(calls: Sequence[CallMemory]) -> str:
    """Resident bytes before and after each call, from left to right; "" where there is no call."""
    steps = [
        (title, nbytes)
        for call in calls[-_MOST_STEPS // 2 :]
        for title, nbytes in (
            (f"before {call.program}", call.before),
            (f"after {call.program}", call.after),
        )
    ]
    return _picture(steps)


def picture_of_program(memory: ProgramMemory) -> str:
    """The bytes at each instruction of a program's schedule; "" for a program without any."""

    def title(moment: Moment) -> str:
        where = "".join(f" {p.file}:{p.line}" for p in moment.places[:1] if p.file)
        return moment.instruction + where

    # Of neighbours that would share a pixel, the one of most memory is drawn.
    moments = memory.timeline
    each = -(-len(moments) // _MOST_STEPS) or 1
    groups = [moments[i : i + each] for i in range(0, len(moments), each)]
    largest = [max(group, key=lambda moment: moment.bytes) for group in groups]
    return _picture([(title(moment), moment.bytes) for moment in largest])


def _picture(steps: Sequence[tuple[str, int]]) -> str:
    if not steps:
        return ""
    most = max(nbytes for _, nbytes in steps) or 1
    each = (_WIDTH - _LEFT) / len(steps)
    bars = []
    for index, (title, nbytes) in enumerate(steps):
        height = (_HEIGHT - 20) * nbytes / most
        bars.append(
            f'<rect x="{_LEFT + index * each:.2f}" y="{_HEIGHT - height:.2f}" '
            f'width="{each:.2f}" height="{height:.2f}">'
            f"<title>{escape(title)}: {nbytes:,} bytes</title></rect>"
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" width="100%" fill="#33658a">'
        f'<text x="0" y="20" font-size="12" fill="currentColor">{most / 2**20:,.1f} MiB</text>'
        f'<text x="0" y="{_HEIGHT - 2}" font-size="12" fill="currentColor">0</text>'
        f"{''.join(bars)}</svg>"
    )
