"""Values created, copied, reshaped, rearranged, cut, joined, gathered and scattered."""
