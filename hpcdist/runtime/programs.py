"""What runs Programs in this process: as a rank of its job, or alone. Loaded with the first one."""

from __future__ import annotations

from hpcdist import runtime
from hpcdist.executor import control
from hpcdist.ops.communication.exchange import EXCHANGES
from hpcdist.ops.normalization.sync_batch_norm import OPS
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.job.program_job import ProgramJob
from hpcdist.runtime.job.standalone import Standalone
from hpcdist.runtime.tables.pull_push import TABLE_OPS


def _install(job: Job | None) -> None:
    control.install(None if job is None else ProgramJob(job))


control.install_standalone(Standalone(), (*TABLE_OPS, *OPS, *EXCHANGES))
runtime.follow(_install)
