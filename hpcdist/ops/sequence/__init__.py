"""Operators on sequences of different lengths, given by LoD: pools, tags, alignments, beams."""
