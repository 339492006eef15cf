"""The progress of a trainer: its reader's position, its random state, its step."""

from __future__ import annotations

import base64
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.base.trace.position import here
from hpcdist.checkpoint.kept import Kept

WORDS = 624  # of the state of a Mersenne twister, and the last position in it
_NONE = type(None)


class Reading(Protocol):
    """A reader whose position a checkpoint holds."""

    def state(self) -> dict[str, Any]:
        """Return the position as plain data."""

    def check(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Raise CheckpointError if these, of all trainers, are no positions of such a reader."""

    def resume(self, state: Mapping[str, Any], current: object) -> None:
        """Go on from a position; ``current`` is the random state when it was saved."""


class Resumable:
    """A reader that knows its position, so that a restored job reads on where the saved one was.

    ``epoch`` counts how often it has been read to its end, ``position`` what it has given since.
    A restore passes over what was given before the save: the random numbers that shuffled it are
    drawn again. If that was all of an epoch, the job goes on with the next. An iterable DataLoader
    is not read ahead in here, or nobody could say which random numbers belong to which batch.

    >>> reader = Resumable(lambda: iter([1, 2, 3]))
    >>> batches = reader()
    >>> next(batches), next(batches), reader.epoch, reader.position
    (1, 2, 0, 2)
    """

    def __init__(self, reader: Callable[[], Iterable[Any]]) -> None:
        self._reader = getattr(reader, "in_step", reader)
        self.epoch = 0
        self.position = 0
        self._began: Any = None  # the random state when this epoch began
        self._rest: tuple[Any, Iterator[Any]] | None = None  # random state, and what is to come

    def __call__(self) -> Iterator[Any]:
        """Read an epoch, or what is left of the one that was restored."""
        rest, self._rest = self._rest, None
        if rest is None:
            self._began, self.position = random_state(), 0
            samples = iter(self._reader())
        else:
            current, samples = rest
            set_random_state(current)
        for sample in samples:
            self.position += 1
            yield sample
        self.epoch += 1
        self.position = 0

    def state(self) -> dict[str, Any]:
        """Return the position as plain data."""
        began = random_state() if self._began is None or not self.position else self._began
        return {"epoch": self.epoch, "position": self.position, "began": began}

    def check(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Raise CheckpointError if these, of all trainers, are no positions of such a reader."""
        if any("rows" in state for state in states):
            raise CheckpointError(
                "the checkpoint was saved with data.read as its reader, not with resumable()"
            )

    def resume(self, state: Mapping[str, Any], current: Any) -> None:
        """Go on from a position; ``current`` is the random state when it was saved.

        Raises CheckpointError if the reader ends before that position.
        """
        self.epoch, self.position = _count(state["epoch"]), _count(state["position"])
        self._began, self._rest = state["began"], None
        if not self.position:
            return
        set_random_state(self._began)
        samples = iter(self._reader())
        count = sum(1 for _ in itertools.islice(samples, self.position))
        if count < self.position:
            raise CheckpointError(
                f"the reader had given {self.position} batches of epoch {self.epoch} when the "
                f"checkpoint was saved, but now it ends after {count}: its data has changed"
            )
        set_random_state(current)
        following = list(itertools.islice(samples, 1))
        if following:
            self._rest = random_state(), itertools.chain(following, samples)
            set_random_state(current)
        else:
            self.epoch, self.position = self.epoch + 1, 0


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"position {value!r:.80}")
    return value


def resumable(reader: Callable[[], Iterable[Any]]) -> Resumable:
    """Return a reader that can be given to `save` and `restore`; put it around all others.

    Examples:
        >>> reader = fluid.checkpoint.resumable(lambda: iter([1, 2]))
        >>> list(reader()), reader.epoch
        ([1, 2], 1)
    """
    return Resumable(reader)


# -- random numbers --------------------------------------------------------------------------------
def random_state() -> dict[str, Any]:
    """Return the state of ``random``, ``numpy.random`` and torch, if imported, as plain data."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, _text(np.array(words, np.uint32)), gauss],
        "numpy": [str(name), _text(np.asarray(keys, np.uint32)), position, has_gauss, cached],
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = _text(torch.get_rng_state().numpy().view(np.uint32))
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set ``random``, ``numpy.random`` and torch to a state that was written down.

    Torch goes on by itself if one of both processes has not imported it.
    """
    version, words, gauss = state["python"]
    name, keys, position, has_gauss, cached = state["numpy"]
    keys = _words(keys)
    # numpy believes what it is told, and reads past its memory.
    if name != "MT19937" or len(keys) != WORDS or not _within(position, WORDS):
        raise ValueError(f"random numbers at position {position!r:.80}")
    if not _within(has_gauss, 1) or type(cached) is not float or type(gauss) not in (float, _NONE):
        raise ValueError("random numbers with a state that is not numpy's")
    torch: Any = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        try:
            torch.set_rng_state(torch.from_numpy(_words(state["torch"]).view(np.uint8)))
        except RuntimeError as error:
            raise ValueError(f"random numbers with a state that is not torch's: {error}") from None
    random.setstate((version, tuple(int(w) for w in _words(words)), gauss))
    np.random.set_state((name, keys, position, has_gauss, cached))


def _within(value: object, last: int) -> bool:
    return type(value) is int and 0 <= value <= last


def _text(words: np.ndarray) -> str:
    return base64.b64encode(words.astype("<u4").tobytes()).decode()


def _words(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<u4").astype(np.uint32)


# -- all of it -------------------------------------------------------------------------------------
def trainer_state(
    streams: Mapping[str, Any], reader: Reading | None, counted: Mapping[str, int]
) -> dict[str, Any]:
    """Return a trainer's own state as plain data; ``counted`` has the counts of its job."""
    return {
        "step": here.step,
        "counted": counted,
        "random": random_state(),
        "streams": streams,
        "reader": None if reader is None else reader.state(),
    }


def check_state(states: tuple[Mapping[str, Any], ...], reader: Any, file: str) -> None:
    """Raise CheckpointError if a reader is to read on, and it was not saved where."""
    if reader is not None and any(state.get("reader") is None for state in states):
        raise CheckpointError(
            f"{file}: was saved without a reader, so it has no position to resume reading from: "
            "restore it without reader="
        )
    if reader is not None:
        try:
            reader.check([state["reader"] for state in states])
        except (CheckpointError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file}: {error}") from None


def load_state(
    states: tuple[Mapping[str, Any], ...], trainer: int, kept: Kept, reader: Any, file: str
) -> Mapping[str, int]:
    """Go on as this trainer was; one that was not there continues as trainer 0 was.

    Returns what its job had counted.
    """
    if not states:
        return {}
    state = states[trainer] if trainer < len(states) else states[0]
    try:
        set_random_state(state["random"])
        here.step = int(state["step"])
        # Stages of a pipeline know how far their own operators are only: others', which a test
        # has there, have not drawn.
        streams: dict[str, Any] = {}
        for earlier in (*states, state):
            drawn = {n: p for n, p in earlier["streams"].items() if p or n not in streams}
            streams.update(drawn)
        kept.set_streams(streams, here.step)
        counted = {str(name): int(number) for name, number in state.get("counted", {}).items()}
        if reader is not None and state["reader"] is not None:
            reader.resume(state["reader"], state["random"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{file}: malformed state of trainer {trainer} ({error!r})") from None
    return counted
