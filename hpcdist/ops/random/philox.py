"""The constants of Philox4x32-10, for its loops on a CPU and its array operations on a GPU."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
PER_BLOCK = 4  # words of 32 bits from one value of the counter
