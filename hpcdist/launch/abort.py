"""Ends all ranks of a job when one of them fails; one rank reports why."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.errors import DeadlineError, RankFailure
from hpcdist.checkpoint.preemption import AGAIN
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER
from hpcdist.comm.pmix import report_death
from hpcdist.comm.progress import waiting_for
from hpcdist.launch import host_watcher, logs, report, stacks
from hpcdist.launch.facts import LAST_WORDS, Fact
from hpcdist.launch.held_outputs import pipes_of
from hpcdist.launch.host_board import HostBoard
from hpcdist.launch.host_ranks import HostRanks
from hpcdist.launch.logs import Output
from hpcdist.launch.processes import await_end
from hpcdist.launch.quiet_end import end_job
from hpcdist.launch.recording import RankRecorder
from hpcdist.launch.report import MOST_STACKS, Peer
from hpcdist.launch.termination import (
    code_when_ended,
    leave_it_to_the_thread,
    pipe_of_signals,
    sigterm_is_ours,
)

UNDECIDED_MS = 50  # how often to ask whether the job continues without a dead rank
PATIENCE_S = 2.0  # how long the launcher may take to end this rank after another's death
SERVERS_FIRST_S = 5.0  # how long a trainer leaves it to servers to report a deadline
HESITATION_S = 0.1  # how long a rank that waits for nothing delays its report of a death
MPI_NOTICES_S = 1.0  # how long MPI may take to notice a death before this rank reports it
STUCK_S = 3.0  # how long MPI may take to end, and other ranks to leave, when some have died
HANGS_S = 30.0  # the same when all were alive as far as this rank could see
WRITE_LAST = signal.SIGRTMIN + 1  # the job is about to end: write what you did last
WRITING_S = 5.0  # how long the others of a host may take to write what they did last
ALONE_S = 0.5  # how long a launcher may take to send SIGTERM to all ranks of a host

_exit = os._exit  # under a tolerant mpirun scripts get another (`Guard._exit_of_scripts`)


class Guard:
    """Ends the job when this rank fails, and reports ranks of this host that have died."""

    def __init__(
        self,
        transport: Transport,
        peers: Sequence[Peer],
        output: Output,
        recording: RankRecorder,
    ) -> None:
        """Collective: every rank makes one before its script begins.

        ``recording`` writes what the rank did last when the job ends badly.
        """
        self._recording = recording
        self._transport = transport
        self._me = me = peers[transport.rank]
        self._output = output
        # By default it ends a process; after the board, which is collective, it may come.
        signal.signal(WRITE_LAST, leave_it_to_the_thread)
        # Before the board, which is collective, nobody has directed its output elsewhere.
        here = {peer.rank: peer.pid for peer in peers if peer.host == me.host}
        first = min(here) == me.rank
        held = pipes_of([*here.values()]) if first and not transport.tolerant else []
        self._board = HostBoard(transport, here)
        self._tolerant = transport.tolerant
        self._host = HostRanks(me, peers, self._board, transport.tolerant)
        self._peers = peers
        self._reported = False
        self._ending = threading.RLock()  # held by the thread that reports and ends the job
        self._leaving = threading.Event()  # MPI
        self._end_takes_s = HANGS_S  # of MPI, at most
        self._left_mpi = False
        self._watch()
        if self._tolerant:
            os._exit = self._exit_of_scripts
            # Now: Python 3.12 starts no thread any more when it ends.
            threading.Thread(target=self._end_without_mpi, daemon=True).start()
        if all(me.rank < peer.rank for peer in self._host.neighbours):
            on_host = [me, *self._host.neighbours]
            self._beside_ranks = host_watcher.start(
                {peer.pid: str(peer) for peer in on_host},
                self._board.file,
                settings.RPC_DEADLINE.read() / 1000,
                LAST_WORDS if len(on_host) == len(peers) else (),
                self._tolerant,
                held,
            )
        for file in held:
            os.close(file)

    def _exit_of_scripts(self, status: int) -> NoReturn:
        """Kill this process where a script calls os._exit with a code other than 0.

        mpirun --with-ft ulfm counts a process that ends with such a code twice (PRRTE 3): it leaves
        before the last survivor, whose words are lost, or while that still trains. The last rank of
        a host does end with the code: else mpirun would return 0 when all ranks exit so.
        """
        is_rank = os.getpid() == self._me.pid  # not in a forked child
        if is_rank:
            self._board.note(Fact.EXITS)
        if is_rank and status:
            away = len(self._host.neighbours) + 1 < len(self._peers)
            stays = away and self._host.goes_on_without(self._me) is not False
            if stays or self._host.others_stay():
                os.kill(os.getpid(), signal.SIGKILL)
            self._board.note(Fact.FAILS)
        _exit(status)

    def fail(self, error: BaseException) -> NoReturn:
        """Report what failed unless another rank has, and end every rank of the job."""
        if isinstance(error, DeadlineError) and self._left_to_servers(error.missing):
            # They know for whom all wait; if one of them is stuck itself, a trainer reports it.
            hurry = time.monotonic() + SERVERS_FIRST_S
            while not self._board.all(Fact.REPORTS) and time.monotonic() < hurry:
                time.sleep(SERVERS_FIRST_S / 250)
        with self._ending:
            dead = self._host.dead()
            if isinstance(error, RankFailure):
                reported = {self._peers[rank] for rank in error.ranks}
                # Nobody is left where all trainers have died, one after another.
                all_dead = {*dead, *reported} - self._host.excused or reported
                dead = sorted(all_dead, key=lambda peer: peer.rank)
                text = self._of_deaths(dead, error.what)
            elif report.is_of_messages(error) and (dead := self._host.await_dead(self._transport)):
                # A death is the cause, and this rank only the first to notice.
                text = self._of_deaths(dead, f"{runtime.where()}: {error}")
            else:
                text = report.of_exception(error, self._me, runtime.where())
                if dead:
                    text += "\n" + self._of_deaths(dead, runtime.where())
                if isinstance(error, DeadlineError):
                    missing = [self._peers[rank] for rank in error.missing]
                    text += report.of_missing(missing, self.stack_of)
            self._say(text)
            self._end(1)

    def _left_to_servers(self, missing: Sequence[int]) -> bool:
        on_host = set(self._host.neighbours)
        peers = [self._peers[rank] for rank in missing[:MOST_STACKS]]
        served = any(peer.role.kind == PSERVER for peer in self._peers)
        seen = [self.stack_of(peer.rank) for peer in peers if peer in on_host] if served else []
        return report.is_left_to_servers(self._me, served, seen)

    def stack_of(self, rank: int) -> str:
        """Return lines that tell where a rank is in its Python code, as far as that is known."""
        peer = self._peers[rank]
        if peer.host != self._me.host:
            return f"  its stack cannot be read from {self._me.host}"
        return textwrap.indent(stacks.stacks_of(peer.pid), "  ")

    def exit(self, code: int) -> NoReturn:
        """End every rank because the script here ended with a code other than 0."""
        from hpcdist.checkpoint.recent import newest  # of jobs that save

        at = runtime.where()
        with self._ending:
            if code == AGAIN and (saved := newest()):
                self._say(f"the job stops as requested; it resumes from {saved}")
            else:
                self._say(f"{self._me} ended with exit code {code} at {at}; the job ends")
            self._end(code)

    def interrupt(self) -> NoReturn:
        """End every rank because this one has got SIGINT. Who was alone need not be told."""
        at = runtime.where()
        with self._ending:
            if len(self._peers) > 1:
                self._say(f"{self._me} was interrupted (SIGINT) at {at}; the job ends")
            self._board.claim(Fact.REPORTS)
            self._end(128 + signal.SIGINT)

    def _say(self, text: str) -> None:
        """Report the end of the job, unless this rank or another one of the host has."""
        if self._board.claim(Fact.REPORTS) and not self._reported:
            self._reported = True
            self._recording.said(text)
            self._output.announce(text + self._recording.hint())

    def _of_deaths(self, dead: Sequence[Peer], where: str) -> str:
        advice = runtime.advice([peer.rank for peer in dead])
        return report.of_deaths(dead, self._me, where, advice)

    def _end(self, code: int) -> NoReturn:
        self._write_last()
        if self._reported and self._recording.directory is not None:
            self._host.make_write(WRITE_LAST, WRITING_S)
        # Under a tolerant mpirun every rank ends by itself, and Open MPI forgets the code when the
        # last living rank aborts the job: only the elected one aborts, before the others end.
        reporter, *_ = [*self._board.all(Fact.REPORTS), 0]
        if reporter == os.getpid():
            self._board.note(Fact.ENDS, code)
            if self._tolerant:  # mpirun leaves it to every rank to end, and these cannot
                self._host.kill_stopped(PATIENCE_S)
        if reporter not in (0, os.getpid()):
            await_end(reporter, PATIENCE_S)
            # mpirun may return the code of any of them.
            code = self._board.code() or code
            if self._tolerant:
                _exit(code)
        if self._leaving.is_set() or (self._tolerant and self._host.is_last()):
            _exit(code)
        if self._tolerant:
            self._transport.abort(code)
        else:
            end_job(self._transport, self._host.neighbours, len(self._peers), code, PATIENCE_S)
        _exit(code)

    def _write_last(self) -> None:
        self._recording.fail()
        self._board.note(Fact.WRITTEN)

    # -- deaths that do not end the job --

    def name_death(self, rank: int, text: str) -> None:
        """Report a death that the job survives, unless a rank of this host has.

        Without a text only note that a rank of another host has.
        """
        named = self._board.all(Fact.REPORTS) or self._board.all(Fact.NAMED, rank)
        if not named and self._board.claim(Fact.NAMED, rank) and text:
            self._output.announce(text)

    def note(self, fact: Fact) -> None:
        """Notify the host's watcher of this rank's progress."""
        self._board.note(fact)

    def script_has_ended(self) -> None:
        """Note that this rank's death does no harm any more. Call it while the job still runs."""
        self._host.note_script_end()

    def name_the_dead(self, away: Iterable[int] = ()) -> None:
        """Report ranks whose death no rank has reported: those of this host, and those ``away``.

        Call it when all that live have met, and one rank only with those of other hosts.
        """
        dead = set(self._host.departed()) if self._tolerant else set()
        dead |= {self._peers[rank] for rank in away if self._peers[rank].host != self._me.host}
        for peer in sorted(dead, key=lambda peer: peer.rank):
            self.name_death(peer.rank, report.of_late_death(peer, self._host.is_done(peer)))

    def check_a_trainer_has_finished(self, failed: Iterable[int]) -> None:
        """End the job if every trainer has died, the last one after its last step.

        Call it on a server when all that live have met. ``failed``: what MPI knows of the dead.
        """
        dead = {*self._host.departed(), *(self._peers[rank] for rank in failed)}
        trainers = {peer for peer in self._peers if peer.role.kind != PSERVER}
        if trainers <= dead and not any(self._host.is_done(peer) for peer in trainers):
            with self._ending:
                names = " and ".join(map(str, sorted(trainers, key=lambda peer: peer.rank)))
                self._say(f"{names} died before any trainer's script had ended; the job failed")
                self._end(1)

    def leave(self, finalize: Callable[[], None]) -> None:
        """Leave MPI by ``finalize``, and this host's ranks when they have left it too.

        With dead ranks MPI may hang in its own end: then this process ends at once.
        """
        if self._tolerant and self._transport.failed():
            self._end_takes_s = STUCK_S
        self._leaving.set()
        self._board.note(Fact.FINALIZES)
        finalize()
        self._leave_host()

    def _end_without_mpi(self) -> None:
        self._leaving.wait()
        late = time.monotonic() + self._end_takes_s
        while (left_s := late - time.monotonic()) > 0 and not self._left_mpi:
            time.sleep(UNDECIDED_MS / 1000)
            if left_s > STUCK_S and self._host.departed():
                late = time.monotonic() + STUCK_S
        if not self._left_mpi:
            self._leave_host()
            logs.flush()
            _exit(0)

    def _leave_host(self) -> None:
        self._left_mpi = True
        self._board.note(Fact.GONE)
        late = time.monotonic() + STUCK_S
        # When one has died, the watching thread may have to end this process, with words.
        while (self._host.remaining() or self._host.dead()) and time.monotonic() < late:
            time.sleep(STUCK_S / 1000)
        self.name_the_dead()

    def _watch(self) -> None:
        """Start a thread that waits for the death of a rank of this host, and for SIGTERM.

        A thread, because this rank may be inside a call of MPI's, where no Python handler runs.
        """
        args = (pipe_of_signals(),)
        threading.Thread(target=self._await_the_end, args=args, daemon=True).start()

    def _await_the_end(self, read_end: int) -> None:
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        for peer in self._host.neighbours:
            with contextlib.suppress(OSError):  # an old kernel, or too many open files
                poll.register(os.pidfd_open(peer.pid), select.POLLIN)
        unreported: dict[Peer, float] = {}  # the dead, and when to tell MPI
        undecided = False
        while True:
            waits = undecided or unreported
            woken = [fd for fd, _ in poll.poll(UNDECIDED_MS if waits else None)]
            if read_end in woken and self._terminated_by_signal(read_end):
                break
            for fd in set(woken) - {read_end}:
                poll.unregister(fd)
                undecided = True
            if undecided:
                dead = self._host.dead()
                for peer in dead if self._tolerant else ():
                    unreported.setdefault(peer, time.monotonic() + MPI_NOTICES_S)
                fates = {peer: self._host.goes_on_without(peer) for peer in dead}
                self._host.excused |= {peer for peer, goes_on in fates.items() if goes_on}
                undecided = None in fates.values()
                if False in fates.values():
                    self._report_deaths()
                    # Launchers end the other ranks too, and report the death that came first.
                    # A tolerant one does not: then each ends when the one that reports has.
                    if not self._tolerant:
                        self._await_termination(poll, read_end)
                    with self._ending:
                        self._end(1 if self._tolerant else code_when_ended())
            for peer in [peer for peer, late in unreported.items() if time.monotonic() > late]:
                del unreported[peer]
                if not self._leaving.is_set():
                    report_death(peer.rank)
        self._terminated()

    def _await_termination(self, poll: select.poll, read_end: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while (left_s := end - time.monotonic()) > 0:
            woken = [fd for fd, _ in poll.poll(1000 * left_s)]
            if read_end in woken and self._terminated_by_signal(read_end):
                self._terminated()
            for fd in set(woken) - {read_end}:
                poll.unregister(fd)

    def _terminated_by_signal(self, read_end: int) -> bool:
        """Do what the signals ask that have come; tell whether one of them ends this rank."""
        signals = os.read(read_end, 64)
        if WRITE_LAST in signals:
            self._write_last()
        return signal.SIGTERM in signals and sigterm_is_ours()

    def _terminated(self) -> NoReturn:
        """End because SIGTERM came; say so if it came to this rank alone."""
        self._board.note(Fact.TERMINATED)
        self._write_last()
        late = time.monotonic() + ALONE_S
        while not self._ends() and self._host.spared() and time.monotonic() < late:
            time.sleep(ALONE_S / 50)
        # The launcher ends the job, or a rank of this host does.
        if self._ends() or not self._host.spared():
            self._board.note(Fact.FAILS)
            self._report_deaths()
            _exit(code_when_ended())
        if self._tolerant and self._host.goes_on_without(self._me) is not False:
            os.kill(os.getpid(), signal.SIGKILL)  # a death as any other: others tell of it
        with self._ending:
            pids = set(self._board.all(Fact.TERMINATED))
            terminated = [peer for peer in self._peers if peer == self._me or peer.pid in pids]
            advice = runtime.advice([peer.rank for peer in terminated])
            self._say(report.of_termination(terminated, self._me, runtime.where(), advice))
            self._end(code_when_ended())

    def _ends(self) -> bool:
        """Return whether a death or another rank of this host ends the job."""
        ending = not self._tolerant and self._board.code() is not None
        return ending or bool(self._host.fatal())

    def _report_deaths(self) -> None:
        # A rank that waits knows for what; one that computes lets such a rank report first.
        hurry = time.monotonic() + HESITATION_S
        while not waiting_for() and time.monotonic() < hurry:
            time.sleep(HESITATION_S / 20)
        # Looked up before the election, because the ranks that lose it end at once. Elected even
        # with nothing to report: no other rank must report this one, which is about to end.
        dead = self._host.dead()
        if self._tolerant:
            dead = [peer for peer in dead if self._host.goes_on_without(peer) is not True]
        with self._ending:
            if self._board.claim(Fact.REPORTS) and dead:
                self._say(self._of_deaths(dead, runtime.where()))
