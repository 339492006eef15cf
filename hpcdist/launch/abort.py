"""How a job ends when one of its ranks fails: all ranks end, and one of them says why."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hpcdist import runtime
from hpcdist.comm.base import Transport
from hpcdist.launch import report
from hpcdist.launch.logs import Output
from hpcdist.launch.report import Peer

TERMINATED = 128 + signal.SIGTERM


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
        self._peers = peers
        self._me = peers[transport.rank]
        self._output = output
        self._script = script
        self._word = LastWord(transport)
        self._watch_termination()

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

    def _watch_termination(self) -> None:
        """When a rank dies, mpirun sends SIGTERM to the others: have them look who it was.

        A thread does it: this rank may be inside a call of MPI's, where no Python handler runs.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.signal(signal.SIGTERM, _leave_it_to_the_thread)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_termination)
        threading.Thread(target=self._await_termination, args=(read_end,), daemon=True).start()

    def _await_termination(self, read_end: int) -> None:
        while signal.SIGTERM not in os.read(read_end, 64) or not _ours():
            pass
        # Looked up before the word is taken, because the ranks that do not get it end at once.
        # Taken even with nothing to say: no rank must report this one, which is about to end.
        dead = self._dead()
        if self._word.taken() and dead:
            self._output.announce(report.of_deaths(dead, self._me, runtime.where()))
        os._exit(TERMINATED)

    def _dead(self) -> list[Peer]:
        return [
            peer
            for peer in self._peers
            if peer.host == self._me.host and peer.pid != self._me.pid and not lives(peer.pid)
        ]


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
