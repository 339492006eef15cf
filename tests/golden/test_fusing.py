"""The buckets of ResNet-50's gradients are Fluid's."""

from __future__ import annotations

import pytest

from benchmarks.resnet50 import gradients, size
from hpcdist.comm.bucket import Fusing, Gradient, buckets
from tests.golden.loader import golden

RESNET50 = [Gradient(name, "float32", 4 * size(shape)) for name, shape in gradients()]


def test_resnet50_has_161_gradients_of_25_6_million_floats():
    assert len(RESNET50) == 161
    assert sum(g.nbytes for g in RESNET50) == 4 * 25_557_032


@pytest.mark.parametrize("index", range(3))
def test_groups_of_resnet50(index):
    case = golden("programs.json")["fuse_all_reduce"]["cases"][index]
    fusing = Fusing(case["fuse_parameter_memory_size_MB"], case["fuse_parameter_groups_size"])
    assert [len(b) for b in buckets(RESNET50, fusing)] == case["groups"]
