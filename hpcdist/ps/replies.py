"""Requests that a server answers between steps: values of variables, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.comm.base import Array, Transport
from hpcdist.ps.messages import REPLY_TAG, VALUE_TAG, MessageKind, parse_specs
from hpcdist.ps.packets import VarSpec
from hpcdist.ps.wire import finish_sends, post_message

OnCheckpoint = Callable[[Any], Any]  # (what is asked): save or load between steps; the answer

DIFFER = "the ranks have built different programs"


class Answers:
    """A server's replies, and the requests that wait until no step is half applied."""

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        name: str,
        arrays: Mapping[str, Array],
        deadline_s: float,
        *,
        on_checkpoint: OnCheckpoint | None,
    ) -> None:
        self._transport = transport
        self._ranks = ranks
        self._name = name
        self._arrays = arrays
        self._deadline_s = deadline_s
        self._on_checkpoint = on_checkpoint
        self._reads: list[tuple[int, int, Any]] = []  # (trainer, step, payload)
        self._checkpoints: list[tuple[int, int, Any]] = []
        self.waiting = False  # whether a trainer waits for an answer

    def add_read(self, trainer: int, step: int, payload: object) -> None:
        """Note that a trainer wants the values of variables."""
        self._reads.append((trainer, step, payload))
        self.waiting = True

    def add_checkpoint(self, trainer: int, step: int, payload: object) -> None:
        """Note that a trainer wants variables saved, or loaded."""
        self._checkpoints.append((trainer, step, payload))
        self.waiting = True

    @property
    def awaited(self) -> set[int]:
        """The trainers that wait for an answer."""
        return {trainer for trainer, *_ in (*self._reads, *self._checkpoints)}

    def next(self, may: Callable[[int], bool]) -> bool:
        """Answer a trainer that waits and may be answered, reads first; return whether one did."""
        for queue, answer in (
            (self._reads, self._answer_read),
            (self._checkpoints, self._answer_checkpoint),
        ):
            for i, (trainer, *_) in enumerate(queue):
                if may(trainer):
                    answer(*queue.pop(i))
                    self._look_again()
                    return True
        return False

    def forget(self, trainer: int) -> None:
        """Drop what a trainer has asked: it has died."""
        self._reads = [request for request in self._reads if request[0] != trainer]
        self._checkpoints = [request for request in self._checkpoints if request[0] != trainer]
        self._look_again()

    def _look_again(self) -> None:
        self.waiting = bool(self._reads or self._checkpoints)

    def label(self, trainer: int) -> str:
        """Name a trainer."""
        return f"trainer {trainer} (rank {self._ranks[trainer]})"

    def _answer_read(self, trainer: int, step: int, payload: object) -> None:
        specs = parse_specs(payload)
        refusal = next((r for r in map(self._unreadable, specs) if r), None)
        self.reply(trainer, MessageKind.REFUSED if refusal else MessageKind.VALUE, step, refusal)
        if refusal:
            return
        values = [
            self._transport.isend(self._arrays[spec.name], self._ranks[trainer], VALUE_TAG)
            for spec in specs
        ]
        names = ", ".join(spec.name for spec in specs)
        finish_sends(
            self._transport,
            values,
            lambda: f"{self._name} sending {names} to {self.label(trainer)}",
            self._deadline_s,
        )

    def _answer_checkpoint(self, trainer: int, step: int, payload: object) -> None:
        if self._on_checkpoint is None:
            self.reply(trainer, MessageKind.REFUSED, step, f"{self._name} keeps no checkpoints")
            return
        try:
            answer = self._on_checkpoint(payload)
        except CheckpointError as error:
            self.reply(trainer, MessageKind.REFUSED, step, f"{self._name}: {error}")
        else:
            self.reply(trainer, MessageKind.VALUE, step, answer)

    def _unreadable(self, spec: VarSpec) -> str | None:
        array = self._arrays.get(spec.name)
        if array is None:
            return f"{self._name} has no variable {spec.name}: {DIFFER}"
        if array.shape != spec.shape or array.dtype.name != spec.dtype:
            got = f"{array.dtype}{list(array.shape)}"
            return f"{self._name} holds {spec.name} as {got}, expected {spec}: {DIFFER}"
        return None

    def reply(
        self, trainer: int, kind: MessageKind, step: int, payload: object, tag: int = REPLY_TAG
    ) -> None:
        """Send a message, and wait until it has been taken."""
        requests = post_message(
            self._transport, self._ranks[trainer], tag, kind, trainer, step, payload
        )
        finish_sends(
            self._transport,
            requests,
            lambda: f"{self._name} sending {kind.name} to {self.label(trainer)}",
            self._deadline_s,
        )
