"""How a job ends when one of its ranks fails: all ranks end, and one of them says why."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hpcdist import runtime
from hpcdist.comm.base import Transport
from hpcdist.comm.waiting import waiting_for
from hpcdist.launch import report
from hpcdist.launch.logs import Output
from hpcdist.launch.report import Peer

TERMINATED = 128 + signal.SIGTERM
PATIENCE_MS = 2000  # how long the launcher may take to end this rank after another's death
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

    def taken(self) -> bool:
        """Take the word; return whether this rank has it."""
        os.write(self._file, self._me)
        return os.pread(self._file, 8, 0) == self._me


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
        self._spoken = False
        self._armed = True
        self._watch()

    def fail(self, error: BaseException) -> NoReturn:
        """Say what failed unless another rank has, and end every rank of the job."""
        dead = self._dead()
        if self._word.taken():
            text = report.of_exception(error, self._script, self._me, runtime.where())
            if dead:
                text += "\n" + report.of_deaths(dead, self._me, runtime.where())
            self._output.announce(text)
        self._end(1)

    def exit(self, code: int) -> NoReturn:
        """End every rank because the script here ended with a code other than 0."""
        if self._word.taken():
            at = runtime.where()
            self._output.announce(f"{self._me} ended with exit code {code} at {at}; the job ends")
        self._end(code)

    def interrupt(self) -> NoReturn:
        """End every rank because the user asked for it; nothing needs to be said."""
        self._word.taken()
        self._end(128 + signal.SIGINT)

    def _end(self, code: int) -> NoReturn:
        self._transport.abort(code)
        os._exit(code)

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
        patience_ms = None
        while True:
            woken = [fd for fd, _ in poll.poll(patience_ms)]
            if read_end in woken:
                if signal.SIGTERM in os.read(read_end, 64) and _ours():
                    break
            elif not woken:
                self._end(TERMINATED)
            for fd in set(woken) - {read_end}:
                poll.unregister(fd)
                if self._armed:
                    self._speak_of_the_dead()
                    # Launchers end the other ranks too, and report the death that came first.
                    patience_ms = PATIENCE_MS
        self._speak_of_the_dead()
        os._exit(TERMINATED)

    def _speak_of_the_dead(self) -> None:
        # A rank that waits can say for what; one that computes lets such a rank speak first.
        hurry = time.monotonic() + HESITATION_S
        while not waiting_for() and time.monotonic() < hurry:
            time.sleep(HESITATION_S / 20)
        # Looked up before the word is taken, because the ranks that do not get it end at once.
        # Taken even with nothing to say: no rank must report this one, which is about to end.
        dead = self._dead()
        if self._word.taken() and dead and not self._spoken:
            self._spoken = True
            self._output.announce(report.of_deaths(dead, self._me, runtime.where()))

    def _dead(self) -> list[Peer]:
        return [peer for peer in self._neighbours if not lives(peer.pid)]


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
