"""Names that exist only for Fluid's scripts: its modules, its launchers' options,
``--as-paddle``."""
