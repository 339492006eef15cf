# Found first under the name of threadpoolctl: python imports it while hpcdist is imported.
import os, signal, sys

os.kill(os.getpid(), signal.SIGUSR1)
sys.path.remove(os.path.dirname(__file__))
del sys.modules["threadpoolctl"]
import threadpoolctl

sys.modules["threadpoolctl"] = threadpoolctl
