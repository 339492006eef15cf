"""The Python of the pages in docs/: each page's blocks run in turn, as one script.

What a page leaves to its reader (a network, data, a directory) is in ``tests/pages/PAGE.py``, where
each line ``# block`` stands for the next block of the page. A comment `<!-- not run: REASON -->`
before a block leaves it out.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tests.support.tutorials import BLOCK

DOCS = Path(__file__).parents[2] / "docs"
AROUND = Path(__file__).parents[1] / "pages"
PLACE = re.compile(r"^# block\n", re.M)


def pages() -> list[str]:
    """Return the names of the pages with Python that is run."""
    return sorted(page.stem for page in DOCS.glob("*.md") if python_of(page.stem))


def python_of(page: str) -> list[str]:
    """Return the blocks of a page that are run."""
    text = (DOCS / f"{page}.md").read_text()
    found = re.finditer(BLOCK.pattern.replace("```(?P<kind>", "^ *```(?P<kind>"), text, re.S | re.M)
    return [
        textwrap.dedent(match["text"])
        for match in found
        if match["kind"] == "python" and not match["why"]
    ]


def script_of(page: str) -> str:
    """Return all blocks of a page with what stands around them, a script."""
    around = AROUND / f"{page}.py"
    blocks = python_of(page)
    parts = PLACE.split(around.read_text() if around.exists() else "# block\n" * len(blocks))
    if len(parts) != len(blocks) + 1:
        raise ValueError(
            f"docs/{page}.md has {len(blocks)} blocks of Python that are run, and {around} a place "
            f"for {len(parts) - 1}: add a line '# block', or mark a block <!-- not run: REASON -->"
        )
    return "".join(part + block for part, block in zip(parts, [*blocks, ""]))
