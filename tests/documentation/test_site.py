"""The site builds with no warning: every page in the navigation, every link and anchor true."""

import html.parser
import logging
import pathlib
import re
import urllib.parse
from collections import defaultdict

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

import xla_dynamo
from tests.documentation.blocks import ROOT, pages

REFERENCE = ROOT / "docs" / "reference"
# Besides those of `xla_dynamo` itself: the modules with public names of their own.
MODULES = (
    "distributed.fsdp", "distributed_checkpoint", "jax", "metrics", "runtime", "spmd",
    "spmd.recipes", "stablehlo",
)  # fmt: skip


def titles(entry):
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in titles(part)]


def test_every_page_is_in_the_navigation():
    """A page needs a line in mkdocs.yml under "nav"."""
    text = (ROOT / "mkdocs.yml").read_text()
    listed = titles(yaml.safe_load(text.partition("\nnav:\n")[2]))
    assert sorted(listed) == sorted(set(listed))
    assert {f"docs/{page}" for page in listed} == set(pages())


def test_pages_draw_no_mermaid():
    """Its script would come from another host: a picture is an SVG in docs/pictures."""
    assert not [p for p in pages() if "```mermaid" in (ROOT / p).read_text()]


def public_names():
    import importlib

    yield from (f"xla_dynamo.{n}" for n in xla_dynamo.__all__ if n not in MODULES)
    for name in MODULES:
        module = importlib.import_module(f"xla_dynamo.{name}")
        names = getattr(module, "__all__", None) or module._LAZY
        yield from (f"xla_dynamo.{name}.{n}" for n in names)


def test_every_public_name_is_in_the_reference():
    text = "\n".join(p.read_text() for p in REFERENCE.glob("*.md"))
    listed = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == set(public_names())


class Page(html.parser.HTMLParser):
    """The anchors, links and files of a page that was built."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), set(), set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[k] for k in ("id", "name") if given.get(k)}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])
        if tag in ("script", "img", "source") and given.get("src"):
            self.loaded.add(given["src"])
        if tag == "link" and given.get("href") and given.get("rel") != "canonical":
            self.loaded.add(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of the site by their paths, which was built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    messages = []

    class Heard(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    heard = Heard(logging.WARNING)
    logging.getLogger("mkdocs").addHandler(heard)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    finally:
        logging.getLogger("mkdocs").removeHandler(heard)
    assert not messages
    return {p: Page(p) for p in folder.rglob("*.html")}


@pytest.mark.every(3)
def test_links_lead_somewhere(site):
    wrong = defaultdict(set)
    for path, page in site.items():
        if path.name == "404.html":
            continue
        for link in page.links | page.loaded:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("http", "https", "mailto") or link in page.loaded:
                    wrong[path.name].add(link)
                continue
            target = path
            if parts.path:
                target = pathlib.Path(path.parent / urllib.parse.unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists() or (
                anchor and target in site and anchor not in site[target].anchors
            ):
                wrong[path.name].add(link)
    assert not wrong
    texts = [p.read_text() for p in site]
    assert not any("<!-- run" in t or "<!-- not run" in t for t in texts)
