"""What is counted about predictions: accuracy, areas under curves, mean average precision."""
