"""Tables in text files beside the modules that read them: names, expressions, declarations.

A line that begins with ``#`` is a comment; ``[name]``, alone on a line, begins a section.
"""

from __future__ import annotations


def lines(package: str | None, file: str) -> list[str]:
    """Return the lines of a package's file but comments and empty ones, indented as they are."""
    from importlib import resources  # slow, and `import hpcdist` needs none of the tables

    assert package is not None
    text = (resources.files(package) / file).read_text("utf-8")
    return [line.rstrip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def sections(package: str | None, file: str) -> dict[str, list[str]]:
    """Return the lines of each section of a package's file."""
    found: dict[str, list[str]] = {}
    for line in lines(package, file):
        if line[0] == "[":
            found[line[1:-1]] = []
        else:
            next(reversed(found.values())).append(line)
    return found
