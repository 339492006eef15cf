from hpcdist.runtime.batches import global_moments

exchanged, calls = global_moments.exchanged, 0


def dying(*what):
    global calls
    calls += 1
    if calls < AT:
        return exchanged(*what)
    if AFTER:
        exchanged(*what)
    os.kill(os.getpid(), 9)
    time.sleep(60)


if RANK == 1:
    global_moments.exchanged = dying
assert np.isfinite(train(40))
print("done")
