train(10)
if RANK == 1:
    os._exit(3) if sys.argv[1] == "exits" else os.kill(os.getpid(), 15)
    time.sleep(60)
train(10)
print("done")
