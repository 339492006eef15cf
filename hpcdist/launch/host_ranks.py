"""Which ranks of this host are alive, and whether a death ends the job."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from hpcdist import runtime
from hpcdist.comm.base import Transport
from hpcdist.launch.facts import Fact
from hpcdist.launch.host_board import HostBoard
from hpcdist.launch.processes import await_end, is_stopped, lives
from hpcdist.launch.report import Peer

BEGINS_S = 5.0  # how long a rank may take to know whether its job goes on without others
NOTICE_S = 0.5  # how long the death of a rank may take to be seen after its messages have failed


class HostRanks:
    """The ranks beside this one: their processes, and what they have noted on the board.

    ``tolerant``: the job may go on without a rank that dies. ``excused`` are those that it has gone
    on without.
    """

    def __init__(self, me: Peer, peers: Sequence[Peer], board: HostBoard, tolerant: bool) -> None:
        self._me = me
        self._peers = peers
        self._board = board
        self._tolerant = tolerant
        # Those whose death can be seen: on this host, and not in a separate container.
        self.neighbours = [p for p in peers if p.host == me.host and p != me and lives(p.pid)]
        self.excused: set[Peer] = set()
        self._fates: dict[Peer, bool | None] = {}  # once the script has ended
        self._waits_until: dict[Peer, float] = {}  # of the dead, before this rank's job has begun

    def note_script_end(self) -> None:
        """Note that this rank's death does no harm any more. Call it while the job still runs."""
        self._fates = {peer: runtime.goes_on_without(peer.rank) for peer in self._peers}
        self._board.note(Fact.DONE)

    def remaining(self) -> list[Peer]:
        """Return those that live and have not left MPI."""
        departed = self._board.all(Fact.GONE)
        return [peer for peer in self.neighbours if peer.pid not in departed and lives(peer.pid)]

    def spared(self) -> list[Peer]:
        """Return those that live and that SIGTERM has not come to."""
        terminated = self._board.all(Fact.TERMINATED)
        return [peer for peer in self.neighbours if peer.pid not in terminated and lives(peer.pid)]

    def kill_stopped(self, within_s: float) -> None:
        """Kill those that are stopped, and wait until they have ended."""
        for peer in self.neighbours:
            if is_stopped(peer.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(peer.pid, signal.SIGKILL)
                await_end(peer.pid, within_s)

    def make_write(self, number: int, within_s: float) -> None:
        """Make them write their recordings now, by a signal: launchers leave no time."""
        for peer in self.neighbours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(peer.pid, number)
        late = time.monotonic() + within_s
        while time.monotonic() < late:
            written = self._board.all(Fact.WRITTEN)
            if not any(p.pid not in written and lives(p.pid) for p in self.neighbours):
                break
            time.sleep(within_s / 500)

    def await_dead(self, transport: Transport) -> list[Peer]:
        """Return the dead: messages to and from a process fail before its end can be seen."""
        end = time.monotonic() + NOTICE_S
        while True:
            failed = {self._peers[rank] for rank in transport.failed()}
            dead = {*self.dead(), *failed} - self.excused
            if dead or time.monotonic() > end:
                return sorted(dead, key=lambda peer: peer.rank)
            time.sleep(NOTICE_S / 50)

    def others_stay(self) -> bool:
        """Return whether one lives whose script has not called os._exit."""
        exiting = self._board.all(Fact.EXITS)
        return any(peer.pid not in exiting and lives(peer.pid) for peer in self.neighbours)

    def departed(self) -> list[Peer]:
        """Return those that have died."""
        ended = [peer for peer in self.neighbours if not lives(peer.pid)]
        departed = self._board.all(Fact.GONE)  # noted before the process ended
        return [peer for peer in ended if peer.pid not in departed]

    def dead(self) -> list[Peer]:
        """Return those that have died, but for those that the job continues without."""
        return [peer for peer in self.departed() if peer not in self.excused]

    def fatal(self) -> list[Peer]:
        """Return the dead whose death ends the job."""
        if not self._tolerant:
            return self.dead()
        return [peer for peer in self.dead() if self.goes_on_without(peer) is False]

    def goes_on_without(self, peer: Peer) -> bool | None:
        """Return whether the job continues without a rank; None while that is undecided."""
        if self._board.all(Fact.REPORTS):  # the job is ending
            return False
        if self._tolerant and self.is_done(peer):
            return True
        if self._fates:
            return self._fates[peer]
        if self._tolerant and not runtime.has_begun():
            # The dead rank may have been quicker, and trained: how that ends the job is told soon.
            late = self._waits_until.setdefault(peer, time.monotonic() + BEGINS_S)
            return None if time.monotonic() < late else False
        return runtime.goes_on_without(peer.rank)

    def is_done(self, peer: Peer) -> bool:
        """Return whether the script of a rank of this host has ended."""
        return peer.pid in self._board.all(Fact.DONE)

    def is_last(self) -> bool:
        """Return whether no other rank of the job lives, as far as this host can tell."""
        peers = [peer for peer in self._peers if peer != self._me]
        return not any(peer.host != self._me.host or lives(peer.pid) for peer in peers)
