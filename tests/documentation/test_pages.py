"""Every code block of every page runs, or its page says why it cannot."""

import argparse
import ast
import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from tests import fresh_process
from tests.documentation.blocks import ROOT, blocks, environment, pages, program
from xla_dynamo import command_line

PAGES = ["README.md", *pages()]
PROGRAMS = [p for p in PAGES if program(p).strip()]
ALONE = [(p, b) for p in PAGES for b in blocks(p) if b.alone]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def run(page, code, folder):
    """Run a program as a file, which Dynamo's messages and processes that it starts can read."""
    path = folder / "page.py"
    path.write_text(code)
    text = f"""
        import os, runpy, sys
        import bench  # before transformers, as in conftest.py
        os.chdir({str(folder)!r})
        sys.argv = [{str(path)!r}]
        sys.path.insert(0, {str(folder)!r})
        runpy.run_path({str(path)!r}, run_name="__main__")
    """
    cache = {"XLA_DYNAMO_CACHE_DIR": str(folder / "cache")}
    done = fresh_process.run(text, seconds=400, **{**cache, **environment(page)})
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


@pytest.mark.every(3)
@pytest.mark.parametrize("page", PROGRAMS)
def test_the_blocks_of_a_page(page, tmp_path):
    run(page, program(page), tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_are_python_and_quotations_are_true(page):
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.code, page)
        if block.quoted:
            text = (ROOT / block.quoted).read_text()
            assert block.code.strip() in text, f"{page}:{block.line} is no longer in {block.quoted}"


@pytest.mark.every(3)
@pytest.mark.parametrize(("page", "block"), ALONE, ids=[f"{p}-{b.line}" for p, b in ALONE])
def test_a_block_that_is_a_program(page, block, tmp_path):
    # In an interpreter of its own: it starts processes.
    printed = run_as_a_command(page, block.code, tmp_path)
    assert re.search(block.alone, printed, re.MULTILINE), printed


def run_as_a_command(page, code, folder):
    (folder / "program.py").write_text(code)
    kept = {k: v for k, v in os.environ.items() if k != "CPU_NUM_DEVICES"}
    ended = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**kept, "XLA_DYNAMO_CACHE_DIR": str(folder / "cache"), **environment(page)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert not ended.returncode, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.parametrize("page", PAGES)
def test_what_is_run_elsewhere_is_run_there(page):
    for block in blocks(page):
        if block.run_by:
            text = (ROOT / block.run_by).read_text()
            assert page.rpartition("/")[2] in text or "run_recipe" in text, block.run_by
        assert block.not_run != "REASON"


def test_what_is_not_run_has_a_reason(capsys):
    """Few blocks: a GPU, other hosts. Each reason is printed by `pytest -s`."""
    unrun = [(p, b) for p in PAGES for b in blocks(p) if b.not_run]
    with capsys.disabled():
        for page, block in unrun:
            print(f"\n{page}:{block.line} is not run: {block.not_run}", end="")
    assert all(len(b.not_run.split()) > 3 for _, b in unrun)
    assert len(unrun) <= 8


# --- commands ------------------------------------------------------------------------------------


def commands(page):
    """The commands of blocks for a shell, `$ command` in others, and `command` in the text."""
    for block in blocks(page):
        code = block.code.strip().replace("\\\n", " ")
        if block.language in ("sh", "bash", "console", "") and block.is_shown:
            prompts = re.findall(r"^\$ (.+)$", code, re.MULTILINE)
            lines = code.splitlines()
            if not prompts and (block.language in ("sh", "bash") or code.startswith("xla-dynamo")):
                prompts = lines
            yield from prompts
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    yield from re.findall(r"`((?:python -m|make|xla-dynamo) [^`]+)`", text)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_exist(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands(page):
        for part in re.split(r"\s(?:&&|\||&|;)\s?|\s#\s?", command)[:-1] or [command]:
            check(part.strip(), targets, command)
        check(re.split(r"\s(?:&&|&|\||#)(?:\s|$)", command)[0], targets, command)


def check(part, targets, command):
    try:
        words = shlex.split(part, comments=True)
    except ValueError:
        return  # a quotation that goes on in the next line
    while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
        words.pop(0)
    match words:
        case ["make", target, *_] if "=" not in target:
            assert target in targets, command
        case ["python", "-m", "xla_dynamo", *arguments] | ["xla-dynamo", *arguments]:
            parses(arguments, command)
        case ["python", "-m", module, *_]:
            assert exists(module), command
        case ["pip", "install", *wanted]:
            for extra in re.findall(r"xla-dynamo\[([\w,]+)\]", " ".join(wanted)):
                assert set(extra.split(",")) <= set(EXTRAS), command


def exists(module):
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


def parses(arguments, command):
    """Whether the command line takes the arguments: its parser sees them, and nothing runs."""
    if not arguments or not arguments[0].islower() or len(arguments) == 1:
        assert not arguments or arguments[0] in (*command_line.COMMANDS, "COMMAND"), command
        return
    parsed = []
    kept = argparse.ArgumentParser.parse_args

    def parse(self, given=None, namespace=None):
        parsed.append(kept(self, given, namespace))
        raise KeyboardInterrupt

    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stderr(io.StringIO()) as said,
        contextlib.suppress(KeyboardInterrupt, SystemExit),
    ):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        command_line.main(arguments)
    assert parsed or "--help" in arguments, f"{command}: {said.getvalue()}"
