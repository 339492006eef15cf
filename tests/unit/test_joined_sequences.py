"""Values with sequences, from the trainers' parts of a batch: cut, packed, and joined again."""

import numpy as np
import pytest

from hpcdist.graph.rows import How, OfRows
from hpcdist.lod_tensor import LoDTensor, create_lod_tensor
from hpcdist.runtime.batches.gather import pack, unpack
from hpcdist.runtime.batches.scatter import cut_feed

RAGGED, SUM, MIXED = How.RAGGED, How.SUM, How.MIXED


@pytest.mark.parametrize("lengths", [[2, 0, 3, 1, 1], [0, 0], [4]])
def test_sequences_are_cut_and_joined_again(lengths):
    rows = np.arange(sum(lengths) * 2, dtype="float32").reshape(-1, 2)
    whole = create_lod_tensor(rows, [lengths])
    trainers, batched = 3, frozenset({"x", "y"})
    feed = {"x": whole, "y": np.arange(len(lengths))}
    cuts = [cut_feed(feed, batched, k, trainers) for k in range(trainers)]
    for cut, _ in cuts:
        assert cut["x"].samples == len(cut["y"])
    ofs = [OfRows(RAGGED, "x"), OfRows(SUM)]
    own = [[cut["x"], np.array([float(len(cut["x"]))])] for cut, _ in cuts]
    packed = [pack(values, ofs, division.share) for values, (_, division) in zip(own, cuts)]
    for values, (_, division) in zip(own, cuts):
        joined, total = unpack(packed, values, ofs, division)
        assert isinstance(joined, LoDTensor)
        np.testing.assert_array_equal(joined, rows)
        assert joined.recursive_sequence_lengths() == [lengths]
        np.testing.assert_array_equal(total, [sum(lengths)])


def test_sequences_of_a_value_that_every_trainer_computes_whole_stay():
    boxes = create_lod_tensor(np.arange(10, dtype="float32").reshape(5, 2), [[2, 0, 3]])
    feed, ofs = {"x": np.zeros((3, 2))}, [OfRows(MIXED)]
    divisions = [cut_feed(feed, frozenset({"x"}), k, 2, why_whole="rows mix")[1] for k in range(2)]
    packed = [pack([boxes], ofs, division.share) for division in divisions]
    for division in divisions:
        (joined,) = unpack(packed, [boxes], ofs, division)
        assert joined.lod() == [[0, 2, 2, 5]]
        np.testing.assert_array_equal(np.asarray(joined), np.asarray(boxes))
