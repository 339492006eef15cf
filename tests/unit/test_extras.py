"""The command that installs an extra, and the question for names that do not exist."""

import doctest
import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import hpcdist
from hpcdist.base import extras, nearest

EXTRAS = importlib.metadata.metadata(extras.PACKAGE).get_all("Provides-Extra")


@pytest.mark.parametrize("module", [extras, nearest])
def test_examples_of_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


@pytest.mark.parametrize("extra", EXTRAS)
def test_command_names_the_packages_themselves(extra):
    command = extras.install_command(extra)
    assert re.fullmatch(r"python -m pip install( '[\w.\[\]-]+[<>=,.\d]+')+", command), command
    assert "hpcdist" not in command


def test_without_metadata_the_checkout_is_named(monkeypatch):
    monkeypatch.setattr(extras, "PACKAGE", "hpcdist-that-is-not-installed")
    command = extras.install_command("torch")
    assert command.startswith("python -m pip install '.[torch]' in the checkout")


def test_every_extra_that_messages_name_exists():
    package = Path(hpcdist.__file__).parent
    named = set()
    for file in package.rglob("*.py"):
        named |= set(re.findall(r"install_command\('([\w.-]+)'\)", file.read_text("utf-8")))
    assert named <= set(EXTRAS)
    assert len(named) >= 8


def test_no_message_names_an_index_that_has_no_hpcdist():
    package = Path(hpcdist.__file__).parent
    for file in package.rglob("*.py"):
        assert not re.search(r"pip install '?hpcdist\[", file.read_text("utf-8")), file


def test_without_torch_its_door_says_what_installs_it(monkeypatch):
    for module in [m for m in sys.modules if m.split(".")[:2] == ["hpcdist", "torch"]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="needs torch, which is not.*pip install"):
        importlib.import_module("hpcdist.torch")
