"""Increments are packed: smaller, the same rows, and refused if they are anything else."""

import base64
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

from hpcdist.errors import PublicationError
from hpcdist.ps.published import packing
from hpcdist.ps.published.files import TableRows, open_layers, write_member, write_rows
from hpcdist.ps.published.members import DELTA, Member, TableKind, parse
from hpcdist.ps.published.sorted_rows import mixes_of
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from hpcdist.serving import Lookup, compact

NAME = "000000002.ab.0-of-1.rows"
KIND = TableKind(16, 7, {"kind": "constant", "a": 0.5, "b": 1.0})
# A base, ids -3 to 5, and an increment, 2 to 8 without -1 and 0, as they were packed in format 2.
FORMAT_2 = (
    "c-rMv+j8PK5dD>@yk;lk3y^rL@*r$%Y$6;RjFH}a0c^|01Ooz3?Z2<up>~qF?AFxmKCP;RXsLC&Pm4Z$zLBm&zKh~J"
    ">0`bADBtaC-rW5D;YL^bV^xvj-Q0`FaWChaB%Hq(=hirHS+kqD%H)ByUgOq?YK8Zyubr~3ep@6(Hk%D+w`MaPj6TVs"
    ")(j@|^J%fi>xJr8V{F`~c6Gl;$f&u8P!Ep~nifN0_dH>vku5%a9U&b(bFg8GW2Dz`-i*Y?QwAH%+aNRnfBh`{hZyVt"
    "Y!mJy5AYG-y9V4RU^B37h=(}fd4OjQ!4~6i^fm2Z4Fbuko?bLkk4-k%JS6;q_Mav}amY^&mY$3kWUYzxe7lZ&l%HzV"
    "?geZUoU+(hWzX8;6uUWlh~=mq%W1pIT6C+<oZ~?789@AJ$p4k!3&hv`zw#f!x$`AIF&=Mz`|#$i;;32O6-~W`XIfnx"
    "7KLe<s9x^ob~`O>c{(o{nPW~ZlTAa9Ps4yy!;@*Tx!};La52qDZZ~#Ccd@l-?P3=ToP4$P%j9AYaKV%({T=R^v}Nwj"
    "{Q`%J99!O*8fAqmS`j7akuYd+i)69(zu*RNk7EN}=jcd6`-pY<M04r<v~^CYigOW1BB9gJCC=S#lT&L^Cb~TUUNk(H"
    "skLBsQFGyUq7`lFQsh&h#=hQni&7J3Y83jV;BjwPeknLfG`#v%T1B_hG8LG3zLA9QC00|xx$du*vbLP@oL1T;4oyky"
    "oyGY+3i}W<CzaXK8Spvp;;I2YkS|ZFg%X9D47IX>?{+8?;X@Qt68lHE`-S&EPQVnrOqquLLc|+jkyE1jT^+E_^VBl)"
    ">pOM)=n{3c5_#@YtIT4n9MGlR?Gd=I_hf;YcYL}U97O)`j!qFP{Z`-|Q{B<JxM5dc^;$zIf|#l#IHfxZZ}?xv5%pht"
    "kMDlo%6Ft_2r_{0?Mxr9%*Go-Pb9uNLymj!Hwm=1JpH83R)*qqzD{H+RN3G9N$0z_sQMB+FER(;Vb2RBwpZGs^Br$("
    "S)Xk&<DIX`>pjkRrf;D4h6P6ib=qJ(qu~ZE;OlC9LCl#1LOkq75TEFr2c}PUlc?4=fa&TeNXPyqA&?y0smG*SAJS2`"
    "wiBsapQo?;v>$XUYrJl~<W08*TYio2qN^Ap((5YFabZa36H{j$myx4;%oNl9<(NWszIvB*RUV=r=#J>sIqnmo53Z3F"
    "q(B#15ZSe8>CUm}#o&yM1;fgMk;~ud&W69&9VeqjB6Nio7_>(rs=$?SJ5r~HI5W)LwTS2;CcFBNbjSV`-MM_LJHw19"
    "hmv-B!p?8>L|u!%O_h>C4}S-ziNZq(+Hj5al{PW(;Ut{yU$twayu<!ht1fS~N?<mrHOgP(^!Ko5=R!xuPMKEaDFvQC"
    "`~UE7>stOs*Jl3@UE3YwGEbsI{@OM_QNG8UKmG)aup&?"
)
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
        ("deep", {"packed": 200}, "ends within its rows|left over"),
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


def test_what_an_earlier_release_has_packed_is_read(tmp_path):
    for name, data in json.loads(zlib.decompress(base64.b85decode("".join(FORMAT_2)))).items():
        (tmp_path / name).write_bytes(base64.b64decode(data))
    ids = np.array([-3, -1, 0, 1, 2, 8])
    for _ in range(2):
        with Lookup(tmp_path, watch=False) as lookup:
            for name, width in (("deep", 3), ("wide", 1)):
                rows = (
                    ids[:, None] * 10 + np.arange(width) + np.array([[1], [0], [0], [1], [2], [2]])
                )
                rows[1:3] = -1
                found = np.where(lookup.pull(name, ids) == 0.5, -1, lookup.pull(name, ids))
                np.testing.assert_array_equal(found, rows)
        compact(tmp_path)


def test_scales_of_rows_take_two_bytes_and_a_half():
    """Those of float32 would take more than three; whole numbers of random rows take a byte."""
    optimizer, start = RowOptimizer("adagrad"), RowInitializer("uniform", -0.1, 0.1)
    table = SparseTable("t", 16, optimizer, start, 1, storage=RowStorage("int8"))
    grads = np.random.default_rng(0).normal(size=(10_000, 16)).astype(np.float32)
    table.push(np.arange(10_000), grads, 0.01)
    _, rows, _ = table.export(0, 10_000)
    assert sum(map(len, packing.packed_rows(rows))) < 10_000 * (16 + 2.5)


def test_ids_of_a_small_range_take_little(tmp_path):
    """Of int8 rows of 8 it is half: rows of random numbers cannot become smaller."""
    draw = np.random.default_rng(0)
    ids = draw.choice(1 << 20, 30_000, replace=False)
    rows = draw.integers(0, 256, (30_000, 12), np.uint8)
    rows[:, 3] = 60  # of scales: signs and exponents
    kinds = {"t": replace(BYTES, width=8, initializer={**BYTES.initializer, "row_bytes": 12})}
    member = written(tmp_path, {"t": table_rows(rows, np.sort(mixes_of(ids)))}, kinds)
    assert member.nbytes < 30_000 * (11 + 1.5)
    (layer,) = open_layers(tmp_path, member)["t"]
    np.testing.assert_array_equal(layer.index.keys, np.sort(mixes_of(ids)))
    np.testing.assert_array_equal(layer.rows, rows)
