"""The door for Fluid's scripts: what they call, and append to Programs."""
