"""ReFrame: train on 4 ranks in each mode, and compare the loss with that of one process.

    reframe -C packaging/reframe/settings.py -c packaging/reframe/hpcdist_check.py -r

A site's own settings replace ``settings.py``; a module that loads hpcdist goes into ``modules``.
References of speed are added per system: here any speed passes, and is logged.
"""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, run_after, sanity_function

LOSS = 0.077488  # of one process; sums in another order move the last digits


@rfm.simple_test
class TrainCheck(rfm.RunOnlyRegressionTest):
    """Train with 2 parameter servers, with 1, and with gradients summed among all ranks."""

    descr = "hpcdist trains on 4 ranks as in one process"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    servers = parameter([0, 1, 2])
    num_tasks = 4
    executable = "python"
    sourcesdir = "src"
    env_vars = {"OMP_NUM_THREADS": "1"}
    maintainers = ["hpcdist"]
    tags = {"production", "ml"}
    reference = {"*": {"speed": (0, None, None, "steps/s")}}

    @run_after("init")
    def set_servers(self):
        """Say how many of the ranks serve."""
        self.executable_opts = ["-m", "hpcdist", "--pservers", str(self.servers), "train.py"]

    @sanity_function
    def loss_is_that_of_one_process(self):
        """Compare the last loss."""
        loss = sn.extractsingle(r"^loss (\S+)", self.stdout, 1, float)
        return sn.assert_reference(loss, LOSS, -1e-3, 1e-3)

    @performance_function("steps/s")
    def speed(self):
        """Read the steps per second, after the first ones."""
        return sn.extractsingle(r"^speed (\S+)", self.stdout, 1, float)
