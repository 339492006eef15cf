for epoch in range(4):
    train(10)
    if RANK == 0 and epoch == 1:
        os.kill(os.getpid(), 9)
    fluid.checkpoint.save(exe, "saved", 10 * epoch)
open("saved.all", "w").close()
train(100_000, 0.01)
