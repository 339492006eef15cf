import mmap, os, sys

file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(file, 4096)
kept = mmap.mmap(file, 4096)
os.close(file)
print("ready", flush=True)
sys.stdin.read()
