"""Metrics of predictions: accuracy, areas under curves, mean average precision."""
