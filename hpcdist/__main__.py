"""``python -m hpcdist [options] script.py [script arguments]``."""

from hpcdist.launch.main import main

if __name__ == "__main__":
    main()
