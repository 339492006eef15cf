"""Fluid's descriptions of multi-slot files, in protobuf's text format."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hpcdist.base.checks import names
from hpcdist.base.errors import DataError

Message = dict[str, Any]
Fail = Callable[[str], NoReturn]

# Fields of messages, in the order in which they are written; a list holds any number of values.
_SLOT = {"name": str, "type": str, "is_dense": bool, "is_used": bool, "shape": [int]}
_FEED = {
    "name": str,
    "batch_size": int,
    "multi_slot_desc": {"slots": [_SLOT]},
    "pipe_command": str,
    "thread_num": int,
    "rank_offset": str,
    "pv_batch_size": int,
}
_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_WORDS |= {"True": True, "False": False}
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"|(?P<word>[-+.\w]+)|(?P<sign>[:{}<>\[\],;])"
)
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", '"': r"\"", "'": r"\'", "\\": r"\\"}


class DataFeedDesc:
    """A file's description of slots, to look at and to change; `desc` returns its text.

    Datasets need none: ``set_use_var`` says what they read.
    """

    def __init__(self, proto_file: str) -> None:
        try:
            text = Path(proto_file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"DataFeedDesc: {proto_file}: cannot be read: {error}") from None
        self._fields: Message = {"pipe_command": "cat"} | parsed(text, str(proto_file))

    def set_batch_size(self, batch_size: int) -> None:
        """Set the number of samples in a batch."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise DataError(f"set_batch_size: expected at least 1, got {batch_size!r}")
        self._fields["batch_size"] = batch_size

    def set_dense_slots(self, dense_slots_name: Sequence[str]) -> None:
        """Say that these slots have the same number of values in each sample."""
        self._set("set_dense_slots", dense_slots_name, "is_dense")

    def set_use_slots(self, use_slots_name: Sequence[str]) -> None:
        """Say that these slots are used."""
        self._set("set_use_slots", use_slots_name, "is_used")

    def desc(self) -> str:
        """Return the description as text."""
        return written(self._fields)

    def _set(self, method: str, names_of_slots: Sequence[str], field: str) -> None:
        slots = self._fields.get("multi_slot_desc", {}).get("slots", [])
        by_name = {slot.get("name", ""): slot for slot in slots}
        unknown = names(method, names_of_slots, (DataError, DataError)) - set(by_name)
        if unknown:
            raise DataError(f"{method}: no slot {sorted(unknown)} among {sorted(by_name)}")
        for name in names_of_slots:
            by_name[name][field] = True


def written(message: Message) -> str:
    """Return a description as text, without the fields that it does not have."""
    return "".join(f"{line}\n" for line in _lines(message, _FEED, ""))


def parsed(text: str, source: str) -> Message:
    """Parse a text; DataError, with the line, if it is no description."""
    tokens = _Tokens(text, source)
    return _message(tokens, _FEED, end="")


def _lines(message: Message, fields: dict[str, Any], indent: str) -> Iterator[str]:
    for name, kind in fields.items():
        one = kind[0] if isinstance(kind, list) else kind
        values = message.get(name, [])
        for value in values if isinstance(kind, list) or name not in message else [values]:
            if isinstance(one, dict):
                yield f"{indent}{name} {{"
                yield from _lines(value, one, indent + "  ")
                yield f"{indent}}}"
            elif one is str:
                yield f'{indent}{name}: "{_escaped(value)}"'
            else:
                yield f"{indent}{name}: {str(value).lower()}"


def _escaped(text: str) -> str:
    return "".join(
        _ESCAPES[letter]
        if letter in _ESCAPES
        else letter
        if " " <= letter <= "~"
        else "".join(f"\\{byte:03o}" for byte in letter.encode())
        for letter in text
    )


class _Tokens:
    """The words, texts and signs of a description, one after the other."""

    def __init__(self, text: str, source: str) -> None:
        self._text, self._source, self._position = text, source, 0
        self.token = ""
        self.next()

    def next(self) -> str:
        """Go to the next token, "" at the end; return the one before."""
        before, self.token = self.token, ""
        while self._position < len(self._text) and not self.token:
            match = _TOKEN.match(self._text, self._position)
            if not match:
                self.fail(f"got {self._text[self._position : self._position + 20]!r}")
            self._position = match.end()
            self.token = match[0] if match.lastgroup else ""
        return before

    def take(self, *signs: str) -> bool:
        """Pass one of these signs, if it is here."""
        return self.token in signs and bool(self.next())

    def fail(self, words: str) -> NoReturn:
        """Raise DataError."""
        line = self._text.count("\n", 0, self._position) + 1
        raise DataError(f"{self._source}, line {line}: not a description of slots: {words}")


def _message(tokens: _Tokens, fields: dict[str, Any], end: str) -> Message:
    message: Message = {}
    while tokens.token != end:
        name = tokens.next()
        if name not in fields:
            tokens.fail(f"no field {name!r}, there are {', '.join(fields)}")
        kind = fields[name]
        one = kind[0] if isinstance(kind, list) else kind
        has_colon = tokens.take(":")
        if not has_colon and not isinstance(one, dict):
            tokens.fail(f"expected ':' after {name}, got {tokens.token!r}")
        values = [_value(tokens, one, name)] if tokens.token != "[" else _list(tokens, one, name)
        if isinstance(kind, list):
            message.setdefault(name, []).extend(values)
        elif name in message or len(values) != 1:
            tokens.fail(f"{name} may be there once")
        else:
            message[name] = values[0]
        tokens.take(",", ";")
    tokens.next()
    return message


def _list(tokens: _Tokens, kind: Any, name: str) -> list[Any]:
    tokens.next()
    values: list[Any] = []
    while not tokens.take("]"):
        if values and not tokens.take(","):
            tokens.fail(f"expected ',' or ']' in {name}, got {tokens.token!r}")
        values.append(_value(tokens, kind, name))
    return values


def _value(tokens: _Tokens, kind: Any, name: str) -> Any:
    word = tokens.token
    if isinstance(kind, dict):
        if not tokens.take("{", "<"):
            tokens.fail(f"expected '{{' after {name}, got {word!r}")
        return _message(tokens, kind, "}" if word == "{" else ">")
    tokens.next()
    if kind is bool and word in _WORDS:
        return _WORDS[word]
    if kind is int and re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)", word):
        base = 0 if "x" in word.lower() else 8 if word.lstrip("-")[0] == "0" else 10
        try:
            number = int(word, base)
        except ValueError as error:  # 08, or thousands of digits
            tokens.fail(f"{name}: {error}")
        if -(2**31) <= number < 2**31:
            return number
    if kind is str and word[:1] in "\"'" and word:
        texts = [word]
        while tokens.token[:1] in ("'", '"'):
            texts.append(tokens.next())
        try:
            return b"".join(ast.literal_eval("b" + _ascii(text)) for text in texts).decode()
        except (SyntaxError, ValueError) as error:
            tokens.fail(f"{name}: {error}")
    return tokens.fail(f"{name}: expected {kind.__name__}, got {word!r}")


def _ascii(text: str) -> str:
    """Return a text in quotes with its other letters escaped byte by byte."""
    return "".join(c if c < "\x7f" else "".join(f"\\x{b:02x}" for b in c.encode()) for c in text)
