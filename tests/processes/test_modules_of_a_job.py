"""What a job loads of hpcdist before its script: it starts as fast as the modules that it needs."""

import subprocess
import sys

MOST = 205  # modules, the launcher's included: lower it with what is cut, never raise it
NEVER = ("hpcdist.fluid.layers", "hpcdist.fluid.optimizer", "hpcdist.ops.families")
SCRIPT = """
import sys
print(*(name for name in sys.modules if name.split(".")[0] == "hpcdist"))
"""


def test_a_job_loads_few_modules_and_no_layers_before_its_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcdist", "--quiet", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert "hpcdist.runtime.job.job" in names
    assert not [name for name in names if name.startswith(NEVER)]
    assert len(names) <= MOST, len(names)
