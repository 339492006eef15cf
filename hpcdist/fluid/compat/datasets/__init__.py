"""Fluid's data sets under its names, ``paddle.dataset.imdb`` and others, read from Fluid's files.

Nothing is downloaded: the files are those that Fluid has put into ``~/.cache/paddle/dataset``.
"""
