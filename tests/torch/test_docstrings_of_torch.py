"""Examples in the docstrings of PyTorch's door are run, in one process."""

from __future__ import annotations

import importlib

import pytest

from tests.support import docstrings
from tests.support.jobs import needs_torch

pytestmark = needs_torch
EXAMPLES = docstrings.examples(of_torch=True)


@pytest.mark.parametrize(
    ("module", "doc"), [each[1:] for each in EXAMPLES], ids=[e[0] for e in EXAMPLES]
)
def test_the_examples_of_a_docstring(module, doc, tmp_path, monkeypatch, no_tables_yet):
    importlib.import_module("hpcdist.torch")
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    docstrings.run(module, doc)


def test_most_names_have_examples():
    assert len(EXAMPLES) >= 6
