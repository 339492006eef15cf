import os, sys, time
from pathlib import Path
from hpcdist.checkpoint import lock
from hpcdist.errors import CheckpointError

root, taken = Path(sys.argv[1]), 0
until = time.monotonic() + 60
while taken < 8 and time.monotonic() < until:
    try:
        with lock.locked(root):
            os.close(os.open(root / "inside", os.O_CREAT | os.O_EXCL))
            os.unlink(root / "inside")
            taken += 1
    except CheckpointError:
        time.sleep(0.001)
print(taken)
