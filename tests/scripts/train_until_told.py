def told():  # the same on all trainers, who must make equally many steps
    seen = str(os.path.exists("stop")).encode()
    return b"True" in fluid.runtime.everyones(seen, "whether to stop")


while not told():
    train(5, every_s=0.01)
exe.close()
