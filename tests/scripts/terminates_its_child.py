import multiprocessing as mp

if RANK == 0:
    child = mp.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.3)
    child.terminate()
    child.join()
    print("child", child.exitcode)
train(3)
