"""What only serves Fluid's spelling: its module names, its launchers' options, ``--as-paddle``."""
