"""A setting: an environment variable with a type, a unit and a default."""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hpcdist.base.errors import SettingError, SettingTypeError
from hpcdist.base.nearest import did_you_mean

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
TRUE, FALSE = ("1", "true", "on"), ("0", "false", "off")


# -- types -----------------------------------------------------------------------------------------
class ValueKind(Generic[T_co]):
    """A type of values as text: what is expected, how it is read, which Python types fit."""

    word: str  # in get_flags, set_flags and docs
    expected: str
    types: tuple[type, ...] = (str,)
    words: tuple[str, ...] = ()  # if a value is one or some of them

    def parse(self, text: str) -> T_co:
        """Return the value; ValueError saying what was expected and what was given."""
        try:
            value = self._convert(text)
        except ValueError:
            value = None
        if value is None:
            parts = [part.strip() for part in text.split(",")] if self.words else []
            odd = next((part for part in parts if part not in self.words), "")
            near = did_you_mean(odd, self.words)
            raise ValueError(f"expected {self.expected}, got {text!r:.80}{near}")
        return value

    def text(self, value: Any) -> str:
        """Return a value as `parse` reads it."""
        return str(value)

    def _convert(self, text: str) -> T_co | None:
        """Return the value; None or ValueError for text that is none."""
        raise NotImplementedError


class Integer(ValueKind[int]):
    """An integer of at least ``least``."""

    word, types = "int", (int,)

    def __init__(self, least: int) -> None:
        self.least = least
        self.expected = f"an integer >= {least}"

    def _convert(self, text: str) -> int | None:
        value = int(text)
        return value if value >= self.least else None


class Mask(ValueKind[int]):
    """The permissions that new files do not get, in octal, as `umask` takes them."""

    word, types, expected = "umask", (int,), "an octal number such as 077"

    def text(self, value: Any) -> str:
        """Return a value as `parse` reads it."""
        return f"{value:03o}"

    def _convert(self, text: str) -> int | None:
        value = int(text, 8)
        return value if 0 <= value <= 0o777 else None


class Number(ValueKind[float]):
    """A finite number, above ``above`` if that is given."""

    word, types = "float", (int, float)

    def __init__(self, above: float = -math.inf) -> None:
        self._above = above
        self.expected = "a number" if above == -math.inf else f"a number > {above:g}"

    def _convert(self, text: str) -> float | None:
        value = float(text)
        return value if math.isfinite(value) and value > self._above else None


class OnOff(ValueKind[bool]):
    """True or false, in any of the usual spellings."""

    word, types = "bool", (bool, int)
    expected = "true or false (1, on; 0, off)"

    def _convert(self, text: str) -> bool | None:
        word = text.strip().lower()
        return word in TRUE if word in TRUE + FALSE else None

    def text(self, value: Any) -> str:
        """Return a value as `parse` reads it."""
        return str(int(bool(value)))


class Text(ValueKind[str]):
    """Any text."""

    word, expected = "str", "text"

    def _convert(self, text: str) -> str:
        return text


class Word(ValueKind[str]):
    """One of some words."""

    word = "str"

    def __init__(self, *words: str) -> None:
        self.words = words
        self.expected = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"

    def _convert(self, text: str) -> str | None:
        return text if text in self.words else None


class Words(ValueKind[tuple[str, ...]]):
    """Some of several words, separated by commas; each once."""

    word = "str"

    def __init__(self, *words: str) -> None:
        self.words = words
        self.expected = f"some of {', '.join(words)}, separated by commas"

    def _convert(self, text: str) -> tuple[str, ...] | None:
        words = tuple(part.strip() for part in text.split(","))
        return words if set(words) <= set(self.words) and len(set(words)) == len(words) else None

    def text(self, value: Any) -> str:
        """Return a value as `parse` reads it."""
        return value if isinstance(value, str) else ",".join(value)


class Integers(ValueKind[tuple[int, ...]]):
    """Numbers from 0 on, separated by commas."""

    word, expected, types = "str", "numbers separated by commas, such as 0 or 0,1", (str,)

    def _convert(self, text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))


class Section(enum.Enum):
    """A section of docs/settings.md; the value is its heading."""

    FLUID = "Fluid's"
    IGNORED = "Fluid's, without effect"
    HPCDIST = "hpcdist's"
    ROLE = "The role of a process"
    OTHER = "Other software's"


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable. Empty counts as not set; so does a ``default`` that is a Setting,
    whose value is then meant."""

    name: str
    kind: ValueKind[Any]
    default: T | Setting[T]
    meaning: str
    unit: str = ""
    group: Section = Section.HPCDIST

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """Return the value in ``environ`` (the process's own), or the default.

        SettingError names the variable, what was expected and what was found.
        """
        text = environment(environ).get(self.name)
        if text:
            value: T = self.parse(text)
            return value
        return self.default.read(environ) if isinstance(self.default, Setting) else self.default

    def is_set(self, environ: Mapping[str, str] | None = None) -> bool:
        """Return whether the environment has a value."""
        return bool(environment(environ).get(self.name))

    def parse(self, text: str) -> Any:
        """Return the value of a text; SettingError if it is none."""
        try:
            return self.kind.parse(text)
        except ValueError as error:
            unit = f" ({self.unit})" if self.unit else ""
            raise SettingError(f"{self.name}{unit}: {error}") from None

    def write(self, value: T) -> None:
        """Set the variable, for this process and those that it starts."""
        os.environ[self.name] = self.text(value)

    def forget(self) -> None:
        """Remove the variable, for this process and those that it starts."""
        os.environ.pop(self.name, None)

    def text(self, value: Any) -> str:
        """Return a value as the environment has it; SettingTypeError, SettingError for a bad one.

        A bool is no number, whatever Python says.
        """
        wrong_bool = isinstance(value, bool) and bool not in self.kind.types
        if wrong_bool or not isinstance(value, self.kind.types):
            raise SettingTypeError(f"{self.name}: expected {self.kind.word}, got {value!r}")
        text = self.kind.text(value)
        self.parse(text)
        return text


def environment(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the variables that are given, or the process's own."""
    return os.environ if environ is None else environ
