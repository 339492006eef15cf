"""Tables with a policy as dicts, one id at a time: `PolicyTable` must equal them in bits."""

from __future__ import annotations

import math

import numpy as np

from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.table import RowInitializer, RowOptimizer
from tests.support.stored_numbers import stored
from tests.support.table_model import MASK, Model, mixed

F = np.float32


def mix(row_id: int) -> int:
    """SplitMix64's finalizer after a constant: what decides servers and parts."""
    x = (row_id & MASK) ^ 0x9D6F29C351E8B04B
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def part_of(row_id: int, parts: int) -> int:
    return ((mix(row_id) >> 32) * parts) >> 32


class Seen:
    """What is known of an id: of one with a row, or of one that waits."""

    def __init__(self) -> None:
        self.count = self.step = self.day = 0
        self.show = self.click = self.delta = F(0)
        self.wide = 0

    def words(self, columns: int) -> list[int]:
        floats = np.array([self.show, self.click, self.delta], F).view(np.uint32).tolist()
        return [self.count, self.step, self.day, *floats, self.wide][:columns]


class PolicyModel:
    """One table, however many servers it has."""

    def __init__(
        self,
        dim: int,
        optimizer: RowOptimizer,
        start: RowInitializer,
        seed: int,
        policy: RowPolicy,
    ) -> None:
        storage = policy.storage or RowStorage()
        self.table = Model(
            dim, optimizer, start, seed, lambda *row: stored(storage, row[0], seed, *row[1:])
        )
        self.table.turns = {} if policy.widen_at else None
        self.policy, self.seed, self.dim = policy, seed, dim
        self.seen: dict[int, Seen] = {}
        self.waiting: dict[int, Seen] = {}
        self.sketch: dict[tuple[int, int, int], float] = {}  # by part, row and column
        self.step = self.day = 0

    def pull(self, ids: list[int]) -> np.ndarray:
        out = np.zeros((len(ids), self.dim), F)
        for i, row_id in enumerate(ids):
            if row_id in self.table.rows:
                out[i] = self.table.rows[row_id][0]
            elif self.policy.until_admitted == "initial":
                out[i] = self.table.initial(row_id)[0]
        return out

    def push(self, ids: list[int], grads: np.ndarray, shows: np.ndarray, rate: float) -> None:
        """grads: float32 [n, dim]; shows: float32 [n, 2], used with ``policy.shows``."""
        self.step += 1
        looks: dict[int, list] = {}
        for row_id, pair in zip(ids, shows):
            start = (F(0), F(0)) if self.policy.shows else (F(1), F(0))
            look = looks.setdefault(row_id, [1, *start])
            if self.policy.shows:
                look[1:] = look[1] + pair[0], look[2] + pair[1]
        for row_id, look in looks.items():
            if row_id not in self.seen and self.by_chance(row_id):
                self.admit(row_id, look)
            if row_id in self.seen and self.seen[row_id].step < self.step:
                self.look(self.seen[row_id], look)
        self.keep(self.waiting, self.policy.waiting_ids, "recent")
        if self.policy.widen_at:
            self.take_turns(looks.keys() & self.seen.keys())
        kept = [i for i, row_id in enumerate(ids) if row_id in self.seen]
        self.table.push(np.array([ids[i] for i in kept], np.int64), grads[kept], rate)
        if self.policy.shrink_every and self.step % self.policy.shrink_every == 0:
            self.shrink()
        keep = self.policy.keep or ("score" if self.policy.score else "recent")
        for row_id in self.keep(self.seen, self.policy.budget_rows, keep):
            del self.table.rows[row_id]

    def take_turns(self, ids: set[int]) -> None:
        self.table.turns = {}
        for row_id in ids:
            seen = self.seen[row_id]
            if not seen.wide:
                seen.wide = int(self.score(seen) >= F(self.policy.widen_at))
                self.table.turns[row_id] = bool(seen.wide)

    def by_chance(self, row_id: int) -> bool:
        p = self.policy.admit_probability
        key = mixed(row_id & MASK) ^ (self.seed ^ 0x6A09E667F3BCC908)
        return p == 1 or mixed(key) <= int(p * 2**64) - 1

    def admit(self, row_id: int, look: list) -> None:
        if self.policy.admit_after == 1:
            self.seen[row_id] = Seen()
        elif self.policy.sketch_bytes:
            if self.count_in_sketch(row_id, look[0]) >= self.policy.admit_after:
                self.seen[row_id] = Seen()
        else:
            waits = self.waiting.setdefault(row_id, Seen())
            self.look(waits, look)
            if waits.count >= self.policy.admit_after:
                self.seen[row_id] = self.waiting.pop(row_id)

    def count_in_sketch(self, row_id: int, times: int) -> float:
        part, h = part_of(row_id, self.policy.parts_for(0)), mixed(row_id & MASK)
        most, least = self.policy.admit_after, self.policy.admit_after
        for row in range(4):
            h = mixed(h)
            place = part, row, ((h >> 32) * self.policy.sketch_width) >> 32
            self.sketch[place] = min(most, self.sketch.get(place, 0) + times)
            least = min(least, self.sketch[place])
        return least

    def look(self, seen: Seen, look: list) -> None:
        seen.count, seen.step, seen.day = seen.count + look[0], self.step, self.day
        if self.policy.score:
            seen.show, seen.click = seen.show + look[1], seen.click + look[2]
            seen.delta = seen.delta + self.worth(look[1], look[2])

    def score(self, seen: Seen) -> np.float32:
        return self.worth(seen.show, seen.click)

    def worth(self, show: np.float32, click: np.float32) -> np.float32:
        score = self.policy.score
        return (show - click) * F(score.nonclk_coeff) + click * F(score.click_coeff)

    def shrink(self) -> None:
        for kept in (self.seen, self.waiting):
            for row_id, seen in list(kept.items()):
                if self.expires(seen, waits=kept is self.waiting):
                    del kept[row_id]
                    if kept is self.seen:
                        del self.table.rows[row_id]
        self.sketch.clear()
        self.day += 1

    def expires(self, seen: Seen, *, waits: bool) -> bool:
        policy, score = self.policy, self.policy.score
        dead = bool(policy.expire_steps) and self.step - seen.step > policy.expire_steps
        dead |= bool(policy.expire_days) and self.day - seen.day > policy.expire_days
        if score:
            seen.show, seen.click = (
                value * F(score.show_click_decay_rate) for value in (seen.show, seen.click)
            )
            dead |= not waits and bool(self.score(seen) < F(score.delete_threshold))
            dead |= self.day - seen.day > score.delete_after_unseen_days
        return dead

    def keep(self, kept: dict[int, Seen], bound: int, keep: str) -> list[int]:
        """Drop what is over the bound; return the ids."""
        if not bound:
            return []
        parts, gone = self.policy.parts_for(bound), []
        far = range(parts * 5 // 8 + 1, parts + 2)
        stride = next(n for n in far if math.gcd(n, parts) == 1)
        for part in range(parts):
            share = bound // parts
            apart = 2 * (part * stride % parts) - (parts - 1)
            tilt = int(apart * (share // 16) / max(1, parts - 1))
            quota = share + (part < bound % parts) + tilt
            here = [row_id for row_id in kept if part_of(row_id, parts) == part]
            if len(here) > quota:
                here.sort(key=lambda row_id: self.value(row_id, kept[row_id], keep))
                gone += here[: len(here) - (quota - quota // 8)]
        for row_id in gone:
            del kept[row_id]
        return gone

    def value(self, row_id: int, seen: Seen, keep: str) -> tuple:
        if keep == "recent":
            return seen.step, seen.count, row_id
        if keep == "frequent":
            return seen.count, seen.step, row_id
        return self.score(seen), seen.step, seen.count, row_id
