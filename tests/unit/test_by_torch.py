"""Operators that torch computes: the table of them in docs, and what is said without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hpcdist as fluid
from hpcdist.errors import GraphError, HpcdistError
from hpcdist.ops.by_torch import needing_torch

DOCS = Path(__file__).parents[2] / "docs" / "images.md"


def test_docs_name_every_operator_that_needs_torch() -> None:
    (line,) = [line for line in DOCS.read_text().splitlines() if line.startswith("Needing torch:")]
    assert line == "Needing torch: " + ", ".join(f"`{type}`" for type in needing_torch()) + "."


def test_without_torch_one_error_names_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 2, 4, 4, 4])
        with pytest.raises(HpcdistError, match="operator 'pool3d' needs torch.*pip install"):
            fluid.layers.pool3d(x, 2)


def test_shapes_with_an_open_batch_follow_from_the_function() -> None:
    pytest.importorskip("torch")
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 2, 4, 4, 6])
        assert fluid.layers.pool3d(x, 2, pool_stride=2).shape == (-1, 2, 2, 2, 3)
        assert fluid.layers.conv3d(x, 5, 3).shape == (-1, 5, 2, 2, 4)
        wrong = fluid.data("y", [None, 2, 1, 1, 1])
        with pytest.raises(GraphError, match="do not fit"):
            fluid.layers.conv3d(wrong, 5, 3)
