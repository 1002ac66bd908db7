"""docs/recipes.md is true: its blocks are what the tests run, and the tests that it names exist."""

import ast
import pathlib
import re

import pytest

from tests.libraries.recipes import PAGE, blocks

TESTS = pathlib.Path(__file__).parent
ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \| \[(.+?)\]\((.+?)\)`::(.+?)` \|$", re.MULTILINE)


def trees():
    paths = (*TESTS.glob("test_*.py"), *TESTS.parent.glob("test_*.py"))
    return [ast.parse(p.read_text()) for p in paths if "run_recipe" in p.read_text()]


def functions(path):
    return {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}


def test_every_row_names_a_test():
    rows = ROW.findall(PAGE.read_text())
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == len(table) - 1, "a row is not of the form that this test reads"
    for *_, works, name, link, test in rows:
        path = (PAGE.parent / link).resolve()
        assert path.name == name
        assert test in functions(path), f"{name} has no {test}"
        assert works.startswith(("yes", "no: ")), works


@pytest.mark.parametrize("title", blocks())
def test_every_block_is_run_by_a_test(title):
    calls = [n for tree in trees() for n in ast.walk(tree) if isinstance(n, ast.Call)]
    run = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "run_recipe"
    }
    assert title in run


def test_links_within_the_page():
    text = PAGE.read_text()
    anchors = {t.lower().replace(" ", "-") for t in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(.+?)\)", text)) <= anchors
