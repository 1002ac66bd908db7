"""The blocks of docs/recipes.md, for the tests to run: what the page shows is what is tested."""

import pathlib
import re
from typing import Any

import torch

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "recipes.md"


def blocks() -> dict[str, str]:
    """The Python blocks by the title of their section, each at the lines where the page has it."""
    text = PAGE.read_text()
    found = {}
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        title = re.findall(r"^## (.+)$", text[: match.start()], re.MULTILINE)[-1]
        assert title not in found, f"{PAGE.name}: two blocks in the section {title!r}"
        found[title] = "\n" * text.count("\n", 0, match.start(1)) + match[1]
    return found


def run_recipe(title: str, **names: Any) -> dict[str, Any]:
    """Run the block of a section with these names, and return the names as it leaves them."""
    names["torch"] = torch
    exec(compile(blocks()[title], str(PAGE), "exec"), names)
    return names
