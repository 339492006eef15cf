"""Executing Programs: places, scopes, the compiler and its plans."""
