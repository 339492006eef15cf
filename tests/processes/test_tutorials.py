"""What tutorials tell their readers to do is done, and prints what they show."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from hpcdist.base.errors import HpcdistError
from hpcdist.launch.commands import COMMANDS
from hpcdist.launch.options import parse
from tests.support import tutorials
from tests.support.jobs import BESIDE_PYTHON, MPIRUN, clean_environment, needs_mpirun

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@needs_mpirun
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial(page, tmp_path):
    text = page.read_text("utf-8")
    if "import torch" in text and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install .[torch]")
    for name, code in tutorials.files(text).items():
        (tmp_path / name).write_text(code, "utf-8")
    programs = {"python": sys.executable, "mpirun": str(MPIRUN)}
    env = clean_environment() | {"PYTHONPATH": str(ROOT)}
    env["PATH"] = f"{BESIDE_PYTHON.parent}:{os.environ['PATH']}"
    commands = tutorials.commands(text)
    assert commands
    for command in commands:
        printed = tutorials.run(command, tmp_path, programs, env)
        assert tutorials.missing(command, printed) == [], printed


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_python_are_python(page):
    for kind, code, _ in tutorials.blocks(page.read_text("utf-8")):
        if kind == "python":
            ast.parse(textwrap.dedent(code))


def test_every_block_of_commands_in_a_tutorial_is_run_or_says_why_not():
    for page in PAGES:
        text = page.read_text("utf-8")
        assert text.count("```console") == sum(k == "console" for k, *_ in tutorials.blocks(text))
        for why in re.findall(r"<!-- not run:(.*?)-->", text):
            assert len(why.split()) > 1


def test_what_a_command_did_not_print_is_seen():
    shown = """
```console
$ mpirun -n 2 python a.py
ranks on n1 in 3 s
loss 0.500
```
"""
    (command,) = tutorials.commands(shown)
    assert command.words == ("mpirun", "-n", "2", "python", "a.py")
    assert tutorials.missing(command, "ranks on vm in 7 s\nother\nloss 0.501\n") == []
    assert tutorials.missing(command, "loss 0.500\nranks on vm in 7 s\n") == ["loss 0.500"]
    assert tutorials.missing(command, "ranks on vm in 7 s\nloss 0.6\n") == ["loss 0.500"]


def lines_of_commands():
    """Return (page, words after `python -m hpcdist`) of every block of every document."""
    found = []
    for page in DOCUMENTS:
        for kind, code, _ in tutorials.blocks(page.read_text("utf-8").replace("\\\n", " ")):
            for line in code.splitlines() if kind in ("", "console", "bash") else ():
                command = re.search(r"python -m hpcdist ((?:[^#|;&:>]|:\d)*)", line)
                if command and not line.startswith("hpcdist:"):
                    found.append((page.name, shlex.split(command[1])))
    return found


def test_options_in_documents_exist():
    lines = lines_of_commands()
    assert len(lines) > 40
    for page, words in lines:
        if words and words[0] not in COMMANDS and words[0] not in ("--help", "--version"):
            try:
                parse(words)
            except (SystemExit, HpcdistError) as error:
                pytest.fail(f"{page}: python -m hpcdist {shlex.join(words)}: {error}")
