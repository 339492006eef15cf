"""``python -m hpcdist doctor``: is this machine, or this allocation, fit to train on."""
