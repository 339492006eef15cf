from __future__ import annotations

import numpy as np
import pytest

from hpcdist.errors import CommError
from hpcdist.ps.packets import (
    PacketBuffer,
    VarSpec,
    aligned_bytes,
    layout,
    plan_packets,
    twin_packets,
)

W = VarSpec("w", (13, 1), "float32")
B = VarSpec("b", (3,), "float32")
D = VarSpec("d", (2,), "float64")
BIG = VarSpec("big", (200, 100), "float32")


def names(packets):
    return [[spec.name for spec in packet.variables] for packet in packets]


def test_small_variables_share_the_packet_of_the_last_of_them():
    assert names(plan_packets([W, B])) == [["w", "b"]]
    assert names(plan_packets([W, BIG, B])) == [["big"], ["w", "b"]]
    assert names(plan_packets([W, B, BIG])) == [["w", "b"], ["big"]]
    assert names(plan_packets([W, BIG], small=1)) == [["w"], ["big"]]
    assert plan_packets([]) == ()


def test_a_packet_is_called_by_what_users_know():
    step = VarSpec("@STEP@", (2,), "int64")
    (packet,) = plan_packets([step, W, B])
    assert str(packet) == "w, b"
    (alone,) = plan_packets([step])
    assert str(alone) == "@STEP@"


def test_offsets_are_aligned_to_the_items():
    (packet,) = plan_packets([W, B, D])
    assert packet.offsets == (0, 52, 64)  # 13 and 3 floats end at 64 bytes
    assert packet.nbytes == 80
    (packet,) = plan_packets([B, D])
    assert packet.offsets == (0, 16)  # a float64 cannot begin at 12
    assert [p.tag for p in plan_packets([BIG, W])] == [0, 1]


def test_twins_differ_in_names_only():
    packets = plan_packets([W, BIG, B])
    twins = twin_packets(packets, {"w": "W", "b": "B", "big": "BIG"})
    assert names(twins) == [["BIG"], ["W", "B"]]
    assert [(p.tag, p.nbytes, p.offsets) for p in twins] == [
        (p.tag, p.nbytes, p.offsets) for p in packets
    ]


def test_rows_of_an_arena_are_views():
    (packet,) = plan_packets([W, B])
    arena = aligned_bytes((3, 128))
    views = packet.views(arena[:, 64:128])
    views["w"][2] = 5
    assert views["w"].shape == (3, 13, 1)
    assert views["b"].shape == (3, 3)
    assert np.shares_memory(views["b"], arena)
    assert (arena[2, 64:116].view(np.float32) == 5).all()
    assert not arena[:2].any()


def test_layout_aligns_packets():
    packets = plan_packets([W, BIG, D], small=60)
    offsets, nbytes = layout(packets)
    ends = [begin + packet.nbytes for begin, packet in zip(offsets, packets, strict=True)]
    assert all(begin % 64 == 0 for begin in offsets)
    assert all(end <= begin for end, begin in zip(ends, (*offsets[1:], nbytes), strict=True))
    assert aligned_bytes((nbytes,)).ctypes.data % 64 == 0


def test_a_lone_variable_and_a_fitting_layout_are_sent_from_where_they_lie():
    (lone,) = plan_packets([W])
    array = np.zeros((13, 1), np.float32)
    buffer = PacketBuffer(lone, {"w": array})
    assert buffer.in_place
    buffer.bytes.view(np.float32)[4] = 3
    assert array[4, 0] == 3

    (pair,) = plan_packets([W, B])
    arena = aligned_bytes((256,))
    buffer = PacketBuffer(pair, pair.views(arena[128 : 128 + pair.nbytes]))
    assert buffer.in_place
    assert buffer.bytes.ctypes.data == arena.ctypes.data + 128
    assert buffer.bytes.nbytes == pair.nbytes

    whole = np.arange(16, dtype=np.float32)  # rows of one parameter, side by side
    rows = {"w": whole[:13].reshape(13, 1), "b": whole[13:]}
    assert PacketBuffer(pair, rows).in_place


def test_other_arrays_are_copied_both_ways():
    (packet,) = plan_packets([W, B])
    arrays = {"w": np.ones((13, 1), np.float32), "b": np.full(3, 2, np.float32)}
    buffer = PacketBuffer(packet, arrays)
    assert not buffer.in_place
    buffer.gather()
    assert buffer.bytes.view(np.float32).tolist() == [1.0] * 13 + [2.0] * 3
    buffer.bytes.view(np.float32)[:] = np.arange(16)
    buffer.scatter()
    assert arrays["b"].tolist() == [13, 14, 15]

    gap = np.zeros(20, np.float32)  # contiguous, but not as the packet says
    assert not PacketBuffer(packet, {"w": gap[:13].reshape(13, 1), "b": gap[14:17]}).in_place
    swapped = {"w": gap[3:16].reshape(13, 1), "b": gap[:3]}
    assert not PacketBuffer(packet, swapped).in_place


def test_arrays_that_do_not_fit_are_refused():
    (packet,) = plan_packets([W])
    with pytest.raises(CommError, match=r"no array for w float32\[13, 1\]"):
        PacketBuffer(packet, {})
    with pytest.raises(CommError, match=r"must be float32\[13, 1\], got float64\[13, 1\]"):
        PacketBuffer(packet, {"w": np.zeros((13, 1))})
    with pytest.raises(CommError, match="C-contiguous"):
        PacketBuffer(packet, {"w": np.zeros((13, 2), np.float32)[:, :1]})
