"""Operators among ranks: the runtime runs them, so they have no kernel."""
