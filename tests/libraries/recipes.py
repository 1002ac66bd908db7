"""The blocks of docs/recipes.md, for the tests to run: what the page shows is what is tested."""

from typing import Any

import torch

from tests.documentation import blocks as page_blocks
from tests.documentation.blocks import ROOT

PAGE = ROOT / "docs" / "recipes.md"


def blocks() -> dict[str, str]:
    """The Python blocks by the title of their section, each at the lines where the page has it."""
    found: dict[str, str] = {}
    for block in page_blocks.blocks("docs/recipes.md"):
        assert block.section not in found, f"{PAGE.name}: two blocks in {block.section!r}"
        found[block.section] = block.code
    return found


def run_recipe(title: str, **names: Any) -> dict[str, Any]:
    """Run the block of a section with these names, and return the names as it leaves them."""
    names["torch"] = torch
    exec(compile(blocks()[title], str(PAGE), "exec"), names)
    return names
