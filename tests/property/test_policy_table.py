"""Tables that admit and forget, on 1, 2 and 3 servers, against dicts: equal in bits.

`make test` draws 40 runs of 25 calls. HPCDIST_TEST_TABLES=2000 in the environment of pytest draws
so many, of 60 calls.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hpcdist.ps import table_memory
from hpcdist.ps.batch import owners_of
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.support.policy_model import PolicyModel

RUNS = int(os.environ.get("HPCDIST_TEST_TABLES", "40"))
DIM, SEED = 3, 7
START = RowInitializer("uniform", -0.5, 0.25)
OPTIMIZERS = [
    RowOptimizer("sgd"),
    RowOptimizer("adagrad", initial_moment=0.1),
    RowOptimizer("adam", epsilon=1e-8),
    RowOptimizer("adagrad", clip_norm=0.5),
]
STORED = [
    *[{}] * 3,
    {"rows": "int8", "state": "float16"},
    {"rows": "bfloat16", "rounding": "stochastic"},
    {"rows": "float16"},
]
# The fewest rows in memory that there can be, some, more than there ever are.
ON_DISK = [{}, *({"disk": tempfile.gettempdir(), "memory_rows": n} for n in (1, 7, 100))]
ENDS = [-(2**63), -1, 0, 2**63 - 1]
IDS = st.one_of(st.sampled_from(ENDS), st.integers(1, 60))
SCORES = st.builds(
    ClickScore,
    show_click_decay_rate=st.sampled_from([0.98, 0.5]),
    delete_threshold=st.sampled_from([0.8, 0.15, 0.0]),
    delete_after_unseen_days=st.sampled_from([1.0, 30.0]),
)


@st.composite
def policies(draw: st.DrawFn) -> RowPolicy:
    """Draw a policy small enough to come into force; 6 parts, for 1, 2 and 3 servers."""
    admit_after = draw(st.sampled_from([1, 2, 3]))
    sketch = draw(st.sampled_from([0, 6 * 4 * 4 * 16])) if admit_after > 1 else 0
    waits = admit_after > 1 and not sketch
    score = draw(st.none() | SCORES)
    budget = draw(st.sampled_from([0, 6, 15, 30]))
    keeps = ["", "recent", "frequent", *(["score"] if score else [])]
    return RowPolicy(
        admit_after=admit_after,
        admit_probability=draw(st.sampled_from([1.0, 0.6])),
        until_admitted=draw(st.sampled_from(["initial", "zeros"])),
        waiting_ids=draw(st.sampled_from([12, 1000])) if waits else RowPolicy().waiting_ids,
        sketch_bytes=sketch,
        expire_steps=draw(st.sampled_from([0, 3])),
        expire_days=draw(st.sampled_from([0, 1])),
        shrink_every=draw(st.sampled_from([0, 5])),
        budget_rows=budget,
        keep=draw(st.sampled_from(keeps)) if budget else "",
        score=score,
        shows=("show", "click") if score and draw(st.booleans()) else None,
        widen_at=draw(st.sampled_from([0.0, 0.3, 2.0])) if score else 0.0,
        weight_bounds=draw(st.sampled_from([None, None, (0.01, 0.2)])),
        parts=6,
        **draw(st.sampled_from(STORED)),
        **draw(st.sampled_from(ON_DISK)),
    )


class TablesAreDicts(RuleBasedStateMachine):
    """The same calls to the dicts and to tables on 1, 2 and 3 servers."""

    @initialize(policy=policies(), optimizer=st.sampled_from(OPTIMIZERS))
    def make(self, policy: RowPolicy, optimizer: RowOptimizer) -> None:
        optimizer = replace(optimizer, weight_bounds=policy.weight_bounds)
        self.policy, self.optimizer = policy, optimizer
        self.model = PolicyModel(DIM, optimizer, START, SEED, policy)
        self.servers = [[self.table() for _ in range(n)] for n in (1, 2, 3)]

    def table(self) -> PolicyTable:
        return PolicyTable("t", DIM, self.optimizer, START, SEED, policy=self.policy)

    @rule(ids=st.lists(IDS, max_size=25), seed=st.integers(0, 2**16))
    def push(self, ids: list[int], seed: int) -> None:
        random = np.random.default_rng(seed)
        grads = random.normal(size=(len(ids), DIM)).astype(np.float32)
        shows = random.integers(0, 4, (len(ids), 2)).astype(np.float32)
        self.model.push(ids, grads, shows, 0.1)
        array = np.array(ids, np.int64)
        sent = np.hstack([grads, shows]) if self.policy.shows else grads
        for tables in self.servers:
            owners = owners_of(array, len(tables))
            for k, table in enumerate(tables):
                mine = owners == k
                table.push(array[mine], np.ascontiguousarray(sent[mine]), 0.1)

    @rule(ids=st.lists(IDS, max_size=25), create=st.booleans())
    def pull(self, ids: list[int], create: bool) -> None:
        array, wanted = np.array(ids, np.int64), self.model.pull(ids)
        for tables in self.servers:
            owners = owners_of(array, len(tables))
            for k, table in enumerate(tables):
                mine = owners == k
                out = np.full((int(mine.sum()), table.sent_width), np.nan, np.float32)
                table.pull(array[mine], out, create=create)
                np.testing.assert_array_equal(out[:, :DIM], wanted[mine])
                assert not out[:, DIM:].any()

    @rule()
    def shrink(self) -> None:
        before = len(self.model.seen)
        self.model.shrink()
        for tables in self.servers:
            assert sum(t.shrink() for t in tables) == before - len(self.model.seen)

    @precondition(lambda self: self.model.step)
    @rule()
    def restore_on_other_servers(self) -> None:
        """What is saved on 1, 2 and 3 servers is restored on 3, 1 and 2."""
        saved = [self.servers[k] for k in (1, 2, 0)]
        self.servers = [[self.table() for _ in range(n)] for n in (1, 2, 3)]
        for old, new in zip(saved, self.servers):
            for k, table in enumerate(new):
                table.step, table.day = old[0].step, old[0].day
                table.shared[...] = old[0].shared
                self.load(table, old, k, len(new))
                for own, others in zip(table.companions, zip(*(t.companions for t in old))):
                    self.load(own, others, k, len(new))

    def load(self, table, others, k: int, servers: int) -> None:
        for other in others:
            ids, rows, state = other.export(0, len(other))
            mine = owners_of(ids, servers) == k
            kept = (other.metadata(ids)[mine],) if isinstance(other, PolicyTable) else ()
            table.load(ids[mine], rows[mine], state[mine], *kept)

    @invariant()
    def equal(self) -> None:
        columns = len(self.policy.metadata)
        known = {i: seen.words(columns) for i, seen in self.model.seen.items()}
        waiting = {i: seen.words(min(columns, 6)) for i, seen in self.model.waiting.items()}
        for tables in self.servers:
            assert {t.step for t in tables} == {self.model.step}
            assert {t.day for t in tables} == {self.model.day}
            assert metadata_of(tables) == known
            if tables[0].waiting is not None:
                assert metadata_of([t.waiting for t in tables]) == waiting
            for table in tables:
                ids, rows, state = table.export(0, len(table))
                for row_id, row, columns in zip(ids.tolist(), *table.decoded(rows, state)):
                    both = np.r_[row, columns]
                    np.testing.assert_array_equal(both, self.model.table.rows[row_id].reshape(-1))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([1, 2**32, 2**40]),
    lines=st.sampled_from([64, 200]),
    share=st.sampled_from([0.1, 0.6, 0.95]),
)
def test_what_is_removed_is_gone_and_nothing_else(seed, spread, lines, share) -> None:
    """Thousands of rows in full lines and split segments come, go and come back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_memory, "SEGMENT_LINES", lines)
        patch.setattr(table_memory, "CHUNK_BYTES", 1 << 14)
        optimizer = RowOptimizer("adagrad", initial_moment=0.5)
        table = PolicyTable("t", 2, optimizer, START, 1, policy=RowPolicy())
        random = np.random.default_rng(seed)
        numbers = np.arange(6000) * spread + int(random.integers(-(2**62), 2**62))
        present: set[int] = set()
        for _ in range(6):
            new = random.choice(numbers, 3000, replace=False)
            table.push(new, np.zeros((3000, 2), np.float32), 0.1)
            present |= set(new.tolist())
            gone = np.array([i for i in sorted(present) if random.random() < share], np.int64)
            places = table._locate(gone, create=False)  # private: what a policy decides is given
            table._forget(gone, places)  # private: as a budget and a shrink do
            present -= set(gone.tolist())
            found = table._locate(numbers, create=False)  # private: pulls do not tell
            assert set(numbers[found != 0].tolist()) == present
            ids, rows, state = table.export(0, len(table))
            assert sorted(ids.tolist()) == sorted(present)
            initial = np.empty_like(rows)
            SparseTable("t", 2, optimizer, START, 1).read(ids, initial)
            np.testing.assert_array_equal(rows, initial)
            assert (state == 0.5).all()


@pytest.mark.parametrize("keep", ["recent", "frequent", "score"])
def test_exactly_the_least_valuable_of_thousands_go(keep, monkeypatch) -> None:
    """Values rise and fall between looks, many are equal, and rows come back from elsewhere."""
    score = ClickScore(nonclk_coeff=0.5, delete_threshold=-50.0)
    policy = RowPolicy(
        budget_rows=3000, keep=keep, score=score, shows=("show", "click"), parts=2, shrink_every=9
    )
    table = PolicyTable("t", DIM, OPTIMIZERS[1], START, SEED, policy=policy)
    checked = 0

    def keep_to_budget() -> None:
        nonlocal checked
        ids = table.export(0, len(table))[0]
        known = table.metadata(ids)
        gone = []
        for part, quota in enumerate((1500 - 1500 // 16, 1500 + 1500 // 16)):
            here = np.flatnonzero(owners_of(ids, 2) == part)
            over = len(here) - quota
            order = np.lexsort(order_of(known[here], ids[here], keep, score))
            gone += ids[here[order]][: over + quota // 8].tolist() if over > 0 else []
        PolicyTable.keep_to_budget(table)
        left = table.export(0, len(table))[0]
        assert set(left.tolist()) == set(ids.tolist()) - set(gone)
        checked += len(gone)

    monkeypatch.setattr(table, "keep_to_budget", keep_to_budget)
    random = np.random.default_rng(3)
    for step in range(40):
        ids = np.unique(random.zipf(1.1, 700).astype(np.int64) * 2654435761 % 20000)
        shows = random.integers(-2 if step % 4 == 0 else 0, 3, (len(ids), 2))
        sent = np.hstack([random.normal(size=(len(ids), DIM)), shows]).astype(np.float32)
        table.push(ids, sent, 0.1)
        if step == 25:
            ids, rows, state = table.export(0, len(table))
            table.load(ids, rows, state, np.roll(table.metadata(ids), 1, axis=0))
    assert checked > 3000


def order_of(known: np.ndarray, ids: np.ndarray, keep: str, score: ClickScore) -> list:
    """Return the columns by which rows are compared, the last one first."""
    count, step = known[:, 0], known[:, 1]
    floats = known.view(np.float32)
    worth = score.of(floats[:, 3], floats[:, 4])
    columns = {"recent": [count, step], "frequent": [step, count], "score": [count, step, worth]}
    return [ids, *columns[keep]]


def metadata_of(tables: list[PolicyTable]) -> dict[int, list[int]]:
    found = {}
    for table in tables:
        ids = table.export(0, len(table))[0]
        found |= dict(zip(ids.tolist(), table.metadata(ids).tolist()))
    return found


TablesAreDicts.TestCase.settings = settings(
    max_examples=RUNS,
    stateful_step_count=25 if RUNS <= 40 else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTablesAreDicts = TablesAreDicts.TestCase
