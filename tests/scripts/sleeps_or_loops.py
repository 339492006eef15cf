import sys, time
from hpcdist.launch import stacks

stacks.listen()
import numpy as np


def sleeps():
    time.sleep(60)


def is_in_a_loop_of_c():
    print("ready", flush=True)
    while True:
        np.sort(np.zeros(20_000_000))


def main():
    print("ready", flush=True)
    globals()[sys.argv[1]]()


main()
