"""The mean average precision of found boxes adds up over batches, as in Fluid 1.8.5."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import FeedError
from hpcdist.ops.metric.detection_map import MatchTotals

# What Fluid 1.8.5 gives for the batches below: of each, and added up; reset before the fourth.
OF_FLUID = [(0.25, 0.25), (0, 0.041667), (0.166667, 0.077778), (0.166667, 0.166667)]


def boxes(rng: np.random.RandomState) -> dict[str, fluid.LoDTensor]:
    corners = rng.rand(7, 2) * 0.5
    true = np.concatenate([corners, corners + 0.1 + rng.rand(7, 2) * 0.4], 1)
    chosen = rng.randint(0, 7, 9)
    kinds, scores = rng.randint(1, 4, (9, 1)), rng.rand(9, 1)
    found = np.concatenate([kinds, scores, true[chosen] + rng.randn(9, 4) * 0.03], 1)
    held = {
        "found": (found.astype("float32"), [5, 4]),
        "kinds": (rng.randint(1, 4, (7, 1)).astype("int64"), [4, 3]),
        "true": (true.astype("float32"), [4, 3]),
        "difficult": ((rng.rand(7, 1) < 0.3).astype("int64"), [4, 3]),
    }
    place = fluid.CPUPlace()
    return {
        n: fluid.create_lod_tensor(rows, [lengths], place) for n, (rows, lengths) in held.items()
    }


def test_maps_of_batches_and_since_the_last_reset() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        found, true = (
            fluid.data(n, [None, w], lod_level=1) for n, w in (("found", 6), ("true", 4))
        )
        kinds, difficult = (
            fluid.data(n, [None, 1], dtype="int64", lod_level=1) for n in ("kinds", "difficult")
        )
        metric = fluid.metrics.DetectionMAP(
            found, kinds, true, difficult, 4, overlap_threshold=0.3, evaluate_difficult=False
        )
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    for seed, wanted in enumerate(OF_FLUID):
        if seed == 3:
            metric.reset(exe)
        feed = boxes(np.random.RandomState(seed))
        values = exe.run(main, feed=feed, fetch_list=list(metric.get_map_var()))
        np.testing.assert_allclose(np.concatenate(values), wanted, atol=1e-6)


def test_what_another_process_added_up_is_missed() -> None:
    restored = MatchTotals("detection_map:map", count=3)
    with pytest.raises(FeedError, match="3 batches were added up before.*reset"):
        restored.begin(goes_on=True)
    restored.begin(goes_on=False)
    restored.begin(goes_on=True)
    assert restored.count == 2
