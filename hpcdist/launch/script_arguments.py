"""Finds options of the launcher that stand after the script and so have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex


class ScriptArguments(list[str]):
    """A ``sys.argv`` that notices whether a script looks at its arguments.

    Its first word stays what the command line says when `runpy` puts ``path`` there.
    """

    def __init__(self, words: Sequence[str], path: str = "") -> None:
        super().__init__(words)
        self.read = False
        self._path = path

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        self.read |= key != 0  # 0 is the script's own name
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if key == 0 and value == self._path:
            self._path = ""  # what the script sets itself stays
            return
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[str]:
        self.read = True
        return super().__iter__()

    def __len__(self) -> int:
        self.read = True
        return super().__len__()

    def __contains__(self, word: object) -> bool:
        self.read = True
        return super().__contains__(word)

    def __repr__(self) -> str:
        self.read = True
        return super().__repr__()

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def copy(self) -> list[str]:
        """Return them as a plain list."""
        return list(self)


def misplaced(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return which of a script's arguments are options of the launcher. Pure."""
    return [word for word in arguments if word.partition("=")[0] in options]


def warning(words: Sequence[str], script: str) -> str:
    """Return the warning about misplaced options that the script has not looked at. Pure."""
    name = " ".join(words)
    return (
        f"{name} after {script} has no effect: it is an argument of the script, which has not read "
        f"its arguments; options of hpcdist stand before the script: python -m hpcdist {name} ... "
        f"{script}"
    )
