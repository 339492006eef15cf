"""Which ids of a table get a row, and which rows it forgets. Pure.

Every decision is a function of the table's step and day, the metadata of rows (how often and when
they were looked up, their shows and clicks) and their ids. So 1, 2 and 3 servers decide alike.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.base.plain_data import typed
from hpcdist.comm.base import Array
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.row_tier import Tier

# What is kept with each row, uint32. Only tables with a score have shows, clicks, and the score of
# those since the row was last in a base or delta, as float32; only those whose rows widen say
# whether a row has.
METADATA = ("count", "step", "day", "show", "click", "delta", "wide")
COUNT, STEP, DAY, SHOW, CLICK, DELTA, WIDE = range(len(METADATA))
# A table with a bound is cut into parts by the mix of the ids. Each part keeps to its share of the
# bound by itself, and each server has whole parts, so their number must divide that of the parts.
PARTS = (5040, 840, 60)  # divided by 1 to 10; by 1 to 8; by 1 to 6: as many as are large enough
ROWS_OF_PART = 1000
INDEX_BYTES = 30  # of a row in index and list, and of what is not in use, at most about
SKETCH_ROWS = 4
WAITING_IDS = 10_000_000
FRACTION = 8  # a full part forgets this part of its rows at once


@dataclass(frozen=True)
class ClickScore:
    """The value of a row by its shows and clicks, as Paddle 2.6.2's CtrCommonAccessor has it.

    ``(show - click) * nonclk_coeff + click * click_coeff``. A step that looks a row up adds shows
    and clicks to it: 1 and 0, or what two variables say of each of its places. `shrink` multiplies
    both by ``show_click_decay_rate``, then forgets rows whose score is below ``delete_threshold``,
    and those that were last looked up more than ``delete_after_unseen_days`` days ago. All numbers
    are float32.

    >>> from hpcdist import ps
    >>> ps.RowPolicy(score=ps.ClickScore(delete_threshold=0.5)).score.delete_threshold
    0.5
    """

    nonclk_coeff: float = 0.1
    click_coeff: float = 1.0
    show_click_decay_rate: float = 0.98
    delete_threshold: float = 0.8
    delete_after_unseen_days: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not _is_finite(getattr(self, field.name)):
                raise _unfit(self, field.name, "a finite number")
        if not 0 <= self.show_click_decay_rate <= 1:
            raise _unfit(self, "show_click_decay_rate", "a number from 0 to 1")
        if self.delete_after_unseen_days < 0:
            raise _unfit(self, "delete_after_unseen_days", "0 or more")

    def of(self, show: Array, click: Array) -> Array:
        """Return the scores of rows: float32 [n], from shows and clicks float32 [n]."""
        coefficient = np.float32(self.nonclk_coeff)
        scores: Array = (show - click) * coefficient + click * np.float32(self.click_coeff)
        return scores


@dataclass(frozen=True)
class RowPolicy:
    """Which ids of a table get a row, which rows it forgets, and how it keeps them.

    Admission: an id gets its row in the ``admit_after``-th step that looks it up, at however many
    places and on however many trainers, and only if a hash of the id and the table's seed chooses
    it, with ``admit_probability``. Until then it answers with its initial values, or with zeros
    (``until_admitted`` "initial" or "zeros"), and its gradients are dropped; so do ids that were
    forgotten. Counts of ids that wait are exact for up to ``waiting_ids`` ids, of which those
    looked up least recently are forgotten; with ``sketch_bytes`` they are a count-min sketch of
    that size instead, which shrink empties. Its counts are never too low; those of n look-ups are
    too high by more than ``43 n / sketch_bytes`` for one id in 54.

    Expiry: `shrink`, or every ``shrink_every`` steps (0: only when called), forgets rows that were
    last looked up more than ``expire_steps`` steps, or ``expire_days`` days, ago (0: never), and
    those that ``score`` says. It ends a day.

    Budget: at most ``budget_rows`` rows, or as many as ``budget_bytes`` hold with index and
    optimizer state, on all servers together (0: no bound). At the end of a step in which there are
    more, the least valuable are forgotten: those of the lowest score, or without one those looked
    up least recently ("recent") or least often ("frequent"), as ``keep`` says (""); ties go by the
    other two, then by id. ``parts``: see `parts_for`.

    ``shows``: the names of two variables of a Program, [batch, 1], that say how many shows and
    clicks each example counts for.

    ``rows``: "float32", "float16", "bfloat16" or "int8", with a scale for each row; ``state``, of
    the optimizer: "float32" or "float16". Updates are computed in float32, then rounded once:
    rows, as ``rounding`` says, to the "nearest" number, or "stochastic"ally: up or down by a chance
    that makes it right on average (default "": rows in int8, and state in float16 always). The
    chance is a function of the table's seed, the id and the table's step.

    Updates: a gradient of a row whose norm is above ``clip_norm`` is scaled down to it (0: never).
    Values that a step has moved are kept within ``weight_bounds``, (least, greatest), before they
    are rounded. With ``row_wise`` Adagrad has one moment for a row, to which it adds the mean
    square of the row's gradient.

    Width: with ``widen_at`` rows are narrow at first: only their first column is kept and trained,
    the others answer with zeros. At the end of the step in which the ``score`` reaches ``widen_at``
    they get the values and the state that new rows have without it (0: rows are never narrow).

    ``disk``: a directory in which each server, or trainer that has a part of the table, keeps those
    rows that do not fit into ``memory_rows`` or ``memory_bytes``; see `row_tier`.

    >>> policy = RowPolicy(admit_after=3, expire_days=30, budget_bytes=64 << 30, rows="float16")
    >>> policy.admit_after, policy.rows
    (3, 'float16')
    """

    admit_after: int = 1
    admit_probability: float = 1.0
    until_admitted: str = "initial"
    waiting_ids: int = WAITING_IDS
    sketch_bytes: int = 0
    expire_steps: int = 0
    expire_days: int = 0
    shrink_every: int = 0
    budget_rows: int = 0
    budget_bytes: int = 0
    keep: str = ""
    score: ClickScore | None = None
    shows: tuple[str, str] | None = None
    parts: int = 0
    rows: str = "float32"
    state: str = "float32"
    rounding: str = ""
    clip_norm: float = 0.0
    weight_bounds: tuple[float, float] | None = None
    row_wise: bool = False
    widen_at: float = 0.0
    disk: str = ""
    memory_rows: int = 0
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        for name in _WHOLE_NUMBERS:
            value, least = getattr(self, name), int(name in ("admit_after", "waiting_ids"))
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise _unfit(self, name, f"a whole number, {least} or more")
        p = self.admit_probability
        if isinstance(p, bool) or not isinstance(p, Real) or not 0 < p <= 1:
            raise _unfit(self, "admit_probability", "a number above 0, at most 1")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _unfit(self, name, f"one of {choices}")
        if self.score is not None and not isinstance(self.score, ClickScore):
            raise _unfit(self, "score", "a ClickScore")
        self._check_shows()
        self._check_moves()
        self._check_together()

    def _check_shows(self) -> None:
        if self.shows is None:
            return
        names = self.shows if isinstance(self.shows, (tuple, list)) else ()
        if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
            raise _unfit(self, "shows", "the names of two variables, of shows and clicks")
        object.__setattr__(self, "shows", tuple(names))

    def _check_moves(self) -> None:
        if not isinstance(self.row_wise, bool):
            raise _unfit(self, "row_wise", "True or False")
        for name in ("clip_norm", "widen_at"):
            value = getattr(self, name)
            if not _is_finite(value) or value < 0:
                raise _unfit(self, name, "a number, 0 or more")
        bounds = self.weight_bounds
        if bounds is None:
            return
        if not (
            isinstance(bounds, (tuple, list))
            and len(bounds) == 2
            and all(map(_is_finite, bounds))
            and bounds[0] < bounds[1]
        ):
            raise _unfit(self, "weight_bounds", "two numbers, the least first")
        object.__setattr__(self, "weight_bounds", tuple(map(float, bounds)))

    def _check_together(self) -> None:
        RowStorage(self.rows, self.state, self.rounding)
        if self.budget_rows and self.budget_bytes:
            raise TableError("RowPolicy: give budget_rows or budget_bytes, not both")
        if self.keep and not (self.budget_rows or self.budget_bytes):
            raise TableError(f"RowPolicy: keep={self.keep!r} is for tables with a budget")
        if self.keep == "score" and self.score is None:
            raise TableError('RowPolicy: keep="score" needs score=ClickScore(...)')
        if self.shows and self.score is None:
            raise TableError("RowPolicy: shows are for tables with score=ClickScore(...)")
        if self.widen_at and self.score is None:
            raise TableError(
                "RowPolicy: widen_at is a score: it is for tables with score=ClickScore(...)"
            )
        if self.sketch_bytes and self.admit_after == 1:
            raise TableError("RowPolicy: sketch_bytes is for tables with admit_after above 1")
        if self.sketch_bytes and self.sketch_width < 16:
            raise TableError(
                f"RowPolicy: sketch_bytes {self.sketch_bytes}: expected at least "
                f"{64 * SKETCH_ROWS * self.parts_for(0)} for {self.parts_for(0)} parts"
            )
        if self.waiting_ids != WAITING_IDS and (self.sketch_bytes or self.admit_after == 1):
            raise TableError(
                "RowPolicy: waiting_ids is for tables with admit_after above 1 and no sketch_bytes"
            )
        self._check_disk()
        for name, bound in (("budget_rows", self.budget_rows), ("waiting_ids", self.waiting_ids)):
            if bound and self.parts_for(bound) > bound:
                raise TableError(
                    f"RowPolicy: {name} {bound}: expected at least as many as parts, "
                    f"{self.parts_for(bound)}"
                )

    def _check_disk(self) -> None:
        if not isinstance(self.disk, str):
            raise _unfit(self, "disk", "a directory's name")
        if bool(self.disk) != bool(self.memory_rows or self.memory_bytes):
            raise TableError(
                "RowPolicy: disk= names the directory for rows that memory_rows= or memory_bytes= "
                "does not hold: give both, or neither"
            )
        if self.memory_rows and self.memory_bytes:
            raise TableError("RowPolicy: give memory_rows or memory_bytes, not both")

    @property
    def tier(self) -> Tier | None:
        """Where rows are that are not in memory; None: all are there."""
        return Tier(self.disk, self.memory_rows, self.memory_bytes) if self.disk else None

    @property
    def storage(self) -> RowStorage | None:
        """How rows and state are kept; None: both in float32."""
        if self.rows == self.state == "float32":
            return None
        return RowStorage(self.rows, self.state, self.rounding)

    @property
    def keeps_all(self) -> bool:
        """Whether it only says how rows are kept and moved: all ids have one, none is forgotten."""
        plain = {name: getattr(self, name) for name in _OF_ROWS}
        return self != RowPolicy() and self == RowPolicy(**plain)

    @property
    def metadata(self) -> tuple[str, ...]:
        """What is kept with each row."""
        return METADATA[: WIDE + 1 if self.widen_at else WIDE if self.score else SHOW]

    @property
    def sketch_width(self) -> int:
        """How many counts each row of a part's sketch has."""
        return self.sketch_bytes // (4 * SKETCH_ROWS * self.parts_for(0))

    def parts_for(self, bound: int) -> int:
        """Return the number of parts of a table that is to have at most ``bound`` rows.

        It must be a multiple of the number of servers: ``parts``, or 60, 840 or 5040 for small,
        larger and large tables.
        """
        large = (parts for parts in PARTS if bound >= ROWS_OF_PART * parts)
        return self.parts or next(large, PARTS[-1])

    def rows_for(self, row_bytes: int) -> int:
        """Return how many rows of ``row_bytes`` the table may have, 0 for any number."""
        return self.budget_rows or self.budget_bytes // (row_bytes + INDEX_BYTES)

    def expired(self, metadata: Array, step: int, day: int) -> Array:
        """Return which rows are to be forgotten when a day ends, shows and clicks decayed.

        metadata: uint32 [n, columns]; the result is bool [n].
        """
        dead = np.zeros(len(metadata), bool)
        if self.expire_steps:
            dead |= step - metadata[:, STEP].astype(np.int64) > self.expire_steps
        unseen = day - metadata[:, DAY].astype(np.int64)
        if self.expire_days:
            dead |= unseen > self.expire_days
        if self.score:
            floats = metadata.view(np.float32)
            score = self.score.of(floats[:, SHOW], floats[:, CLICK])
            dead |= score < np.float32(self.score.delete_threshold)
            dead |= unseen > self.score.delete_after_unseen_days
        return dead

    @property
    def kept(self) -> str:
        """What makes a row worth keeping: "recent", "frequent" or "score"."""
        return self.keep or ("score" if self.score else "recent")

    def to_plain(self) -> dict[str, Any]:
        """Return the policy as JSON can say it."""
        return asdict(self)

    @staticmethod
    def from_plain(data: Any) -> RowPolicy:
        """Return the policy in ``data``; TableError if there is none."""
        try:
            policy: RowPolicy = typed(RowPolicy, data)
            return policy
        except (KeyError, TypeError, ValueError) as error:
            raise TableError(f"malformed policy of rows: {error}") from None


def _unfit(policy: Any, name: str, expected: str) -> TableError:
    of, value = type(policy).__name__, getattr(policy, name)
    return TableError(f"{of}: {name}: expected {expected}, got {value!r}")


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


_OF_ROWS = (
    *("rows", "state", "rounding", "clip_norm", "weight_bounds", "row_wise"),
    *("disk", "memory_rows", "memory_bytes"),
)
_WHOLE_NUMBERS = (
    *("admit_after", "waiting_ids", "sketch_bytes", "expire_steps", "expire_days"),
    *("shrink_every", "budget_rows", "budget_bytes", "parts", "memory_rows", "memory_bytes"),
)
_CHOICES = {
    "until_admitted": ("initial", "zeros"),
    "keep": ("", "recent", "frequent", "score"),
}


def quotas_of(bound: int, parts: int) -> Array:
    """Return how many rows each part of a table may have, ``bound`` together: int64 [parts].

    Parts get as many ids as each other, and forget a ``FRACTION`` at once. So that not all do in
    the same steps, their quotas lie as far apart as a part shrinks then, evenly, in no order.
    """
    share, more = divmod(bound, parts)
    number = np.arange(parts)
    stride = next(n for n in range(parts * 5 // 8 + 1, parts + 2) if math.gcd(n, parts) == 1)
    apart = (2 * (number * stride % parts) - (parts - 1)) * (share // (2 * FRACTION))
    tilt = np.sign(apart) * (abs(apart) // max(1, parts - 1))
    quotas: Array = share + (number < more) + tilt
    return quotas


def check_servers(name: str, parts: int, servers: int) -> None:
    """Raise TableError unless every one of ``servers`` has whole parts of a table."""
    if parts % servers:
        raise TableError(
            f"table {name!r}: its bound is shared by {parts} parts, of which {servers} servers "
            f"cannot have equally many: use {_near(parts, servers)} servers, or "
            f"RowPolicy(parts={math.lcm(parts, servers)})"
        )


def _near(parts: int, servers: int) -> int:
    return max(n for n in range(1, servers + 1) if parts % n == 0)
