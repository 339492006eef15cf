"""The documentation as a site: every public name has an entry, every page a place."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpcdist as fluid
from tests.support.jobs import clean_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages():
    path = ROOT / "packaging/site/reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    return reference.pages()


def test_every_public_function_and_class_has_an_entry(pages):
    for page, module in (("layers", fluid.layers), ("optimizer", fluid.optimizer)):
        callable_ = {name for name in module.__all__ if callable(getattr(module, name))}
        entries = set(re.findall(rf"^## fluid\.{page}\.(\w+) ", pages[page], re.M))
        assert entries == callable_


def test_an_entry_has_signature_text_and_example(pages):
    _, _, rest = pages["layers"].partition("\n## fluid.layers.fc ")
    entry, _, _ = rest.partition("\n## ")
    assert "    size: int,\n" in entry and "Return act(" in entry
    assert "```pycon\n>>> x = fluid.data" in entry
    assert all(text.count("```") % 2 == 0 for text in pages.values())


def test_what_forwards_to_a_function_shows_its_arguments(pages):
    _, _, rest = pages["data"].partition("\n## hpcdist.data.read ")
    entry, _, _ = rest.partition("\n## ")
    assert "batch" in entry.partition("```\n")[0] and "**kwargs" not in entry
    assert "Read Parquet, Arrow" in entry and entry.count("```pycon\n>>> import tempfile") == 1


def test_every_page_has_a_place_in_the_navigation(pages):
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    placed = re.findall(r"[\w/]+\.md", text)
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(placed) == sorted(written | {f"reference/{page}.md" for page in pages})


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed: pip install .[docs]",
)
def test_the_site_is_built_without_a_warning(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    env = clean_environment() | {"NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert ran.returncode == 0 and "WARNING" not in ran.stderr, ran.stderr
    assert (tmp_path / "site/search/search_index.json").exists()
