"""What scripts of torch's load of hpcdist: rows, sums and checkpoints, and nothing of Programs."""

from __future__ import annotations

import subprocess
import sys

from tests.scripts import read_script
from tests.support.jobs import needs_torch

pytestmark = needs_torch
MOST = 135  # modules: lower it with what is cut, never raise it
MOST_OF_A_RANK = 140  # that is launched, before it uses a table or servers
COUNTS = "print(sum(name.split('.')[0] == 'hpcdist' for name in sys.modules))\n"
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


SAVES = """
objects = {"model": model, "table": table, "moves": moves}
saver = hpcdist.torch.Saver(sys.argv[1], objects, publish=sys.argv[2])
saver.save()
saver.restore()
saver.close()
hpcdist.torch.Publisher(sys.argv[3], table).close()
"""


def test_a_script_of_torchs_loads_no_room_of_programs(tmp_path):
    checks = read_script("loads_no_programs")
    script = TRAINS + checks + read_script("loads_few_modules") + COUNTS + SAVES + checks
    folders = [str(tmp_path / name) for name in ("saved", "published", "also_published")]
    assert int(printed(["-c", script, *folders])) <= MOST


def test_a_launched_rank_loads_tables_and_servers_when_it_uses_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\n\nimport hpcdist.torch\n\n" + COUNTS)
    assert int(printed(["-m", "hpcdist", "--as-torchrun", str(script)])) <= MOST_OF_A_RANK


def printed(arguments: list[str]) -> str:
    """Return what a process of Python's prints that ends well."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
