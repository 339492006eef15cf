"""Trains and publishes beside; prints whether the last version has the rows of the tables."""

import sys

import numpy as np

import hpcdist.ps
import hpcdist.serving

table = hpcdist.ps.connect("t", 4, optimizer="adagrad", publish=sys.argv[1], publish_every=2)
for step in range(6):
    ids = np.random.RandomState(step).randint(0, 60, 16)[hpcdist.ps.rank() :: hpcdist.ps.size()]
    rows = table.pull(ids)
    table.push(ids, rows / len(ids)).wait()
table.publish()
every = np.arange(60)
rows = table.pull(every, create=False)
if hpcdist.ps.rank() == 0:
    with hpcdist.serving.Lookup(sys.argv[1], watch=False) as lookup:
        same = (lookup.pull("t", every) == rows).all()
        print(f"version of step {lookup.current.step} is the same: {same}")
