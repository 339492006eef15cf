"""Examples in docstrings are run, and the names that users meet first have one."""

from __future__ import annotations

import pytest

import hpcdist as fluid
from tests.support import docstrings

EXAMPLES = docstrings.examples(of_torch=False) + docstrings.of_families()


@pytest.mark.parametrize(
    ("module", "doc"), [each[1:] for each in EXAMPLES], ids=[e[0] for e in EXAMPLES]
)
def test_the_examples_of_a_docstring(module, doc, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        docstrings.run(module, doc)


def test_how_many_names_have_examples():
    assert len(EXAMPLES) >= 370
