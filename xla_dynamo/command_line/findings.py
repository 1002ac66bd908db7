"""What `doctor` finds, as rows of a table."""

import dataclasses
from collections.abc import Sequence


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
    """Print findings under the headings of their sections."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # one of the findings
        _show_plainly(sections)
        return
    console = Console(soft_wrap=True)
    for heading, findings in sections:
        table = Table.grid(padding=(0, 2))
        for finding in findings:
            mark = Text("ok", "green") if finding.is_well else Text("!!", "bold red")
            table.add_row(mark, Text(finding.name), Text(finding.value))
            if finding.advice:
                table.add_row("", "", Text(finding.advice, "yellow"))
        console.print(Text(heading, "bold"))
        console.print(table)


def _show_plainly(sections: Sequence[tuple[str, Sequence[Finding]]]) -> None:
    for heading, findings in sections:
        print(heading)
        for finding in findings:
            print("ok" if finding.is_well else "!!", f"{finding.name}: {finding.value}")
            if finding.advice:
                print(f"   {finding.advice}")
