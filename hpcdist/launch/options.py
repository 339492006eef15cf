"""The command line of ``python -m hpcdist``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hpcdist.base import settings
from hpcdist.base.setting import Setting, ValueKind, Word
from hpcdist.comm.process_manager import launched_rank
from hpcdist.fluid.compat import fluid_options
from hpcdist.launch import role_map
from hpcdist.runtime.job.failure_policy import OnFailure

T = TypeVar("T")

DESCRIPTION = """\
Run a training script on one process or on many ranks.

  python -m hpcdist train.py                             in one process
  mpirun -n 4 python -m hpcdist --pservers 2 train.py    2 trainers and 2 parameter servers
  srun -n 4 python -m hpcdist --pservers 2 train.py      the same under Slurm
  python -m hpcdist --as-paddle train.py                 a script that says `import paddle.fluid`
  mpirun -n 4 python -m hpcdist --as-torchrun train.py   a PyTorch script for torchrun
  python -m hpcdist checkpoint inspect PATH              what a checkpoint holds (or: verify)
  python -m hpcdist slurm --pservers 2 train.py          a batch script for Slurm
  python -m hpcdist report DIR -o job.html               an HTML page about a finished job
  python -m hpcdist top DIR|JOBID                        the progress of a running job
  mpirun -n 4 python -m hpcdist doctor                   check the machines of a job

Every rank runs the same script and finds its role in Fluid's environment variables:
PADDLE_TRAINING_ROLE, PADDLE_TRAINER_ID, PADDLE_TRAINERS, PADDLE_PSERVER_IPS, PADDLE_PSERVER_PORT,
PADDLE_CURRENT_IP, and those of PaddleCloudRoleMaker. Options come before the script;
everything after the script is passed to it.

`python -m hpcdist settings` lists all environment variables."""

EPILOG = f"""\
role maps:
{role_map.HELP}

Roles that are already set in the environment of every rank (PADDLE_TRAINING_ROLE) are kept.
If a rank fails or is killed, all ranks end, and one message says which rank it was and where. Under
`mpirun --with-ft ulfm` a job can go on without trainers that were killed, see --on-failure."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    pservers: int | None
    pservers_per_node: int | None
    role: str | None
    role_map: str | None
    log_dir: str | None
    trace: str | None
    metrics: str | None
    metrics_also: tuple[str, ...]
    prometheus: str | None
    all_output: bool
    quiet: bool
    as_paddle: bool
    as_torchrun: bool
    feed: str
    dense: str
    seed: int
    deadline: int | None
    on_failure: OnFailure | None
    on_nan: str
    umask: int | None
    worker_num: int | None
    nproc_per_node: int | None
    log_level: int | None
    module: bool
    script: str  # a module's name, if ``module``
    script_args: tuple[str, ...]


def argument(kind: ValueKind[T]) -> Callable[[str], T]:
    """Return an argparse type for values of a setting of this kind."""

    def read(text: str) -> T:
        try:
            return kind.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class _Writes(Protocol):
    def write(self, text: str, /) -> object: ...


class _Parser(argparse.ArgumentParser):
    """A parser that prints on rank 0 only: all ranks are given the same command line."""

    def _print_message(self, message: str, file: _Writes | None = None) -> None:
        if launched_rank() == 0:
            super()._print_message(message, file)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Return the options in ``argv`` (default: the process's own).

    SettingError for a wrong value of a variable that sets an option.
    """
    parser = _parser()
    options = vars(parser.parse_args(sys.argv[1:] if argv is None else argv))
    options = fluid_options.settle(parser, options)
    if options["pservers_per_node"] is not None:
        if options["role_map"] is not None:
            parser.error("--pservers-per-node K is the role map node:*=K: give one of them")
        options["role_map"] = f"node:*={options['pservers_per_node']}"
    options["all_output"] |= options["as_torchrun"]  # torchrun shows what all ranks print
    return Options(**options | {"script_args": tuple(options["script_args"])})


def names() -> list[str]:
    """Return all options, as --name."""
    return [name for action in _parser()._actions for name in action.option_strings]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m hpcdist",
        description=DESCRIPTION,
        epilog=EPILOG,
        usage="%(prog)s [options] script.py|-m module [script arguments]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add(parser, settings.PSERVERS, "P", "number of ranks that are parameter servers")
    _add(
        parser,
        settings.PSERVERS_PER_NODE,
        "K",
        "number of servers on each node, its last K ranks; same as --role-map node:*=K",
    )
    parser.add_argument(
        "--role",
        type=argument(Word("trainer", "pserver")),
        metavar="{trainer,pserver}",
        help="role of the ranks that this command starts, if trainers and servers are started by "
        "separate commands: srun --het-group=0 ... --role trainer T.py : --het-group=1 ... --role "
        "pserver T.py",
    )
    _add(parser, settings.ROLE_MAP, "MAP", "which ranks are servers, see below")
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        help="write each rank's output to DIR/workerlog.K or serverlog.K; rank 0's is shown too",
    )
    parser.add_argument(
        "--trace",
        metavar="DIR",
        help="record every operator and message, and write DIR/trace.json at the end, for "
        "ui.perfetto.dev or chrome://tracing",
    )
    _add(
        parser,
        settings.METRICS,
        "DIR",
        "write into DIR the progress of each rank, for `python -m hpcdist top DIR`, and metrics: "
        "those of fluid.log_metrics and the numbers that trainer 0 fetches",
    )
    _add(
        parser,
        settings.METRICS_ALSO,
        "{csv,tensorboard}",
        "formats of metrics in addition to JSON lines; one or both, separated by a comma",
    )
    _add(
        parser,
        settings.PROMETHEUS,
        "DIR",
        "write the progress of each rank into DIR on its node, for Prometheus's textfile collector",
    )
    for name, help_text in (
        ("--all-output", "show the stdout of every rank, not only of rank 0; --as-torchrun does"),
        ("--quiet", "print warnings and errors only: no table at the start, no other messages"),
        ("--as-paddle", "make `import paddle` and `import paddle.fluid` import hpcdist"),
    ):
        parser.add_argument(name, action="store_true", help=help_text)
    parser.add_argument(
        "--as-torchrun",
        action="store_true",
        help="run a PyTorch script written for torchrun: set torchrun's variables, and let "
        "torch.distributed use MPI, whichever backend the script names; needs torch",
    )
    _add(
        parser,
        settings.FEED,
        "{whole,local}",
        "what each trainer of a plain script feeds: the whole batch, from which it takes its "
        "rows (default), or only its own rows, which together are the batch",
    )
    _add(
        parser,
        settings.DENSE,
        "{pserver,collective}",
        "where a job with servers keeps parameters other than distributed tables: on the "
        "servers (default), or on the trainers, which sum their gradients",
    )
    parser.add_argument(
        "--seed",
        type=argument(settings.SEED.kind),
        default=settings.SEED.default,
        metavar="N",
        help="seed of random, numpy.random and unseeded operators, on all ranks (default 0)",
    )
    parser.add_argument(
        "--deadline",
        type=argument(settings.RPC_DEADLINE.kind),
        metavar="MS",
        help="longest wait for a message, in milliseconds: sets FLAGS_rpc_deadline (180000)",
    )
    _add(
        parser,
        settings.ON_FAILURE,
        "{end,continue}",
        "what happens when a trainer dies: the job ends, or goes on with the others, which "
        "needs `mpirun --with-ft ulfm` of Open MPI 5, and servers or a PyTorch script that calls "
        "hpcdist.torch.shrink(); by default asynchronous jobs go on and synchronous ones end",
    )
    _add(
        parser,
        settings.ON_NAN,
        "{warn,end}",
        "at the first NaN in a fetched value, in a gradient that a server applies, or in "
        "parameters that Saver would save: warn once (default), or end the job",
    )
    _add(
        parser,
        settings.UMASK,
        "OCTAL",
        "umask of all ranks for logs, checkpoints and other files; 077 lets only their owner "
        "read them; default: the shell's umask",
    )
    fluid_options.add(parser)
    add_script(parser)
    return parser


def add_script(parser: argparse.ArgumentParser) -> None:
    """Declare what is run: a script or a module, and its arguments."""
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module: -m package.train"
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="arguments of the script")


def _add(
    parser: argparse.ArgumentParser, setting: Setting[Any], metavar: str, help_text: str
) -> None:
    """Add an option that an environment variable can set, too."""
    name = setting.name.removeprefix("HPCDIST_").lower().replace("_", "-")
    parser.add_argument(
        f"--{name}",
        type=argument(setting.kind),
        metavar=metavar,
        default=setting.read(),
        help=f"{help_text} (or {setting.name})",
    )
