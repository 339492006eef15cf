"""Operators that update parameters, and what prepares gradients for them."""
