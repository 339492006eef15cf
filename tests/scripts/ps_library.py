"""Trains two tables of hpcdist.ps; goes on from a checkpoint. Prints the losses and the bits."""

import sys
import zlib

import numpy as np

import hpcdist.ps

begin, end, mode, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
initial = hpcdist.ps.Initial("normal", 0.0, 0.1, seed=5)
users = hpcdist.ps.connect("users", 4, optimizer="adagrad", lr=0.5, initial=initial, mode=mode)
items = hpcdist.ps.connect("items", 4, optimizer="adam", lr=0.05, initial=initial, mode=mode)
if begin:
    assert users.restore(directory) == begin
for step in range(begin, end):
    drawn = np.random.RandomState(step).randint(-50, 50, (2, 32))
    user, item = drawn[:, hpcdist.ps.rank() :: hpcdist.ps.size()]
    users.lr = 0.5 / (step + 1)
    u, v = users.pull(user), items.pull(item)
    error = (u * v).sum(1, keepdims=True) - (user * item % 2)[:, None].astype("float32")
    users.push(user, error * v / len(user))
    items.push(item, error * u / len(item)).wait()
    loss = hpcdist.ps.mean((error**2).mean())
if directory != "-":
    users.save(directory)
every = np.arange(-50, 50)
rows = [table.pull(every, create=False) for table in (users, items)]
if hpcdist.ps.rank() == 0:
    print(f"bits {zlib.crc32(np.concatenate(rows).tobytes()):08x} loss {loss:.6f}")
for table in (users, items):
    table.close()
