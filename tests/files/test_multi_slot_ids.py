"""Lines with ids, merged by them; descriptions of slots."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import DataError, MissingNameError
from hpcdist.fluid.multi_slot.global_shuffle import by_ids_among, check_agreed
from hpcdist.fluid.multi_slot.merging import id_keys
from hpcdist.fluid.multi_slot.samples import LINE_ID, SampleSlot, arranged, concatenated
from hpcdist.fluid.multi_slot.text import samples_of
from hpcdist.multi_slot import merging
from tests.support.threads import run_in_world

pytestmark = pytest.mark.usefixtures("fresh")


# lines with ids

IDS = """1 b 2 5 6 1 9 1 0.5 1 1 2 1 2
1 a 1 7 1 0 1 0 1 0 2 0 0
1 b 1 0 1 0 1 0 1 3 2 3 4
1 a 1 0 2 4 3 1 1.5 1 0 2 7 8
1 c 1 8 1 8 1 8 1 8 2 8 8
1 9 1 1 1 6 1 0.5 1 3 2 0 0
1 9 1 0 1 0 1 0 1 0 2 0 0
1 9 1 0 1 0 1 0 1 0 2 0 0
1 d 1 5 1 6 1 0.5 1 1 2 1 2
1 d 1 5 1 0 1 0 1 1 2 1 2
1 e 1 5 1 6 1 0 1 1 2 1 0
1 e 1 0 1 0 1 0.25 1 0 2 0 2
"""
# What Fluid 1.8.5 made of them (words, more, f, label, z), by ids; it leaves "d" out.
MERGED = {
    "a": ([7], [4, 3], [1.5], [0], [7, 8]),
    "b": ([5, 6], [9], [0.5], [3], [3, 4]),
    "e": ([5], [6], [0.25], [1], [0, 2]),
    "c": ([8], [8], [8], [8], [8, 8]),
    "9": ([1], [6], [0.5], [3], [0, 0]),
}


def lines_with_ids(path, size=None, text=IDS):
    path.write_text(text)
    ragged = [fluid.data(n, [None, 1], "int64", lod_level=1) for n in ("words", "more")]
    dense = [fluid.data("label", [None, 1], "int64"), fluid.data("z", [None, 2])]
    variables = [*ragged, fluid.data("f", [None, 1], lod_level=1), *dense]
    made = fluid.InMemoryDataset()
    made.set_use_var(variables)
    made.set_filelist([str(path)])
    if size is not None:
        made.set_merge_by_lineid(size)
    return made


def samples_in(made):
    """Return each sample's values by slots."""
    made.set_batch_size(1)
    return [tuple(np.ravel(v).tolist() for v in batch.values()) for batch in made.batches()]


@pytest.mark.parametrize(("size", "ids"), [(2, "abe"), (0, "abec9"), (3, "9")])
def test_lines_of_one_id_are_merged_as_fluid_does(tmp_path, caplog, size, ids):
    made = lines_with_ids(tmp_path / "a", size)
    made.load_into_memory()
    assert made.get_memory_data_size() == 12
    made.global_shuffle()
    found = samples_in(made)
    assert sorted(found) == sorted(MERGED[k] for k in ids)
    assert ("2 samples of id 'd' are left out: more than one has values of slot 'words'") in (
        caplog.text
    ) or size == 3
    assert ("id 'c' are left out: they are not 2" in caplog.text) == (size == 2)
    made.global_shuffle()  # they are merged already
    assert sorted(samples_in(made)) == sorted(found)
    made.load_into_memory()
    assert made.get_memory_data_size() == 12


def test_ids_and_texts_of_lines_are_passed_over(tmp_path):
    plain = lines_with_ids(tmp_path / "a", text=IDS.replace("1 ", "", 1).replace("b ", "", 1))
    with pytest.raises(DataError, match="a, line 2: slot 0"):
        plain.load_into_memory()
    expected = []
    for texts in ("", " 1 with_a_text"):
        lines = [line.split(" ", 2) for line in IDS.splitlines()]
        text = "".join(f"{one} {name}{texts} {rest}\n" for one, name, rest in lines)
        with fluid.program_guard(fluid.Program()):
            made = lines_with_ids(tmp_path / "a", text=text)
        made.set_parse_ins_id(True)
        made.set_parse_content(bool(texts))
        made.load_into_memory()
        expected.append(samples_in(made))
    assert expected[0] == expected[1] and len(expected[0]) == 12


@pytest.mark.parametrize("head", ["2 b", "b", "1", "", "1 \t"])
def test_a_line_without_its_id_is_named(tmp_path, head):
    made = lines_with_ids(tmp_path / "a", 2, IDS + head + "\n")
    with pytest.raises(DataError, match="a, line 13: expected an id after the number 1"):
        made.load_into_memory()


def test_ids_of_one_hash_are_not_taken_for_one(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "xxh3_64_intdigest", lambda data: len(data))
    made = lines_with_ids(tmp_path / "a", 0)
    made.load_into_memory()
    with pytest.raises(DataError, match="two line ids have the same hash"):
        made.global_shuffle()


@pytest.mark.parametrize("sizes", [[12, 0, 7], [19], [1, 1, 1, 1], [0, 0], [3, 50]])
def test_samples_of_one_id_meet_on_one_trainer(sizes):
    rng = np.random.default_rng(4)
    lines = [f"1 {rng.integers(9)} 1 5 2 {k} 0.5 1 {k}\n" for k in range(sum(sizes))]
    slots = [
        SampleSlot("words", "int64", None),
        SampleSlot("z", "float32", (2,)),
        SampleSlot("label", "int64", (1,)),
    ]
    begins, slots = np.cumsum([0, *sizes]), [*slots, LINE_ID]
    parts = [None] * len(sizes)

    def bring(transport):
        own = "".join(lines[begins[transport.rank] : begins[transport.rank + 1]])
        (samples,) = samples_of([own.encode()], slots, "part", texts=1)
        parts[transport.rank] = by_ids_among(transport, samples, 60)

    run_in_world(len(sizes), bring)
    (whole,) = samples_of(["".join(lines).encode()], slots, "part", texts=1)
    expected = arranged(whole, np.argsort(id_keys(whole), kind="stable"))
    for got, wanted in zip(concatenated(parts).columns, expected.columns):
        np.testing.assert_array_equal(got.values, wanted.values)
    owners = [{int(key) for key in id_keys(part)} for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))


def test_workers_that_shuffle_otherwise_are_told_so():
    def shuffle(transport):
        settled = {"the seed": 3, "what set_merge_by_lineid says": 2 + (transport.rank == 2)}
        with pytest.raises(DataError, match="lineid says is 3 on trainer 2, and 2 on trainer 0"):
            check_agreed(transport, settled, 60)
        check_agreed(transport, {"the seed": 1 << 70}, 60)

    run_in_world(3, shuffle)


# descriptions


def test_a_description_is_read_changed_and_written_as_fluid_does(tmp_path):
    """Texts are those that Fluid 1.8.5 writes."""
    path = tmp_path / "d.proto"
    slots = (
        '  slots {{\n    name: "words"\n    type: "uint64"\n    is_dense: {}\n'
        "    is_used: true\n  }}\n"
    )
    path.write_text(
        'name: "MultiSlotDataFeed"  # a word\nbatch_size: 2\nmulti_slot_desc < slots: {\n'
        """ name: "wor" 'ds' type: "uint64", is_dense: f; is_used: True }\n"""
        r' slots { name: "\154\x61bel" shape: [1, -2] shape: 0x10 } >'
    )
    described = fluid.DataFeedDesc(str(path))
    described.set_batch_size(128)
    label = '  slots {\n    name: "label"\n%s    shape: 1\n    shape: -2\n    shape: 16\n  }\n}\n'
    ends = 'pipe_command: "cat"\n'
    head = 'name: "MultiSlotDataFeed"\nbatch_size: 128\nmulti_slot_desc {\n'
    assert described.desc() == head + slots.format("false") + label % "" + ends
    described.set_dense_slots(["words"])
    described.set_use_slots(["label"])
    assert described.desc() == head + slots.format("true") + label % "    is_used: true\n" + ends
    path.write_text(described.desc())
    assert fluid.DataFeedDesc(path).desc() == described.desc()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('\nnam: "Foo"', "d.proto, line 2: not a description of slots: no field 'nam'"),
        ("batch_size: x", "batch_size: expected int, got 'x'"),
        ("batch_size: 08", "batch_size: invalid literal for int() with base 8: '08'"),
        ("batch_size: 2147483648", "batch_size: expected int, got '2147483648'"),
        ("batch_size: " + "9" * 5000, "batch_size: Exceeds the limit"),
        ("name: 5", "name: expected str, got '5'"),
        ("name 'a'", "expected ':' after name"),
        ("name: 'a' name: 'b'", "name may be there once"),
        ("multi_slot_desc { slots { is_used: maybe", "is_used: expected bool, got 'maybe'"),
        ("multi_slot_desc { slots {", "no field ''"),
        ("multi_slot_desc: 5", "expected '{' after multi_slot_desc, got '5'"),
        ("multi_slot_desc { slots { shape: [1 2] } }", "expected ',' or ']' in shape, got '2'"),
        ("name: 'a", 'got "\'a"'),
        ("name: '\\xff'", "name: 'utf-8' codec"),
    ],
)
def test_what_is_no_description_is_refused(tmp_path, text, message):
    (tmp_path / "d.proto").write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        fluid.DataFeedDesc("d.proto")


def test_descriptions_know_their_slots(tmp_path):
    (tmp_path / "d.proto").write_text("multi_slot_desc { slots { name: 'a' } slots { type: 'x' } }")
    described = fluid.DataFeedDesc("d.proto")
    for call, message in [
        (lambda: described.set_dense_slots(["b"]), r"no slot \['b'\] among \['', 'a'\]"),
        (lambda: described.set_use_slots("a"), "expected a list of names"),
        (lambda: described.set_batch_size(0), "at least 1, got 0"),
        (lambda: fluid.DataFeedDesc("gone"), "gone: cannot be read"),
    ]:
        with pytest.raises(DataError, match=message):
            call()
    with pytest.raises(MissingNameError, match="nor here: exe.train_from_dataset"):
        fluid.AsyncExecutor  # noqa: B018
