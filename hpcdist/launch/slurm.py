"""``python -m hpcdist slurm``: write a batch script for a job. Pure, except for the file it
writes."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.nearest import did_you_mean
from hpcdist.base.setting import Integer
from hpcdist.checkpoint.preemption import AGAIN
from hpcdist.launch.command_line import Parser, argument
from hpcdist.launch.options import add_script

DESCRIPTION = """\
Write a Slurm batch script that trains with hpcdist.

  python -m hpcdist slurm --nodes 4 --pservers-per-node 1 -o job.sbatch train.py
  sbatch job.sbatch

Without servers all ranks are trainers. Slurm warns the job before its time limit. If its script
uses hpcdist.checkpoint.Saver, the job then saves a checkpoint, is requeued and resumes from there.
After a failure it is requeued too, --retries times, unless it failed before its first step; a
PyTorch script only if it uses hpcdist.torch.Saver."""


logger = logging.getLogger("hpcdist")
EARLIER_S = 60  # how much earlier than it was asked to Slurm may warn


@dataclass(frozen=True)
class BatchJob:
    """A job as its user describes it. ``server_nodes`` and ``het`` put servers on other nodes."""

    name: str = "hpcdist"
    nodes: int = 2
    ranks_per_node: int = 4
    cpus_per_rank: int = 1
    gpus_per_node: int = 0
    pservers: int = 0
    pservers_per_node: int = 0
    server_nodes: int = 0
    het: bool = False
    as_torchrun: bool = False
    time: str = "01:00:00"
    partition: str = ""
    account: str = ""
    mpi: str = ""  # what ``env`` says, or else pmix
    env: str = ""  # a file to source before anything else
    python: str = "python"
    warning_s: int = 120
    retries: int = 3
    command: str = '"$@"'  # the script and its arguments
    usage: str = ""


def batch_script(job: BatchJob) -> str:
    """Return the text of the batch script."""
    lines = ["#!/bin/bash", *(f"# {line}" for line in job.usage.splitlines())]
    lines += _directive("job-name", job.name)
    lines += _resources(job, job.nodes + (0 if job.het else job.server_nodes))
    lines += _directive("time", job.time)
    lines += [
        *_directive("output", "%x-%j.log"),
        "#SBATCH --open-mode=append      # a requeued job continues its log",
        "#SBATCH --requeue",
        f"#SBATCH --signal=USR1@{job.warning_s}      # seconds before the end: save and stop",
    ]
    if job.het:
        lines += ["#SBATCH hetjob", "# The component of the servers:"]
        lines += _resources(job, job.server_nodes, servers=True)
    step = "the first step of a hpcdist.torch.Saver" if job.as_torchrun else "its first step"
    ending = _ENDING.format(again=AGAIN, retries=job.retries, step=step, first_step=FIRST_STEP)
    return "\n".join([*lines, "", *_environment(job), _BEFORE, *_start(job), ending])


def _start(job: BatchJob) -> list[str]:
    """Return the call of srun; what sbatch was told of cores, srun must be told again."""
    srun = "srun --kill-on-bad-exit=1"
    launch = f'$HOLD $IN_CONTAINER {job.python} -m hpcdist --log-dir "$RUN" --metrics "$LOGS"'
    launch += " --as-torchrun" * job.as_torchrun
    if job.het:
        parts = [f'--het-group={k} -c "${{SLURM_CPUS_PER_TASK_HET_GROUP_{k}:-1}}"' for k in (0, 1)]
        return [
            f"{srun} {parts[0]} {launch} --role trainer {job.command} \\",
            f"    : {parts[1]} {launch} --role pserver {job.command}",
        ]
    srun += ' -c "${SLURM_CPUS_PER_TASK:-1}"'
    if job.server_nodes:
        servers = job.server_nodes * job.ranks_per_node
        return [
            "# The last ranks are servers: with block distribution, all ranks of the last nodes.",
            f"{srun} --distribution=block {launch} --pservers {servers} {job.command}",
        ]
    count = f" --pservers {job.pservers}" if job.pservers else ""
    if job.pservers_per_node:
        count = f" --pservers-per-node {job.pservers_per_node}"
    return [f"{srun} {launch}{count} {job.command}"]


# A file in the log directory, once a step has been made: by a Program, or one that
# hpcdist.torch.Saver counts or saves, for what else PyTorch scripts do cannot be taken up again.
FIRST_STEP = "first-step"

_BEFORE = """\
unset SLURM_EXPORT_ENV   # of `sbatch --export=NONE`: ranks get what is set here
LOGS="logs-$SLURM_JOB_ID"
RUN="$LOGS/start.${SLURM_RESTART_COUNT:-0}"   # each start has logs of its own
# A warning that comes while python starts is held back until the script runs (coreutils 8.31).
HOLD="env --block-signal=USR1"
$HOLD true 2>/dev/null || HOLD=

# --kill-on-bad-exit: if one rank fails, Slurm ends the others too."""

_ENDING = """\
code=$?

# {again}: stopped before the time limit, with a checkpoint to resume from. A failure is retried a
# few times, unless the job has never made a step: then it would fail in the same way.
if [ $code -ne 0 ] && [ $code -ne {again} ]; then
    if ! compgen -G "$LOGS/start.*/{first_step}" > /dev/null; then
        echo "hpcdist: the job failed before {step} ($code): not started again" >&2
        exit $code
    fi
    mkdir -p "$LOGS" && echo "exit code $code" >> "$LOGS/failures"
    [ "$(wc -l < "$LOGS/failures")" -le "${{RETRIES:-{retries}}}" ] || exit $code
fi
# A task of an array by its number in it: the last task's job id names all of them.
SELF="$SLURM_JOB_ID"
[ -z "$SLURM_ARRAY_TASK_ID" ] || SELF="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
[ $code -eq 0 ] || scontrol requeue "$SELF"
exit $code
"""


def note_first_step(log_dir: str) -> None:
    """Leave the file that tells the batch script that the job has made a step."""
    try:
        Path(log_dir, FIRST_STEP).touch()
    except OSError as error:
        logger.warning("cannot write into %s, so a failure will not be retried: %s", log_dir, error)


def _directive(name: str, value: object) -> list[str]:
    return [f"#SBATCH --{name}={shlex.quote(str(value))}"] if value else []


def _resources(job: BatchJob, nodes: int, *, servers: bool = False) -> list[str]:
    lines = _directive("nodes", nodes)
    lines += _directive("ntasks-per-node", job.ranks_per_node)
    lines += _directive("cpus-per-task", job.cpus_per_rank)
    if job.gpus_per_node and not servers:
        lines += _directive("gpus-per-node", job.gpus_per_node)
    return lines + _directive("partition", job.partition) + _directive("account", job.account)


PMIX, PMI2 = "pmix", "pmi2"
# What the MPI from PyPI wants: Open MPI has no munge, MPICH's addresses over UCX are too long.
_FROM_PYPI = {PMIX: "PMIX_MCA_psec=native", PMI2: "MPIR_CVAR_CH4_NETMOD=ofi"}


def pmi_of(library: str) -> str:
    """Return how srun must start ranks that load this MPI library. Pure."""
    return PMIX if not library or "Open MPI" in library else PMI2  # MPICH and its kin


def _environment(job: BatchJob) -> list[str]:
    if not job.env:
        pmi = job.mpi or PMIX
        return [f"export SLURM_MPI_TYPE={pmi} {_FROM_PYPI[pmi]}"]
    mpi_type = [f"export SLURM_MPI_TYPE={job.mpi}"] if job.mpi else []
    advice = "submit from the project's folder, or set HPCDIST_ENV"
    return [
        *mpi_type,
        f'SITE="${{HPCDIST_ENV:-{job.env}}}"   # settings of this site',
        f'[ -r "$SITE" ] || {{ echo "no $SITE in $PWD: {advice}" >&2; exit 1; }}',
        '. "$SITE"',
    ]


def main(argv: Sequence[str]) -> None:
    """Write the script that the command line asks for, to standard output or a file."""
    job, output = _parse(argv)
    text = batch_script(job)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"hpcdist slurm: cannot write {output!r}: {error.strerror}") from None
    print(f"wrote {output}: sbatch {output}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``slurm``."""
    default = BatchJob()
    declared = Parser(
        "slurm",
        description=DESCRIPTION,
        usage="%(prog)s [options] script.py [arguments of the script]",
    )

    def number(option: str, value: int, least: int, text: str) -> None:
        help_text = f"{text} (default {value})" if value else text
        declared.add_argument(
            option, type=argument(Integer(least)), default=value, metavar="N", help=help_text
        )

    number("--nodes", default.nodes, 1, "nodes of the job; with --server-nodes, of the trainers")
    number("--ranks-per-node", default.ranks_per_node, 1, "processes on each node")
    number("--cpus-per-rank", default.cpus_per_rank, 1, "cores of each process")
    number("--gpus-per-node", 0, 0, "GPUs of each node, usually one per process")
    number("--pservers", 0, 0, "number of server ranks, the last N")
    number("--pservers-per-node", 0, 0, "number of server ranks on each node, the last N")
    number("--server-nodes", 0, 0, "number of further nodes with servers only")
    declared.add_argument(
        "--het",
        action="store_true",
        help="make the server nodes a component of a heterogeneous job, with directives of their "
        "own (needs --server-nodes)",
    )
    declared.add_argument(
        "--as-torchrun",
        action="store_true",
        help="the script is a PyTorch script for torchrun; after a failure it is started again "
        "only if it uses hpcdist.torch.Saver",
    )
    declared.add_argument(
        "--time",
        type=_time,
        default=default.time,
        help=f"time limit as Slurm writes it: minutes, h:m:s, d-h ... (default {default.time})",
    )
    declared.add_argument("--partition", default="", help="Slurm partition")
    declared.add_argument("--account", default="", help="Slurm account to charge")
    declared.add_argument("--job-name", default="", help="default: the script's name")
    declared.add_argument(
        "--mpi",
        choices=(PMIX, PMI2),
        default=default.mpi,
        help="how srun starts MPI: pmix for Open MPI, pmi2 for MPICH (default: as the MPI of this "
        "python needs; with --env, as that file says)",
    )
    declared.add_argument(
        "--env",
        default="",
        metavar="FILE",
        help="source this file first (modules, a virtual environment), such as jobs/slurm/env.sh; "
        "without it the job runs the python that runs this",
    )
    number(
        "--warning", default.warning_s, 1, "how many seconds before the time limit to save and stop"
    )
    number("--retries", default.retries, 0, "how many times to start again after a failure")
    declared.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    add_script(declared)
    return declared


def _parse(argv: Sequence[str]) -> tuple[BatchJob, str | None]:
    from hpcdist.comm.mpi_library import library  # in a job that runs, a module less

    declared = parser()
    arguments = declared.parse_args(argv)
    server_options = [arguments.pservers, arguments.pservers_per_node, arguments.server_nodes]
    if sum(map(bool, server_options)) > 1:
        declared.error("give one of --pservers, --pservers-per-node and --server-nodes")
    if arguments.het and not arguments.server_nodes:
        declared.error(
            "--het puts servers on nodes of their own: give their number, --server-nodes N"
        )
    ranks = arguments.nodes * arguments.ranks_per_node
    if arguments.pservers >= ranks or arguments.pservers_per_node >= arguments.ranks_per_node:
        declared.error(f"no trainer is left among {ranks} ranks: use fewer servers, or more ranks")
    if seconds_of(arguments.time) <= arguments.warning + EARLIER_S:
        declared.error(
            f"--warning {arguments.warning} can come {arguments.warning + EARLIER_S} s before the "
            f"end: a job of --time {arguments.time} would be stopped as soon as it starts"
        )
    script = arguments.script
    name = arguments.job_name or (script if arguments.module else Path(script).stem)
    lines = {"job-name": name, "partition": arguments.partition, "account": arguments.account}
    for option, value in (lines | {"env": arguments.env}).items():
        if not value.isprintable():
            declared.error(f"--{option}: expected text of one line, got {value!r}")
    if special := re.search(r'[$`"\\}]', arguments.env):
        declared.error(
            f"--env {arguments.env!r}: a shell would interpret {special[0]}: rename the file"
        )
    if arguments.env and not os.access(arguments.env, os.R_OK):
        declared.error(f"cannot read --env {arguments.env!r} in {os.getcwd()}")
    job = BatchJob(
        name=name,
        nodes=arguments.nodes,
        ranks_per_node=arguments.ranks_per_node,
        cpus_per_rank=arguments.cpus_per_rank,
        gpus_per_node=arguments.gpus_per_node,
        pservers=arguments.pservers,
        pservers_per_node=arguments.pservers_per_node,
        server_nodes=arguments.server_nodes,
        het=arguments.het,
        as_torchrun=arguments.as_torchrun,
        time=arguments.time,
        partition=arguments.partition,
        account=arguments.account,
        mpi=arguments.mpi or ("" if arguments.env else pmi_of(library()[0])),
        env=arguments.env if "/" in arguments.env or not arguments.env else f"./{arguments.env}",
        python="python" if arguments.env else shlex.quote(sys.executable),
        warning_s=arguments.warning,
        retries=arguments.retries,
        command=shlex.join([*["-m"] * arguments.module, script, *arguments.script_args]),
    )
    return job, arguments.output


def seconds_of(time: str) -> float:
    """Return how long a limit of Slurm's is; ValueError for what is none."""
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return float("inf")
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time, re.ASCII)
    if match is None:
        raise ValueError(f"not a Slurm time: {time!r}")
    days, *parts = match.groups()
    first, second, third = (int(part or 0) for part in parts)
    if days is not None or parts[2] is not None:  # d-h[:m[:s]], h:m:s
        return 86400 * int(days or 0) + 3600 * first + 60 * second + third
    return 60 * first + second  # m[:s]


def _time(text: str) -> str:
    """An argparse type: a limit that Slurm can read."""
    try:
        seconds_of(text)
    except ValueError:
        forms = "m, m:s, h:m:s, d-h, d-h:m, d-h:m:s or UNLIMITED"
        near = did_you_mean(text, ["UNLIMITED"])
        raise argparse.ArgumentTypeError(f"expected {forms}, got {text!r}{near}") from None
    return text
