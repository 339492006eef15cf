import os, signal, sys


class Warns:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGUSR1)


sys.meta_path.insert(0, Warns())
