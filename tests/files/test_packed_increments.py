"""Increments are packed: smaller, the same rows, and refused if they are anything else."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdist.errors import PublicationError
from hpcdist.ps.published import packing
from hpcdist.ps.published.files import TableRows, open_layers, write_member, write_rows
from hpcdist.ps.published.members import DELTA, Member, TableKind, parse
from hpcdist.ps.published.sorted_rows import mixes_of

NAME = "000000002.ab.0-of-1.rows"
KIND = TableKind(16, 7, {"kind": "constant", "a": 0.5, "b": 1.0})
BYTES = TableKind(5, 7, {"storage": {"rows": "int8"}, "row_bytes": 9})


def table_rows(rows, keys=None, deleted=0):
    keys = np.sort(mixes_of(np.arange(len(rows)))) if keys is None else keys
    gone = np.sort(mixes_of(np.arange(-deleted, 0)))
    return TableRows(keys, lambda begin, end: rows[begin:end], gone)


def written(directory, tables, kinds):
    sizes = {name: kind.row_bytes for name, kind in kinds.items()}
    file = write_rows(directory / NAME, tables, sizes, packed=True)
    member = Member(2, DELTA, "0" * 32, "", 1, kinds, (file,))
    write_member(directory, member)
    return member


@pytest.mark.parametrize("count", [0, 1, packing.BLOCK, packing.BLOCK + 3])
def test_rows_that_are_packed_are_the_same_rows(tmp_path, count):
    draw = np.random.default_rng(count)
    deep = draw.normal(0, 0.01, (count, 16)).astype(np.float32)
    wide, few = deep[:, :1].copy(), draw.integers(0, 256, (7, 9), np.uint8)
    kinds = {"deep": KIND, "wide": replace(KIND, width=1), "few": BYTES}
    deleted = 5 if count else 0
    tables = {"deep": table_rows(deep, deleted=deleted), "wide": table_rows(wide)}
    member = written(tmp_path, {**tables, "few": table_rows(few)}, kinds)
    read = parse(member.name, (tmp_path / member.name).read_bytes())
    assert read == member
    (file,) = read.files
    assert file.tables["wide"].like == ("deep" if count else "")
    layers = open_layers(tmp_path, read)
    for name, rows in (("deep", deep), ("wide", wide), ("few", few)):
        kept = [layer for layer in layers[name] if layer.gone is None]
        assert (len(kept) == 1) == (len(rows) > 0)
        for layer in kept:
            assert layer.rows.tobytes() == rows.tobytes()
            np.testing.assert_array_equal(layer.index.keys, np.sort(mixes_of(np.arange(len(rows)))))
    assert [len(layer) for layer in layers["deep"] if layer.gone is not None] == [5][
        : bool(deleted)
    ]
    if count > 1000:
        plain = sum(section.plain_bytes(kinds[n].row_bytes) for n, section in file.tables.items())
        assert file.bytes < 0.78 * plain


def damaged(data, member, name, **facts):
    """Return a member whose section says something else, as if somebody had made it so."""
    (file,) = member.files
    section = replace(file.tables[name], **facts)
    return replace(member, files=(replace(file, tables={**file.tables, name: section}),))


@pytest.mark.parametrize(
    ("name", "facts", "told"),
    [
        ("deep", {"rows": 999}, "no room for its rows of table .wide."),
        ("deep", {"deleted": 1}, "ends within its rows"),
        ("deep", {"packed": 800}, "ends within its rows|left over"),
        ("deep", {"rows": 10**9}, "no room for its rows"),
        ("wide", {"like": "wide"}, "no room for its rows"),
        ("wide", {"like": "other"}, "no room for its rows"),
    ],
)
def test_what_nobody_has_packed_is_refused_by_name(tmp_path, name, facts, told):
    rows = np.zeros((1000, 16), np.float32)
    kinds = {"deep": KIND, "wide": replace(KIND, width=1)}
    tables = {"deep": table_rows(rows), "wide": table_rows(rows[:, :1])}
    member = damaged(None, written(tmp_path, tables, kinds), name, **facts)
    with pytest.raises(PublicationError, match=f"000000002.*({told})"):
        open_layers(tmp_path, parse(member.name, member.encode()))


def test_frames_that_cannot_be_unpacked_are_refused():
    (frame,) = packing.packed_rows(np.zeros((500, 1), np.uint8))
    assert len(frame) < 100
    for wrong, told in (
        (frame[:2], "ends"),
        (frame[:-3], "ends"),
        (b"\7\0\0\0abcdefg", "unpacked"),
    ):
        with pytest.raises(ValueError, match=told):
            packing.Unpacked(memoryview(wrong)).rows(np.empty((500, 1), np.uint8))
    bomb = packing.Unpacked(memoryview(frame))
    with pytest.raises(ValueError, match="cannot be unpacked"):
        bomb.rows(np.empty((400, 1), np.uint8))
