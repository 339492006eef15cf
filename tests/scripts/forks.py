import signal


def act(child):
    if child == 1:
        sys.exit(3)
    if child == 2:
        sys.exit("a reason")
    if child == 3:
        1 / 0
    if child == 4:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(9)


codes = []
for number in range(5):
    child = os.fork()
    if not child:
        act(number)
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(codes, train(5) > 0)
