from pathlib import Path
from time import sleep

import numpy as np

import hpcdist.ps

# block
for step in range(1000):
    table.push([3, 5], np.ones((2, 16), "float32")).wait()
while not list(Path("published").glob("*.json")):  # a thread writes it
    sleep(0.1)
# block
assert rows.shape == (2, 16) and rows.any()
