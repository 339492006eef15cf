"""A process on every host that watches its ranks: their interpreters' ends, and their launcher's.

It names ranks that owe others their end and do nothing (`stuck_ranks`), and ends them. None of that
is a rank's own to do: it may be stopped, hold Python's lock, or have ended its threads. When all
ranks have ended, it watches the launcher (`stuck_launcher`) where that tolerates deaths.

The process runs `main` of this file without importing the package, whose import takes long: what it
imports needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdist.launch import facts, processes, stacks
from hpcdist.launch.facts import Fact
from hpcdist.launch.held_outputs import LOOK_S, HeldOutputs
from hpcdist.launch.stuck_launcher import GRACE_S, end_launcher, launcher_of
from hpcdist.launch.stuck_ranks import ExitStage, StuckFinding, StuckRanks, Suspect

LEAST_S = 10.0  # in which a rank ends, on a busy machine
LOOKS = 20  # within a deadline
MOST_LOOK_S = 1.0
# Packages that are folders only, so that their modules can be imported without running theirs.
START = """
import sys, types
for name, folder in (("hpcdist", sys.argv[1]), ("hpcdist.launch", sys.argv[1] + "/launch")):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [folder]
from hpcdist.launch.host_watcher import main
main(sys.argv[2:])
"""


def start(
    names: Mapping[int, str],
    board: int,
    deadline_s: float,
    words: Sequence[int],
    tolerant: bool,
    held: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start the process that watches these ranks of this host.

    ``names`` are what messages call them, by process id; ``board`` is the file of their facts;
    ``words`` are those of which a rank that was not killed has noted at least one, where all ranks
    of the job are here; ``held`` are files of theirs to hold open until a death has been told. A
    ``tolerant`` launcher is watched too.
    """
    launcher = (launcher_of(os.getppid()) or 0) if tolerant else 0
    lists = [",".join(map(str, map(int, numbers))) for numbers in (words, held)]
    options = [str(launcher), str(deadline_s), str(int(tolerant)), *lists]
    ranks = [f"{pid}:{name}" for pid, name in names.items()]
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            START,
            str(Path(__file__).parents[1]),
            *options,
            *ranks,
        ],
        stdin=board,
        pass_fds=held,
        # A launcher waits for the ends of the pipes that it has given to this rank, too: a tolerant
        # one passes on what the ranks have written, and does not end before it is judged.
        stdout=None if tolerant else subprocess.DEVNULL,
        start_new_session=True,
    )


@dataclass
class HostWatcher:
    """Watches ranks until all have ended; ``names`` are theirs, by process id."""

    names: Mapping[int, str]
    board: int
    deadline_s: float
    tolerant: bool
    held: HeldOutputs

    def run(self) -> None:
        """Return when all ranks of this host have ended. OSError on Linux before 5.3."""
        living = {}
        for pid in self.names:
            try:
                living[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                self.held.note_death(time.monotonic())
        stuck = StuckRanks(
            list(living.values()),
            self.deadline_s,
            processes.activity,
            processes.is_stopped,
            lambda pid: stacks.waits(stacks.stacks_of(pid)),
        )
        look_s = min(MOST_LOOK_S, self.deadline_s / LOOKS)
        poll = select.poll()
        for fd in living:
            poll.register(fd, select.POLLIN)
        while living:
            ended = poll.poll(1000 * (LOOK_S if self.held.pending else look_s))
            now_s, noted = time.monotonic(), list(facts.records(self.board))
            for fd, _ in ended:
                poll.unregister(fd)
                os.close(fd)
                pid = living.pop(fd)
                stuck.forget(pid)
                if (pid, Fact.GONE, -1) not in noted:
                    self.held.note_death(now_s)
            self.held.look(now_s, told=any(fact == Fact.REPORTS for _, fact, _ in noted))
            for suspect in stuck.look(now_s, noted):
                self._tell(suspect)

    def _tell(self, suspect: Suspect) -> None:
        """Say what is wrong with a rank; end it, and the job with it, unless it may be right."""
        if any(fact == Fact.REPORTS for _, fact, _ in facts.records(self.board)):
            return  # the job is ending
        stack = stacks.stacks_of(suspect.pid)
        ends = suspect.finding is not StuckFinding.COMPUTES
        if ends and not self.tolerant and suspect.stage is not ExitStage.GONE:
            facts.note(self.board, os.getpid(), Fact.REPORTS)  # the only report of its end
        text = f"hpcdist: {self.names[suspect.pid]} {self._what(suspect)}\n"
        text += textwrap.indent(stack, "  ") + "\n"
        with contextlib.suppress(OSError):  # where nobody reads any more
            os.write(2, text.encode())
        if ends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(suspect.pid, signal.SIGKILL)

    def _what(self, suspect: Suspect) -> str:
        within = f"{self.deadline_s:g} s"
        fate = "it is killed" if self.tolerant else "it is killed, and the job ends"
        if suspect.finding is StuckFinding.STOPPED:
            stopped = f"has been stopped (SIGSTOP) for more than {within} (timed out)"
            return f"{stopped}, others were not: {fate}"
        if suspect.finding is StuckFinding.BLOCKED:
            return (
                f"is stuck {suspect.stage.value}: it has done nothing for {within} (timed out), "
                f"and its end is waited for: {fate} (if it is only slow, raise FLAGS_rpc_deadline)"
            )
        return (
            f"has not ended {within} after others: it still runs {suspect.stage.value}; "
            "the job waits for it"
        )


def main(words: Sequence[str]) -> None:
    """Watch the ranks that `start` has named, whose facts are standard input."""
    launcher, deadline, tolerant, last_words, files, *ranks = words
    names = {int(pid): name for pid, _, name in (rank.partition(":") for rank in ranks)}
    deadline_s = max(float(deadline), LEAST_S)
    with contextlib.suppress(OSError):  # Linux before 5.3: nothing is watched
        held = [] if int(tolerant) else [2, *_numbers(files)]
        HostWatcher(names, 0, deadline_s, bool(int(tolerant)), HeldOutputs(held)).run()
    if int(launcher):
        spoken = _numbers(last_words)
        end_launcher(int(launcher), list(names), GRACE_S, 0, spoken, outputs=(1, 2))


def _numbers(listed: str) -> list[int]:
    return [int(number) for number in listed.split(",") if number]
