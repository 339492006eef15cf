import atexit, os, sys, time, signal, subprocess, threading

RANK = int(os.environ["HPCDIST_RANK"])
with open(f"new.pid.{RANK}", "w") as f:
    f.write(str(os.getpid()))
os.replace(f.name, f"pid.{RANK}")
deaths = [argument for argument in sys.argv if argument.count(":") == 4]
serves = os.environ["PADDLE_TRAINING_ROLE"] == "PSERVER"
saves = any(":save:" in death for death in deaths) or "saves" in sys.argv
moment = None
for death in deaths:
    rank, *facts = death.split(":")
    if int(rank) == RANK:
        moment, way, at_step, after_s = facts[0], facts[1], int(facts[2]), float(facts[3])


class Last:
    def __del__(self, mark=f"over.{RANK}", open=os.open, how=os.O_CREAT):
        open(mark, how)  # when all of this process's work is done


sys.last = Last()


def mark_death():
    os.close(os.open(f"died.{RANK}", os.O_CREAT))


def die():
    global moment
    moment = None
    if way in ("sys.exit", "raise", "sleep"):
        mark_death()
    if way == "sleep":
        time.sleep(600)
    if way == "sys.exit":
        sys.exit(3)
    if way == "raise":
        raise RuntimeError("on purpose")
    if way == "os._exit":
        end = lambda: (time.sleep(after_s), mark_death(), os._exit(3))
        threading.Thread(target=end, daemon=True).start()
        if after_s < 0.001:
            time.sleep(60)
        return
    # From outside, so that it also comes inside of MPI's own end.
    kill = f"kill -s {way[3:]} {os.getpid()}"
    kill = f"sleep {after_s}; test -e over.{RANK} && touch late.{RANK}; touch died.{RANK}; {kill}"
    subprocess.Popen(["sh", "-c", kill], start_new_session=True)
    if after_s < 0.001:
        time.sleep(60)


def at(now, step=None):
    if now == moment and step in (None, at_step):
        die()


def when_others(now):
    # On a server, which is told nothing of steps and saves.
    file = "saving" if now == "save" else "step.0"
    while not os.path.exists(file) or now == "step" and int(open(file).read() or 0) < at_step:
        time.sleep(0.002)
    die()


at("startup")
if moment == "atexit":
    atexit.register(at, "atexit")
if serves and moment in ("step", "save", "close"):
    threading.Thread(target=when_others, args=(moment,), daemon=True).start()
