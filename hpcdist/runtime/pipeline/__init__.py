"""Stages of a Program on ranks of their own: what they exchange in a step."""
