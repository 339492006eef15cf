"""Gradients of Programs: the operators that compute them, and the forward values they read."""
