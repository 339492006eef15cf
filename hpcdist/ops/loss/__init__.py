"""Losses, softmax, losses over large vocabularies, and the check of labels."""
