"""Links of the documents lead somewhere, and the files that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/*.md",
        "examples/*.md",
        "packaging/*.md",
        "tests/**/*.md",
    )
    for page in sorted(ROOT.glob(pattern))
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FILE = re.compile(r"`((?:[\w.]+/)+\w+\.(?:py|c|sh|js|html|sbatch))`")


def anchors(page: Path) -> set[str]:
    """Return what GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_named_files_exist(page):
    dead = []
    for file, anchor in LINK.findall(page.read_text()):
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(f"{file}#{anchor}")
    for name in FILE.findall(page.read_text()):
        places = (ROOT, ROOT / "hpcdist", ROOT / "examples", page.parent)
        if not any((place / name).exists() for place in places):
            dead.append(name)
    assert dead == []


def test_dead_links_are_seen():
    assert LINK.findall("[a](b.md#c) [d](#e) [f](https://g) [h](i.md)") == [
        ("b.md", "c"),
        ("", "e"),
        ("i.md", ""),
    ]
    assert FILE.findall("`comm/mpi.py`, `f.py`, `a/b.sh`") == ["comm/mpi.py", "a/b.sh"]
