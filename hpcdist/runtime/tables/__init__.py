"""Distributed embedding tables at run time: rows pulled before a step, gradients pushed after."""
