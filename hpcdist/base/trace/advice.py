"""What slows a job down and what to change, derived from its recordings. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdist.base.trace.events import Cause, EventKind
from hpcdist.base.trace.failure import failed
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.summary import RankSummary, transits

STRAGGLES = 1.5  # times what the other trainers are busy in a step
LEAST_S = 5e-4  # more in a step: ranks that share cores differ by less from one run to the next
ALIKE = 0.8  # of the most: no less in any way that matters
LEAST_SHARE = 0.2  # of the time, below which nothing is worth a word
SKEWED = 1.6  # times a server's fair share
LARGE_BYTES = 2**16  # of a packet: smaller ones are applied in no time
MANY_MESSAGES, SMALL_BYTES = 20, 4096  # of a trainer in a step; on average
MUCH_GARBAGE = 0.05
MIB = 2**20
LONG_S = 2.0  # a single collection is much of a job that is shorter
DELAYED = 3.0  # times what messages take to the other servers
DELAYED_SHARE, STOLEN_SHARE = 0.2, 0.1  # of the time, without a core
GROWS_BYTES, GROWS_SHARE = 2**24, 0.05  # of memory, in the second half of a recording


@dataclass(frozen=True)
class Advice:
    """Something that holds the job up, and what to change; ``rank`` where it is one rank's."""

    cause: str
    text: str
    rank: int | None = None


def stragglers(ranks: Sequence[RankSummary]) -> list[RankSummary]:
    """Return the trainers that are busy for much longer in a step than the others."""
    trainers = [rank for rank in ranks if not rank.serves and rank.steps > 1]
    slow = []
    for rank in trainers:
        usual_busy = [other.busy for other in trainers if other is not rank]
        if not usual_busy:
            continue
        usual, step_s = statistics.median(usual_busy), rank.seconds / rank.steps
        # Not only now and then, as on a host that is busy with other things too.
        longer = rank.steadily - usual
        if rank.steadily > STRAGGLES * usual and longer > max(LEAST_S, LEAST_SHARE * step_s):
            slow.append(rank)
    return slow


def advise(recordings: Sequence[RankRecording], ranks: Sequence[RankSummary]) -> list[Advice]:
    """Return the causes that hold the job up, the worst first; none for a healthy job.

    The last seconds of a job that failed are no steps as others: of them only memory is judged.
    """
    if failed(recordings):
        return _memory(ranks)
    return [
        *_slow_trainers(ranks),
        *_reading(ranks),
        *(_placement(ranks) or _slow_servers(recordings, ranks)),
        *_messages(recordings, ranks),
        *_garbage(ranks),
        *_checkpoints(ranks),
        *_memory(ranks),
        *_machines(ranks),
    ]


def _slow_trainers(ranks: Sequence[RankSummary]) -> list[Advice]:
    advice = []
    for rank in stragglers(ranks):
        reader = rank.waits.get(Cause.READER, 0.0)
        within = rank.busy * rank.steps - rank.between
        place = "its script, between steps" if rank.between > within else "its steps"
        hint = (
            "see what the script does there on this rank alone"
            if rank.between > within
            else "compare its operators with another rank's; look at its host: other processes, "
            "cores (python -m hpcdist doctor), temperature"
        )
        if reader > 0:
            hint += "; it waits for its reader, too"
        advice.append(
            Advice(
                "a slow rank",
                f"{rank.of} is busy {rank.busy * 1e3:.3g} ms in a step, and the others wait: the "
                f"time goes into {place}: {hint}",
                rank.of.rank,
            )
        )
    return advice


def _reading(ranks: Sequence[RankSummary]) -> list[Advice]:
    trainers = [rank for rank in ranks if not rank.serves and rank.steps > 1]
    if not trainers:
        return []
    advice = []
    reader = {rank.of.rank: rank.share(rank.waits.get(Cause.READER, 0.0)) for rank in trainers}
    slowest = max(reader, key=lambda rank: reader[rank])
    if reader[slowest] > LEAST_SHARE:
        advice.append(
            Advice(
                "the reader",
                f"trainers wait for the reader, rank {slowest} {reader[slowest]:.0%} of its time: "
                "read ahead (capacity=, fluid.io.multiprocess_reader), or read faster",
                slowest,
            )
        )
    slow = stragglers(trainers)
    usual = [rank.share(rank.between) for rank in trainers if rank not in slow]
    script = statistics.median(usual or [0.0])
    if script > 2 * LEAST_SHARE:
        advice.append(
            Advice(
                "the script",
                f"{script:.0%} of the trainers' time is the script's own, between steps: make "
                "batches in a fluid.io.DataLoader, which reads ahead, and print less often",
            )
        )
    return advice


def _placement(ranks: Sequence[RankSummary]) -> list[Advice]:
    servers = [rank for rank in ranks if rank.serves]
    total = sum(rank.applied_bytes for rank in servers)
    if len(servers) < 2 or not total:
        return []
    most = max(servers, key=lambda rank: rank.applied_bytes)
    share = most.applied_bytes / total
    large = most.applied_bytes / most.applied_packets > LARGE_BYTES
    if share < min(0.95, SKEWED / len(servers)) or not large:
        return []
    return [
        Advice(
            "placement",
            f"server {most.of.index} (rank {most.of.rank}) applies {share:.0%} of the bytes: let "
            "parameters be cut (config.slice_var_up = True, a smaller config.min_block_size)",
            most.of.rank,
        )
    ]


def _slow_servers(
    recordings: Sequence[RankRecording], ranks: Sequence[RankSummary]
) -> list[Advice]:
    """Name the servers that messages take much longer to than to the others."""
    trainers = [rank for rank in ranks if not rank.serves and rank.steps > 1]
    of_rank = {rank.of.rank: rank for rank in ranks}
    to_server: dict[int, list[float]] = defaultdict(list)
    for (_, server), seconds in transits(recordings).items():
        to_server[server].append(seconds)
    took = {server: statistics.median(seconds) for server, seconds in to_server.items()}
    if len(took) < 2 or not trainers:
        return []
    step_s = statistics.median(rank.seconds / rank.steps for rank in trainers)
    advice = []
    for server, seconds in took.items():
        usual = statistics.median(other for k, other in took.items() if k != server)
        if seconds > DELAYED * usual and seconds - usual > LEAST_SHARE * step_s:
            advice.append(
                Advice(
                    "a slow server",
                    f"messages take {seconds * 1e3:.3g} ms to {of_rank[server].of}, to the others "
                    f"{max(usual, 0.0) * 1e3:.3g} ms: look at its host (other processes, cores) "
                    "and at its links: python -m hpcdist doctor",
                    server,
                )
            )
    return advice


def _messages(recordings: Sequence[RankRecording], ranks: Sequence[RankSummary]) -> list[Advice]:
    for rank, summary in zip(recordings, ranks):
        events = rank.recording.events
        sent = events[events["kind"] == EventKind.SENT]
        if summary.serves or not len(sent):
            continue
        per_step = statistics.median(Counter(sent["step"].tolist()).values())
        waits = summary.share(summary.waits.get(Cause.PARAMETERS, 0.0))
        if per_step > MANY_MESSAGES and sent["value"].mean() < SMALL_BYTES and waits > LEAST_SHARE:
            return [
                Advice(
                    "small messages",
                    f"a trainer sends {per_step:.0f} messages of {sent['value'].mean():.0f} bytes "
                    "in a step: cut parameters into fewer pieces (raise config.min_block_size), or "
                    "use fewer servers",
                )
            ]
    return []


def _garbage(ranks: Sequence[RankSummary]) -> list[Advice]:
    worst = max(ranks, key=lambda rank: rank.share(rank.garbage), default=None)
    if worst is None or worst.share(worst.garbage) < MUCH_GARBAGE or worst.seconds < LONG_S:
        return []
    return [
        Advice(
            "garbage collection",
            f"{worst.of} spends {worst.share(worst.garbage):.0%} of its time collecting garbage: "
            "gc.freeze() before the loop, or make fewer Python objects in it",
            worst.of.rank,
        )
    ]


def _checkpoints(ranks: Sequence[RankSummary]) -> list[Advice]:
    most = max((rank.share(rank.checkpoints) for rank in ranks), default=0.0)
    if most < LEAST_SHARE:
        return []
    # All trainers save together: the first one of those that take as long, not who waits longest.
    worst = next(rank for rank in ranks if rank.share(rank.checkpoints) > ALIKE * most)
    return [
        Advice(
            "checkpoints",
            f"{worst.of} spends {worst.share(worst.checkpoints):.0%} of its time on checkpoints: "
            "save less often, beside training (asynchronous=True), or to a faster file system",
            worst.of.rank,
        )
    ]


def _memory(ranks: Sequence[RankSummary]) -> list[Advice]:
    """Name the ranks whose memory still grows when a job has long begun."""
    advice = []
    for rank in ranks:
        memory = rank.memory
        if not memory.quarters or memory.seconds < LONG_S:
            continue
        _, second, third, fourth = memory.quarters
        late, early = fourth - third, third - second
        # What is filled once, such as a cache, grows ever more slowly.
        steady = early > 0 and late > early / 2
        if steady and fourth - second > max(GROWS_BYTES, GROWS_SHARE * second):
            rate = (fourth - second) / (memory.seconds / 2)
            advice.append(
                Advice(
                    "memory",
                    f"{rank.of} holds {memory.last / MIB:.0f} MiB and {rate / MIB:.3g} MiB more "
                    "every second: look for what its script keeps of every step (lists of fetched "
                    "arrays, of Programs, of batches)",
                    rank.of.rank,
                )
            )
    return advice


def _machines(ranks: Sequence[RankSummary]) -> list[Advice]:
    """Name the hosts where ranks had to wait for a core, and who had it."""
    hosts: dict[str, list[RankOfJob]] = defaultdict(list)
    for rank in ranks:
        if rank.of.cores:
            hosts[rank.of.host].append(rank.of)
    advice = []
    for host, on_host in hosts.items():
        delayed = statistics.fmean(of.delayed for of in on_host)
        stolen = max(of.stolen for of in on_host)
        if delayed < DELAYED_SHARE and stolen < STOLEN_SHARE:
            continue
        cores, own = on_host[0].cores, sum(of.own for of in on_host)
        others = max(0.0, max(of.busy for of in on_host) - own)
        text = (
            f"the {len(on_host)} ranks on {host} were ready and had no core for {delayed:.0%} of "
            f"the time: of {cores} cores they had {own:.1f}, other programs {others:.1f}"
        )
        if stolen >= STOLEN_SHARE:
            text += f"; the hypervisor gave {stolen:.0%} to other machines"
        hint = "start fewer ranks there" if len(on_host) > cores else "end other programs there"
        text += f"; load average {max(of.load for of in on_host):.1f}: {hint}, or have the nodes "
        advice.append(Advice("an overloaded machine", text + "alone (srun --exclusive)"))
    return advice
