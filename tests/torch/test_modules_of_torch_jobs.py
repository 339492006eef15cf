"""What scripts of torch's load of hpcdist: what moves rows and sums, and nothing of Programs."""

from __future__ import annotations

import subprocess
import sys

from tests.scripts import read_script
from tests.support.jobs import needs_torch

pytestmark = needs_torch
MOST = 135  # modules: lower it with what is cut, never raise it
TRAINS = """
import hpcdist.torch
import torch
from torch import nn
torch.distributed.init_process_group("hpcdist")
table = hpcdist.torch.Embedding(None, 4)
moves = hpcdist.torch.TableOptimizer(table, "Adagrad", lr=0.1)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
for _ in range(2):
    model(table(torch.tensor([1, 2]))).sum().backward()
    moves.step()
"""


def test_a_script_of_torchs_loads_no_room_of_programs():
    counts = "print(sum(name.split('.')[0] == 'hpcdist' for name in sys.modules))\n"
    script = TRAINS + read_script("loads_no_programs") + counts
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= MOST
