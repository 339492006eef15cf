"""Laws of how checkpoints are cut: chunks, shares and reads cover every element once."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcdist.checkpoint.layout import corner, cut, name_of, path_of
from hpcdist.checkpoint.metadata import Piece
from hpcdist.checkpoint.plan import reads_of, shares, variables_of
from hpcdist.checkpoint.rows import BUCKETS, SORTED, stretch
from hpcdist.ps.batch import owners_of

words = st.sampled_from(["", ".", "..", "@checkpoint", "manifest.h5", "%2E", "%", "%25"])
variables = st.lists(words | st.text("a/.%\0", max_size=6), max_size=3).map("/".join)
shapes = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)


@given(shapes, st.sampled_from([1, 2, 4, 8]), st.integers(8, 300))
def test_chunks_cover_every_element_once_and_are_one_piece_of_memory(shape, itemsize, chunk_bytes):
    found, total = cut(shape, itemsize, chunk_bytes), math.prod(shape)
    pieces = found.pieces(total)
    assert [first for first, _ in pieces] == np.cumsum([0, *(n for _, n in pieces)])[:-1].tolist()
    assert sum(count for _, count in pieces) == total
    numbers = np.arange(total).reshape(shape)
    for first, count in pieces:
        at = corner(shape, first)
        assert all(i % c == 0 for i, c in zip(at, found.shape))  # where HDF5 has a chunk
        inside = numbers[tuple(slice(i, i + c) for i, c in zip(at, found.shape))]
        assert inside.reshape(-1).tolist() == list(range(first, first + count))


@given(st.lists(st.tuples(shapes, st.sampled_from([4, 8])), max_size=6), st.integers(1, 9))
def test_every_row_is_in_one_share_and_shares_are_about_equal(variables, writers):
    named = {f"v{i}": shape for i, (shape, _) in enumerate(variables)}
    sizes = {f"v{i}": size for i, (_, size) in enumerate(variables)}
    found = shares(named, sizes, writers)
    for name, shape in named.items():
        rows = sorted(r for share in found for n, b, e in share if n == name for r in range(b, e))
        assert rows == list(range(shape[0]))
    row = {n: math.prod(shape[1:]) * sizes[n] for n, shape in named.items()}
    total = sum(math.prod(shape) * sizes[n] for n, shape in named.items())
    for share in found:
        nbytes = sum((end - begin) * row[n] for n, begin, end in share)
        assert nbytes <= total / writers + max(row.values(), default=0) + 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_reads_put_any_rows_together(counts, data):
    ends = np.cumsum(counts).tolist()
    total = ends[-1]
    pieces = [Piece("w", "parameter", "float32", (total, 2), e - n, e, str(e))
              for e, n in zip(ends, counts)]  # fmt: skip
    order = data.draw(st.permutations(pieces))
    saved = variables_of(order, "f")["w"]
    begin = data.draw(st.integers(0, total))
    end = data.draw(st.integers(begin, total))
    got = np.full(end - begin, -1)
    for read in reads_of(saved, order, begin, end):
        rows = np.arange(order[read.piece].begin, order[read.piece].end)[read.begin : read.end]
        assert (got[read.at : read.at + len(rows)] == -1).all()
        got[read.at : read.at + len(rows)] = rows
    assert got.tolist() == list(range(begin, end))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200), st.integers(1, 70))
def test_a_servers_rows_are_in_its_stretch_of_every_run(ids, servers):
    ids = np.array(ids, np.int64)
    buckets = np.sort(owners_of(ids, SORTED)) // (SORTED // BUCKETS)
    order = np.argsort(owners_of(ids, SORTED), kind="stable")
    begins = (0, *np.cumsum(np.bincount(buckets, minlength=BUCKETS)).tolist())
    owners = owners_of(ids, servers)[order]
    for server in range(servers):
        begin, end = stretch(begins, server, servers)
        assert not (owners[:begin] == server).any()
        assert not (owners[end:] == server).any()


@given(st.lists(variables, unique=True, max_size=6))
def test_paths_differ_where_names_differ(names):
    paths = [path_of(name) for name in names]
    assert len(set(paths)) == len(paths)
    assert all(part not in ("", ".", "..") for path in paths for part in path.split("/"))
    assert not {"@checkpoint", "manifest.h5"}.intersection(p.split("/")[0] for p in paths)
    assert [name_of(path) for path in paths] == names
