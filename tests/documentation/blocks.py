"""The code blocks of a page, as programs for the tests to run: what a page shows is tested.

A page's `python` blocks are one program, in the order of the page. HTML comments, which no reader
sees, tell the rest; each begins a line and ends with `-->`:

    <!-- run before ...code... -->   code that belongs to the program too, at this place: what the
    <!-- run after ...code... -->    next block needs, or what must be true of the last one
    <!-- run alone: PRINTED -->      the next block is a program of its own, which prints a text
                                     that this regular expression finds
    <!-- run by tests/FILE.py -->    the next block is run there, by this module
    <!-- quoted from FILE.py -->     the next block stands in this file of the package
    <!-- not run: REASON -->         the next block cannot run here
    <!-- whole page: run by ... -->  (or `not run: REASON`) all blocks
    <!-- run with NAME=VALUE ... --> environment variables of the page's programs
"""

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
PART = re.compile(
    r"^ *<!-- (?P<what>run before|run after|run alone:|run by|run with|quoted from|not run:"
    r"|whole page: run by|whole page: not run:)\s(?P<rest>.*?)-->$"
    r"|^(?P<indent> *)(?P<fence>```+)(?P<language>\w*).*?\n(?P<code>.*?)^(?P=indent)(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass
class Block:
    """A code block, and what the comment before it says.

    Attributes:
        code: with as many empty lines before it as the page has, so that errors tell its lines.
        alone: a program of its own, which prints what this expression finds.
        run_by: the test, below the repository, that runs it.
        quoted: the file, below the repository, that has it.
        not_run: why it cannot run here.
        is_shown: a block of the page, and not of a comment.
    """

    language: str
    code: str
    line: int
    section: str
    alone: str = ""
    run_by: str = ""
    quoted: str = ""
    not_run: str = ""
    is_shown: bool = True

    def is_elsewhere(self) -> bool:
        """Whether the block is no part of the page's own program."""
        return bool(self.alone or self.run_by or self.quoted or self.not_run)


def pages() -> list[str]:
    """The paths of all pages that somebody wrote, below the repository."""
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page from top to bottom, the code in comments among them."""
    text = (ROOT / page).read_text()
    said: dict[str, str] = {}
    whole: dict[str, str] = {}
    keys = {"run alone:": "alone", "run by": "run_by", "not run:": "not_run"}
    keys["quoted from"] = "quoted"
    for match in PART.finditer(text):
        what, rest = match["what"], (match["rest"] or "").strip()
        is_comment = what is not None
        start = match.start("rest" if is_comment else "code")
        line = text.count("\n", 0, start)
        if what in ("run before", "run after"):
            yield Block("python", "\n" * line + match["rest"], line + 1, "", is_shown=False)
        elif what in keys:
            said[keys[what]] = rest
        elif is_comment and what.startswith("whole page: "):
            whole[keys[what.removeprefix("whole page: ")]] = rest
        elif not is_comment:
            code = "\n" * line + textwrap.dedent(match["code"])
            sections = re.findall(r"^##+ (.+)$", FENCED.sub("", text[:start]), re.MULTILINE)
            section = sections[-1] if sections else ""
            yield Block(match["language"], code, line + 1, section, **{**whole, **said})
            said = {}
    assert not said, f"{page}: no block follows the last comment"


FENCED = re.compile(r"^( *)(```+).*?^\1\2$", re.MULTILINE | re.DOTALL)


def environment(page: str) -> dict[str, str]:
    """The environment variables that the page's programs run with."""
    text = (ROOT / page).read_text()
    given = [m["rest"].split() for m in PART.finditer(text) if m["what"] == "run with"]
    return dict(word.split("=", 1) for words in given for word in words)


def program(page: str) -> str:
    """The page's own program: each line stands where the page has it."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and not block.is_elsewhere():
            code = block.code.splitlines()
            lines += [""] * (len(code) - len(lines))
            lines[block.line - 1 : len(code)] = code[block.line - 1 :]
    return "\n".join(lines) + "\n"
