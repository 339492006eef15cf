import sys
from pathlib import Path
from hpcdist.checkpoint import lock

directory = Path(sys.argv[1])
lock.take(directory)
lock.take(directory)
lock.check(directory)
print(*[p.name for p in directory.iterdir()])
