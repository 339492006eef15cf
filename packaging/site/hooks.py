"""Hooks of MkDocs: pages of the reference, and links to files of the checkout."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import reference  # noqa: E402  # beside this file

ADDED = ("site.css", "site.js")
EMPTY_HEAD = re.compile(r"<th([^>]*)></th>")
LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s]*)(\))")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each module of the reference, and what makes Material's pages accessible."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for name in ADDED:
        path = Path(__file__).with_name(name)
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Make cells of empty heads plain ones: a head without words names no column."""
    return EMPTY_HEAD.sub(r"<td\1></td>", html)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links that leave docs/ to the file in the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if target.startswith("docs/"):
            return match[0]
        kind = "tree" if (ROOT / target.partition("#")[0]).is_dir() else "blob"
        return f"{match[1]}{config.repo_url.rstrip('/')}/{kind}/main/{target}{match[3]}"

    return LINK.sub(led, markdown)
