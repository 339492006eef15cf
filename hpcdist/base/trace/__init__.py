"""Records what ranks do, and analyses the recordings."""
