"""What a tutorial tells its reader to do: files to save, commands to type, and what they print.

A block of Python whose first line is a comment with a file's name is that file; a block `console`
has commands after `$ `, each followed by lines that it must print, in this order, among others. A
comment `<!-- not run: REASON -->` before a block leaves it out. Times and hosts are not compared.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.S
)
# Hosts, times of a run, and what a terminal is told about colours.
ANY = re.compile(r"\bon \w[\w.-]*|\b\d+(?:\.\d+)? m?s\b|\x1b\[\w+")
NEAR = 0.05  # how far numbers may be apart: sums are rounded otherwise on another machine


@dataclass(frozen=True)
class Command:
    """A command of a tutorial and the lines that it must print."""

    words: tuple[str, ...]
    prints: tuple[str, ...]


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Return (language, text, why it is not run or "") of each block of a page."""
    return [(m["kind"], m["text"], m["why"] or "") for m in BLOCK.finditer(text)]


def files(text: str) -> dict[str, str]:
    """Return the files that a page has its reader save."""
    named = (
        re.match(r"# ([\w.]+\.py)\n", code) for kind, code, _ in blocks(text) if kind == "python"
    )
    return {match[1]: match.string for match in named if match}


def commands(text: str) -> list[Command]:
    """Return the commands of a page that are run."""
    found = []
    for kind, block, why in blocks(text):
        if kind == "console" and not why:
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                first, *rest = part.rstrip("\n").split("\n")
                found.append(Command(tuple(shlex.split(first)), tuple(rest)))
    return found


def run(
    command: Command, directory: Path, programs: Mapping[str, str], env: Mapping[str, str]
) -> str:
    """Run a command with these programs in place of their names; return what it prints."""
    words = [programs.get(word, word) for word in command.words]
    ran = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True, timeout=500)
    printed = ran.stderr + ran.stdout
    assert ran.returncode == 0, f"{shlex.join(words)}\n{printed}"
    return printed


def missing(command: Command, printed: str) -> list[str]:
    """Return the lines that a command should have printed, in their order, and has not."""
    lines = iter([_words(line) for line in printed.splitlines()])
    return [line for line in command.prints if not any(_alike(_words(line), w) for w in lines)]


def _words(line: str) -> list[str]:
    return ANY.sub("", line).split()


def _alike(shown: list[str], printed: list[str]) -> bool:
    return len(shown) == len(printed) and all(map(_same, shown, printed))


def _same(shown: str, printed: str) -> bool:
    try:
        a, b = float(shown), float(printed)
    except ValueError:
        return shown == printed
    return abs(a - b) <= NEAR * max(abs(a), abs(b))
