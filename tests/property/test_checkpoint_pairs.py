"""A checkpoint of m servers restores on n, bit for bit: all pairs of 1 to 8."""

from __future__ import annotations

import numpy as np

from tests.cases.checkpoint import Servers, all_rows, build, empty_table, fill_tables, rows_of

COUNTS = range(1, 9)


def test_all_pairs_of_servers_give_every_bit_back(tmp_path):
    main, startup = build()
    whole: dict[str, np.ndarray] = {}
    jobs = {n: Servers(main, startup, n, tables=True) for n in COUNTS}
    for m in COUNTS:
        jobs[m].fill(whole)
        rows = fill_tables(jobs[m].tables)
        jobs[m].save(tmp_path / str(m))
    assert {"embedding_0.w_0", "embedding_0.w_0_moment2_0", "@LR_DECAY_COUNTER@"} <= whole.keys()
    cut = [piece for _, piece in jobs[8].held() if piece.end - piece.begin < piece.whole[0]]
    assert len({piece.name for piece in cut}) >= 6
    for n in COUNTS:
        for m in COUNTS:
            jobs[n].spoil()
            for scope in jobs[n].scopes:
                scope.var("ids_table").value = empty_table()
            jobs[n].load(tmp_path / str(m))
            for array, piece in jobs[n].held():
                want = whole[piece.name] if piece.copy else whole[piece.name][rows_of(piece)]
                assert array.tobytes() == want.tobytes(), (m, n, piece)
            tables = [scope.find_var("ids_table").value for scope in jobs[n].scopes]
            for got, want in zip(all_rows(tables), rows):
                assert got.tobytes() == want.tobytes(), (m, n)
            assert all(table.shared.tolist() == [0.25, 0.5] for table in tables)
