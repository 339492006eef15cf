"""Normalizations by batch, layer, group, instance and neighbouring channels."""
