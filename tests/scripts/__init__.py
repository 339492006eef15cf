"""Scripts that tests start, as users write them. Some go on where another one ends."""

from __future__ import annotations

from pathlib import Path


def read_script(name: str) -> str:
    """Return the text of the script ``name`` in this folder."""
    return (Path(__file__).parent / f"{name}.py").read_text()
