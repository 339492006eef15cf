"""How a job ends when one of its ranks fails: all ranks end, and one of them says why."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hpcdist import runtime
from hpcdist.checkpoint.known import newest
from hpcdist.checkpoint.preemption import AGAIN, warned
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER
from hpcdist.comm.waiting import waiting_for
from hpcdist.errors import DeadlineError, RankFailure
from hpcdist.launch import report, stacks
from hpcdist.launch.logs import Output
from hpcdist.launch.report import Peer

TERMINATED = 128 + signal.SIGTERM
UNDECIDED_MS = 50  # how often to ask whether the job goes on without a dead rank
PATIENCE_S = 2.0  # how long the launcher may take to end this rank after another's death
SERVERS_FIRST_S = 5.0  # how long a trainer leaves it to servers to say that a deadline has passed
HESITATION_S = 0.1  # how long a rank that waits for nothing keeps silent about another's death


class LastWord:
    """Lets one rank of a host speak about the end of the job, and no other after it.

    All ranks of the host append to one file; who stands first has the word. The file has lost its
    name before the script begins, so nothing is left behind however the job ends.
    """

    def __init__(self, transport: Transport) -> None:
        token = os.urandom(8).hex().encode() if transport.rank == 0 else None
        token = transport.broadcast_bytes(token, 0)
        path = Path(tempfile.gettempdir(), f"hpcdist-{token.decode()}")
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        transport.barrier()
        path.unlink(missing_ok=True)
        self._me = os.getpid().to_bytes(8, "little")

    def free(self) -> bool:
        """Tell whether no rank has taken the word yet."""
        return not os.pread(self._file, 8, 0)

    def taken(self) -> bool:
        """Take the word; return whether this rank has it."""
        os.write(self._file, self._me)
        return self.speaker() == os.getpid()

    def speaker(self) -> int:
        """Return the process that has the word, 0 if it is free."""
        return int.from_bytes(os.pread(self._file, 8, 0), "little")


class Guard:
    """Ends the job when this rank fails, and tells of ranks here that died without a word."""

    def __init__(
        self, transport: Transport, peers: Sequence[Peer], output: Output, script: str
    ) -> None:
        """Collective: every rank makes one before its script begins."""
        self._transport = transport
        self._me = me = peers[transport.rank]
        # Those whose death can be seen: on this host, and not in a container of their own.
        self._neighbours = [p for p in peers if p.host == me.host and p != me and lives(p.pid)]
        self._output = output
        self._script = script
        self._word = LastWord(transport)
        self._tolerant = transport.tolerant
        self._peers = peers
        self._excused: set[Peer] = set()  # those that the job goes on without
        self._spoken = False
        self._ending = threading.RLock()  # held by the thread that speaks and ends the job
        self._armed = True
        self._watch()

    def fail(self, error: BaseException) -> NoReturn:
        """Say what failed unless another rank has, and end every rank of the job."""
        if isinstance(error, DeadlineError) and self._me.role.kind != PSERVER:
            # Servers know for whom all wait; if one of them is stuck itself, nobody else speaks.
            hurry = time.monotonic() + SERVERS_FIRST_S
            while self._word.free() and time.monotonic() < hurry:
                time.sleep(SERVERS_FIRST_S / 250)
        with self._ending:
            dead = self._dead()
            if isinstance(error, RankFailure):
                told = {self._peers[rank] for rank in error.ranks}
                known = {*dead, *told} - self._excused or told  # all trainers, one after another
                dead = sorted(known, key=lambda peer: peer.rank)
                text = self._of_deaths(dead, error.what)
            else:
                text = report.of_exception(error, self._script, self._me, runtime.where())
                if dead:
                    text += "\n" + self._of_deaths(dead, runtime.where())
                if isinstance(error, DeadlineError):
                    for rank in error.missing:
                        text += f"\n{self._peers[rank]} is missing:\n{self.stack_of(rank)}"
            self._say(text)
            self._end(1)

    def stack_of(self, rank: int) -> str:
        """Return lines that tell where a rank is in its Python code, as far as that is known."""
        peer = self._peers[rank]
        if peer.host != self._me.host:
            return f"  its stack cannot be read from {self._me.host}"
        return textwrap.indent(stacks.stacks_of(peer.pid), "  ")

    def exit(self, code: int) -> NoReturn:
        """End every rank because the script here ended with a code other than 0."""
        at = runtime.where()
        with self._ending:
            if code == AGAIN and (saved := newest()):
                self._say(f"the job stops as it was told to; it can go on from {saved}")
            else:
                self._say(f"{self._me} ended with exit code {code} at {at}; the job ends")
            self._end(code)

    def interrupt(self) -> NoReturn:
        """End every rank because the user asked for it; nothing needs to be said."""
        with self._ending:
            self._word.taken()
            self._end(128 + signal.SIGINT)

    def _say(self, text: str) -> None:
        """Tell the end of the job, unless this rank or another one of the host has."""
        if self._word.taken() and not self._spoken:
            self._spoken = True
            self._output.announce(text)

    def _of_deaths(self, dead: Sequence[Peer], where: str) -> str:
        advice = runtime.advice([peer.rank for peer in dead])
        return report.of_deaths(dead, self._me, where, advice)

    def _end(self, code: int) -> NoReturn:
        # Under a tolerant mpirun every rank ends by itself, and Open MPI forgets the code when the
        # last one that lives aborts the job: only the one with the word does, before the others.
        speaker = self._word.speaker()
        if self._tolerant and speaker not in (0, os.getpid()):
            late = time.monotonic() + PATIENCE_S
            while lives(speaker) and time.monotonic() < late:
                time.sleep(PATIENCE_S / 200)
        elif not (self._tolerant and self._is_last()):
            self._transport.abort(code)
        os._exit(code)

    def _is_last(self) -> bool:
        others = [peer for peer in self._peers if peer != self._me]
        return not any(peer.host != self._me.host or lives(peer.pid) for peer in others)

    def disarm(self) -> None:
        """Call it before the ranks leave: from here on, a rank that ends has not died."""
        self._armed = False

    def _watch(self) -> None:
        """Have a thread wait for the death of a rank of this host, and for SIGTERM.

        A thread, because this rank may be inside a call of MPI's, where no Python handler runs.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.signal(signal.SIGTERM, _leave_it_to_the_thread)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_termination)
        threading.Thread(target=self._await_the_end, args=(read_end,), daemon=True).start()

    def _await_the_end(self, read_end: int) -> None:
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        for peer in self._neighbours:
            with contextlib.suppress(OSError):  # an old kernel, or too many open files
                poll.register(os.pidfd_open(peer.pid), select.POLLIN)
        undecided = False
        while True:
            woken = [fd for fd, _ in poll.poll(UNDECIDED_MS if undecided else None)]
            if read_end in woken and signal.SIGTERM in os.read(read_end, 64) and _ours():
                break
            for fd in set(woken) - {read_end}:
                poll.unregister(fd)
                undecided = True
            if undecided and self._armed:
                fates = {peer: runtime.goes_on_without(peer.rank) for peer in self._dead()}
                self._excused |= {peer for peer, goes_on in fates.items() if goes_on}
                undecided = None in fates.values()
                if False in fates.values():
                    self._speak_of_the_dead()
                    # Launchers end the other ranks too, and report the death that came first.
                    # One that is tolerant does not: then whoever has spoken does.
                    if not (self._tolerant and self._spoken):
                        self._await_termination(poll, read_end)
                    with self._ending:
                        self._end(1 if self._tolerant else _code_when_ended())
        self._speak_of_the_dead()
        os._exit(_code_when_ended())

    def _await_termination(self, poll: select.poll, read_end: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while (left := end - time.monotonic()) > 0:
            woken = [fd for fd, _ in poll.poll(1000 * left)]
            if read_end in woken and signal.SIGTERM in os.read(read_end, 64) and _ours():
                self._speak_of_the_dead()
                os._exit(_code_when_ended())
            for fd in set(woken) - {read_end}:
                poll.unregister(fd)

    def _speak_of_the_dead(self) -> None:
        # A rank that waits can say for what; one that computes lets such a rank speak first.
        hurry = time.monotonic() + HESITATION_S
        while not waiting_for() and time.monotonic() < hurry:
            time.sleep(HESITATION_S / 20)
        # Looked up before the word is taken, because the ranks that do not get it end at once.
        # Taken even with nothing to say: no rank must report this one, which is about to end.
        dead = self._dead()
        with self._ending:
            if self._word.taken() and dead:
                self._say(self._of_deaths(dead, runtime.where()))

    def _dead(self) -> list[Peer]:
        """Return the dead of this host, but for those that the job goes on without."""
        return [p for p in self._neighbours if p not in self._excused and not lives(p.pid)]


def _code_when_ended() -> int:
    """Return the code of a rank that another one, or the launcher, has ended.

    srun takes the largest code of all ranks: it must not hide that the job was told to stop.
    """
    return AGAIN if warned() else TERMINATED


def _leave_it_to_the_thread(signum: int, frame: FrameType | None) -> None:
    """Handle SIGTERM by not dying of it: the watching thread was woken too."""


def _ours() -> bool:
    """Tell whether SIGTERM still means what it meant: a script may have taken it over."""
    return signal.getsignal(signal.SIGTERM) is _leave_it_to_the_thread


def _forget_termination() -> None:
    """Make a forked child an ordinary process: the pipe and the thread are its parent's."""
    signal.set_wakeup_fd(-1)
    if _ours():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def lives(pid: int) -> bool:
    """Tell whether a process of this host exists and is not a zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # The state follows the command's name, which may itself hold parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
