"""Datasets as scripts of Paddle 2 set them up."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import DataError, HpcdistError
from hpcdist.fluid.multi_slot import InMemoryDataset, QueueDataset


def setting(dataset, name):
    """Return a Dataset's method by Paddle 2's private name."""
    return getattr(dataset, f"_set_{name}")


def test_datasets_are_set_up_by_names(tmp_path):
    (tmp_path / "a").write_text("1 5 1 0.5\n1 6 1 1.5\n1 7 1 2.5\n")
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = fluid.data("ids", [None, 1], "int64")
        values = fluid.data("values", [None, 1], "float32")
    for make in (QueueDataset, InMemoryDataset):
        dataset = make()
        setting(dataset, "use_ps_gpu")(False)
        dataset.init(use_var=[ids, values], thread_num=2, fs_name="", fs_ugi="")
        dataset.set_filelist([str(tmp_path / "a")])
        if make is InMemoryDataset:
            dataset.load_into_memory(is_shuffle=False)
        assert [np.array(feed["ids"]).tolist() for feed in dataset.batches()] == [
            [[5]],
            [[6]],
            [[7]],
        ]
        dataset.update_settings(batch_size=2)
        assert [len(np.array(feed["ids"])) for feed in dataset.batches()] == [2, 1]
    dataset.load_into_memory(is_shuffle=True)
    shuffled = [row for feed in dataset.batches() for row in np.array(feed["ids"]).ravel()]
    assert sorted(shuffled) == [5, 6, 7]


def test_settings_of_datasets_are_checked():
    dataset = InMemoryDataset()
    with pytest.raises(DataError, match="no key 'batchsize'; did you mean 'batch_size'"):
        dataset.init(batchsize=3)
    with pytest.raises(DataError, match="input_type: expected 0.*got 1"):
        dataset.init(input_type=1)
    with pytest.raises(AttributeError, match="set_download_cmd.*mount the file system"):
        dataset.update_settings(download_cmd="./fetch")
    with pytest.raises(AttributeError, match="InMemoryDataset has no '.set_colour'"):
        setting(dataset, "colour")("red")
    with pytest.raises(AttributeError, match="set_date of Paddle 2 is not in hpcdist"):
        dataset.set_date("20260101")
    dataset.update_settings(
        merge_size=-1, queue_num=-1, parse_ins_id=True, parse_content=False, fea_eval=True
    )
    dataset.update_settings(merge_size=2, data_feed_type="MultiSlotInMemoryDataFeed")
    with pytest.raises(HpcdistError, match="write multi-slot text"):
        setting(dataset, "feed_type")("SlotRecordInMemoryDataFeed")
