"""What the site shows beside docs/: source files that pages link to, and names of the reference.

MkDocs calls the functions that are named `on_...` (mkdocs.yml, "hooks").
"""

import ast
import functools
import importlib
import pathlib
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parent.parent
FENCE = re.compile(r"^( *)(`{3,})(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
# What the tests do around a code block (tests/documentation/blocks.py) is not for readers.
COMMENT = re.compile(r"^ *<!-- (?:run|not run|quoted|whole).*?-->\n\n?", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"^::: (xla_dynamo[\w.]*)$", re.MULTILINE)
TEXT = (".md", ".py")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file and folder outside of docs/ that a page links to."""
    waiting = [
        target
        for file in files.documentation_pages()
        for target in targets(f"docs/{file.src_uri}", pathlib.Path(file.abs_src_path).read_text())
    ]
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(uri := page_of(path)):
            continue
        place = ROOT / path
        if place.is_file() and place.suffix not in TEXT:
            files.append(File.generated(config, uri, abs_src_path=str(place)))
            continue
        text = source_page(path)
        files.append(File.generated(config, uri, content=text))
        waiting.extend(targets(path, text) if place.is_dir() or path.endswith(".md") else ())
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the page's links to source files, and its names of the reference."""
    uri = page.file.src_uri
    path = repository_path(uri)
    if path.endswith(".py"):
        return markdown
    here = posixpath.dirname(uri)

    def link(match: re.Match[str]) -> str:
        target = resolved(path, match[1])
        return match[1] if target is None else posixpath.relpath(page_of(target), here or ".")

    text = outside_of_code(lambda part: LINK.sub(link, part), COMMENT.sub("", markdown))
    return NAME.sub(reference, text)


def outside_of_code(change: Callable[[str], str], text: str) -> str:
    """The text with what is not a fenced block changed."""
    parts, end = [], 0
    for block in FENCE.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def targets(path: str, text: str) -> Iterator[str]:
    """The files and folders outside of docs/ that this page of the repository links to."""
    for match in LINK.finditer(FENCE.sub("", text)):
        target = resolved(path, match[1])
        if target is not None and is_source(target):
            yield target


def resolved(path: str, link: str) -> str | None:
    """The path in the repository of a link, or None where nothing is there."""
    folder = path if (ROOT / path).is_dir() else posixpath.dirname(path)
    target = posixpath.normpath(posixpath.join(folder, link))
    return target if (ROOT / target).exists() and not target.startswith("..") else None


def is_source(path: str) -> bool:
    """Whether the site has the file only by a page of ours: MkDocs takes all in docs/ but code."""
    return not path.startswith("docs/") or path.endswith(".py") or (ROOT / path).is_dir()


def page_of(path: str) -> str:
    """Where the site has a path of the repository."""
    if not is_source(path):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}.md" if path.endswith(".py") else f"source/{path}"


def repository_path(uri: str) -> str:
    """The path in the repository of a page of the site."""
    if not uri.startswith("source/"):
        return f"docs/{uri}"
    path = uri.removeprefix("source/").removesuffix("/index.md")
    return path.removesuffix(".md") if path.endswith(".py.md") else path


def source_page(path: str) -> str:
    """A Python file as code, a folder as the list of its files; Markdown as it is."""
    place = ROOT / path
    if path.endswith(".md"):
        return place.read_text()
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if place.is_dir():
        return head + "\n".join(
            f"- [{p.name}]({path.rpartition('/')[2] and p.name}): {summary(p)}"
            for p in sorted(place.glob("*.py"))
        )
    return f'{head}````python linenums="1"\n{place.read_text()}````\n'


def summary(path: pathlib.Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def reference(match: re.Match[str]) -> str:
    """A name of the reference under its public name, found where it is defined.

    mkdocstrings reads sources, and does not run the tables of names that are looked up at their
    first use.
    """
    return f"::: {defined_at(match[1])}\n    options:\n      heading: {match[1]}"


@functools.cache
def defined_at(name: str) -> str:
    """The dotted path of the definition of a public name.

    Raises:
        AttributeError: there is no such name.
    """
    parent, _, last = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        module: Any = importlib.import_module(parent)
        value = getattr(module, last)
        if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
            return f"{value.__module__}.{value.__qualname__}"
    return name
