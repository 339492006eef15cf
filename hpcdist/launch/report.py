"""The message about a failed job: which rank, where, and the calls of the script."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from hpcdist.base.errors import CommError, DeadlineError, HpcdistError
from hpcdist.base.warned import OURS
from hpcdist.comm.cluster import PSERVER, RankRole
from hpcdist.launch import stacks
from hpcdist.launch.processes import lives

RUNPY = runpy.run_path.__code__.co_filename  # what calls scripts
NO_INPUT = (
    "\n  mpirun gives standard input to rank 0 only, and other ranks read its end: pass the value "
    "as an argument of the script, or in a variable of the environment"
)
NO_THREAD = (
    "\n  this user, container or batch job may have no more threads on this host: a higher limit "
    "(ulimit -u, --pids-limit), fewer ranks on it, or OMP_NUM_THREADS=1"
)
MOST_FRAMES = 12
MOST_STACKS = 16  # of missing ranks: reading one takes a part of a second


@dataclass(frozen=True)
class Peer:
    """A rank of this job, as an error message names it."""

    rank: int
    role: RankRole
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.role}, pid {self.pid} on {self.host})"


def is_left_to_servers(me: Peer, served: bool, missing: Sequence[str]) -> bool:
    """Return whether a missed deadline is a server's to report, which knows for whom all wait.

    Not where this rank waits for one that is stuck itself, as its stack in ``missing`` shows.
    """
    return served and me.role.kind != PSERVER and all(map(stacks.waits, missing))


def of_exception(error: BaseException, me: Peer | None, where: str) -> str:
    """Return the message about an exception that the script did not catch."""
    text = f"{me or 'the script'} failed at {where}\n{user_traceback(error)}"
    if isinstance(error, EOFError) and me is not None and me.rank:
        return text + NO_INPUT
    return text + (NO_THREAD if "can't start new thread" in str(error) else "")


def is_of_messages(error: BaseException) -> bool:
    """Return whether an error is of messages between ranks, which the death of one makes fail."""
    late = isinstance(error, DeadlineError)
    ours = isinstance(error, CommError) and not late
    return ours or type(error).__module__.partition(".")[0] == "mpi4py"


def of_deaths(dead: Sequence[Peer], me: Peer, where: str, advice: str = "") -> str:
    """Return the message about ranks that died, as one of the others reports it."""
    names = " and ".join(map(str, dead))
    return _joined(
        f"{names} died: killed, out of memory or crashed; the job ends", me, where, advice
    )


def of_missing(missing: Sequence[Peer], stack_of: Callable[[int], str]) -> str:
    """Return lines about the ranks that others wait for, with their stacks.

    Ranks that wait themselves are named only if no other rank is missing.
    """
    traces = {peer: stack_of(peer.rank) for peer in missing[:MOST_STACKS]}
    stuck = {peer: stack for peer, stack in traces.items() if not stacks.waits(stack)}
    if len(stuck) > 1:  # some may have ended their wait, by a deadline, just now: read again
        again = {peer: stack_of(peer.rank) for peer in stuck if lives(peer.pid)}
        stuck = {peer: stack for peer, stack in again.items() if not stacks.waits(stack)} or stuck
    lines = [f"\n{peer} is missing:\n{stack}" for peer, stack in (stuck or traces).items()]
    if len(missing) > MOST_STACKS:
        lines.append(f"\n({len(missing) - MOST_STACKS} more ranks)")
    return "".join(lines)


def of_termination(ended: Sequence[Peer], me: Peer, where: str, advice: str = "") -> str:
    """Return the message about the only ranks that SIGTERM came to, told by one of them."""
    names = " and ".join(map(str, ended))
    return _joined(
        f"{names} got SIGTERM, the rest of the job did not; the job ends", me, where, advice
    )


def _joined(summary: str, me: Peer, where: str, advice: str) -> str:
    """Return a message with what to do, and what the reporting rank was doing."""
    return "\n  ".join(filter(None, [summary, advice, f"rank {me.rank} was here: {where}"]))


def of_late_death(dead: Peer, finished: bool) -> str:
    """Return the message about a rank that died when the servers had ended."""
    if finished:
        return f"{dead} died after its script had ended: killed or crashed; nothing is lost"
    return f"{dead} died before its script had ended: killed or crashed; the others have finished"


def user_traceback(error: BaseException) -> str:
    """Return a short traceback: from the script down, and only the user's files if we refused."""
    frames = list(traceback.extract_tb(error.__traceback__))
    runs_script = [frame.filename == RUNPY for frame in frames]
    if any(runs_script):
        frames = frames[runs_script.index(True) :]
        frames = list(dropwhile(lambda frame: frame.filename == RUNPY, frames))
    if isinstance(error, HpcdistError):
        frames = [frame for frame in frames if not frame.filename.startswith(OURS)]
    lines = traceback.format_list(frames[-MOST_FRAMES:])
    if len(frames) > MOST_FRAMES:
        lines.insert(0, f"  ({len(frames) - MOST_FRAMES} outer calls)\n")
    lines += traceback.format_exception_only(error)
    if error.__cause__ is not None:
        cause = "".join(traceback.format_exception_only(error.__cause__))
        lines += ["caused by ", cause] * (cause.rstrip() not in lines[-1])  # said already
    return "".join(lines).rstrip()
