"""A browser for tests of pages, with axe-core: every rule of accessibility that it can check."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTHS = {"phone": 360, "desk": 1280}
COLOURS = ("light", "dark")


def chromium() -> str | None:
    """Return the path of a Chromium, None without one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def missing() -> str:
    """Return why no page can be checked here, or an empty string."""
    if chromium() is None:
        return "no headless browser: apt-get install chromium"
    if importlib.util.find_spec("axe_playwright_python") is None:
        return "axe-core is not installed: pip install .[accessibility]"
    return ""


@contextmanager
def opened() -> Iterator[Any]:
    """Yield a page of Playwright's in the browser of this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield browser.new_page()
        finally:
            browser.close()


def violations(page: Any) -> list[str]:
    """Return what axe-core finds in a page, one line for each element."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:120]} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


def in_every_form(page: Any, url: str) -> Iterator[str]:
    """Load a page at each width in each of the colours; yield the name of the form."""
    for form, width in WIDTHS.items():
        for colours in COLOURS:
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=colours, reduced_motion="reduce")
            page.goto(url)
            yield f"{form}, {colours}"


def overflow(page: Any) -> int:
    """Return by how many pixels a page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def url_of(path: Path) -> str:
    """Return the address of a file."""
    return path.resolve().as_uri()
