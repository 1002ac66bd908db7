"""What `doctor` finds, as rows of a table."""

import dataclasses
from collections.abc import Iterator, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: of the thing.
        value: what was found.
        advice: what is wrong with it and what to do; "" where all is well.
    """

    name: str
    value: str
    advice: str = ""

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.advice


def show(sections: Sequence[tuple[str, Sequence[Finding]]]) -> None:
    """Print findings under the headings of their sections, each on one line, however long."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:  # one of the findings
        for heading, findings in sections:
            print(heading, *(line for line, _ in _lines(findings)), sep="\n")
        return
    console = Console(soft_wrap=True)
    for heading, findings in sections:
        console.print(Text(heading, "bold"))
        for line, style in _lines(findings):
            console.print(Text(line, style))


def _lines(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    """The lines and their styles."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark, style = ("ok", "") if finding.is_well else ("!!", "bold red")
        yield f"{mark}  {finding.name:{width}}  {finding.value}", style
        if finding.advice:
            yield f"    {'':{width}}  {finding.advice}", "yellow"
